"""Pooling: maximum or mean over windows, of fixed or adaptive sizes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from weft.capture.torch.aten.pointwise import floor_integers
from weft.capture.torch.build import (
    AtenLowering,
    Build,
    LoweredResults,
    dtype_of,
    shape_of,
    type_of,
)
from weft.capture.torch.dtypes import computed_in
from weft.ir.module import Value
from weft.ir.rule import Combine
from weft.ir.types import Array
from weft.ops.combiners import combiner
from weft.ops.contract import DotDims
from weft.ops.elementwise.pointwise import And, Divide, Or
from weft.ops.window import ReduceWindow


class PoolWindows:
    """The windows of a pooling over the last dims of a tensor."""

    def __init__(
        self,
        b: Build,
        x: Value,
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int] = (1,),
    ) -> None:
        sizes = shape_of(x)
        count = len(kernel) if len(kernel) > 1 else b.out.rank - 2
        count = max(count, len(stride), len(padding), len(dilation))
        self.kernel = _each(kernel, count)
        self.stride = _each(stride or kernel, count)
        self.padding = _each(padding, count)
        self.dilation = _each(dilation, count)
        self.outer = len(sizes) - count
        self.given = sizes[self.outer :]
        self.made = b.out.sizes[self.outer :]
        # In ceil mode the last window may extend beyond the padding; else the tail is unused.
        self.high = tuple(
            [
                (n - 1) * s + d * (k - 1) + 1 - size - p
                for n, s, d, k, size, p in zip(
                    self.made,
                    self.stride,
                    self.dilation,
                    self.kernel,
                    self.given,
                    self.padding,
                    strict=True,
                )
            ]
        )

    def fold(self, b: Build, x: Value, combine: Combine, start: object) -> Value:
        """A reduction over each window."""
        ones = (1,) * self.outer
        pads = ((0, 0),) * self.outer + tuple(zip(self.padding, self.high, strict=True))
        given = type_of(x)
        out = given.with_shape((*given.sizes[: self.outer], *self.made))
        op = ReduceWindow(
            (*ones, *self.kernel),
            (out,),
            window_strides=(*ones, *self.stride),
            window_dilations=(*ones, *self.dilation),
            padding=pads,
        )
        number = b.splat(start, given.with_shape(()))
        return b.op(op, x, number, regions=(combiner(combine, given),))

    def views(self, b: Build, x: Value, fill: object) -> list[Value]:
        """The elements of all windows, one tensor for each offset in a window."""
        none = [0] * self.outer
        padded = b.pad(x, [*none, *self.padding], [*none, *self.high], fill)
        found = []
        for place in itertools.product(*map(range, self.kernel)):
            view = padded
            for n, at in enumerate(place):
                start = at * self.dilation[n]
                stop = start + (self.made[n] - 1) * self.stride[n] + 1
                view = b.slice(view, self.outer + n, start, stop, self.stride[n])
            found.append(view)
        return found

    def counts(self, include_padding: bool) -> Array:
        """The element count of each window, in the shape of the last dims."""
        made = np.ones((), np.int64)
        for n, size in enumerate(self.given):
            begin = np.arange(self.made[n]) * self.stride[n] - self.padding[n]
            end = np.minimum(begin + self.kernel[n], size + self.padding[n])
            if not include_padding:
                begin, end = np.maximum(begin, 0), np.minimum(end, size)
            made = made[..., None] * np.maximum(end - begin, 0)
        return made


def _each(given: Sequence[int], count: int) -> tuple[int, ...]:
    return tuple(given) * count if len(given) == 1 else tuple(given)


def max_pool(
    b: Build,
    x: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> LoweredResults:
    """The maximum of each window, and its flat index in the plane."""
    windows = PoolWindows(b, x, kernel_size, stride, padding, dilation)
    least = dtype_of(x).limits[0]
    if 1 not in b.used:
        return windows.fold(b, x, "max", least), None
    shape = windows.given
    place = b.reshape(b.iota(0, (int(np.prod(shape)),)), shape)
    places = b.spread(place, shape_of(x), range(windows.outer, len(shape_of(x))))
    pairs = zip(windows.views(b, x, least), windows.views(b, places, -1), strict=True)
    best, where = next(pairs)
    for value, at in pairs:
        ahead = b.op(Or(), b.compare("GT", value, best), b.is_nan(value))
        inside = b.compare("GE", at, b.like(at, 0))
        outside = b.compare("LT", where, b.like(where, 0))
        ahead = b.op(Or(), b.op(And(), ahead, inside), b.op(And(), outside, inside))
        best, where = b.select(ahead, value, best), b.select(ahead, at, where)
    return best, where


def mean_pool(
    b: Build,
    x: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    """The mean of each window; the count may include padding."""
    windows = PoolWindows(b, x, kernel_size, stride, padding)
    dtype = b.out.dtype
    wide = computed_in(dtype)
    sums = windows.fold(b, b.convert(x, wide), "add", 0)
    counts = windows.counts(count_include_pad)
    if divisor_override:
        counts = np.full_like(counts, divisor_override)
    divisor = b.constant(counts.astype(wide.numpy))
    divisor = b.spread(divisor, shape_of(sums), range(windows.outer, b.out.rank))
    if dtype.is_integer:
        return floor_integers(b, sums, divisor)
    return b.convert(b.op(Divide(), sums, divisor), dtype)


def adaptive_mean_pool(b: Build, x: Value, output_size: Sequence[int]) -> Value:
    """Means over an adaptive number of windows: one, or a product with a matrix along each dim."""
    count = len(output_size)
    dtype = b.out.dtype
    x = b.convert(x, computed_in(dtype))
    outer = len(shape_of(x)) - count
    for n in range(count):
        dim = outer + n
        size, wanted = shape_of(x)[dim], b.out.sizes[dim]
        if size == wanted:
            continue
        if wanted == 1:
            made = b.reduce(x, (dim,), "add", 0)
            made = b.op(Divide(), made, b.like(made, size))
            shape = shape_of(x)
            x = b.reshape(made, (*shape[:dim], 1, *shape[dim + 1 :]))
            continue
        weights = b.constant(_averages(size, wanted).astype(dtype_of(x).numpy))
        rank = len(shape_of(x))
        made = b.dot(x, weights, DotDims((), (), (dim,), (1,)), dtype_of(x))
        x = b.move(made, rank - 1, dim)
    return b.convert(x, dtype)


def _averages(size: int, wanted: int) -> Array:
    """The averaging matrix: one row of weights for each window."""
    made = np.zeros((wanted, size))
    for n in range(wanted):
        begin, end = n * size // wanted, -(-(n + 1) * size // wanted)
        made[n, begin:end] = 1 / (end - begin)
    return made


LOWERINGS: dict[str, AtenLowering] = {
    "aten._adaptive_avg_pool2d.default": adaptive_mean_pool,
    "aten._adaptive_avg_pool3d.default": adaptive_mean_pool,
    "aten.adaptive_avg_pool1d.default": adaptive_mean_pool,
    "aten.avg_pool1d.default": mean_pool,
    "aten.avg_pool2d.default": mean_pool,
    "aten.avg_pool3d.default": mean_pool,
    "aten.max_pool2d_with_indices.default": max_pool,
    "aten.max_pool3d_with_indices.default": max_pool,
}
