"""Pooling: maximum or mean over windows, of fixed or adaptive sizes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from weft.capture.torch.aten.convolution import each_dim
from weft.capture.torch.aten.indexing import index_select, scatter_add
from weft.capture.torch.aten.reduce import with_place
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
from weft.ir.types import I64, Array, TensorType
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
        output_sizes: Sequence[int]
        | None = None,  # the sizes of the pooled tensor, if it is no result
    ) -> None:
        sizes = shape_of(x)
        count = len(kernel) if len(kernel) > 1 else b.out.rank - 2
        count = max(count, len(stride), len(padding), len(dilation))
        self.kernel = each_dim(kernel, count)
        self.stride = each_dim(stride or kernel, count)
        self.padding = each_dim(padding, count)
        self.dilation = each_dim(dilation, count)
        self.outer = len(sizes) - count
        self.input_sizes = sizes[self.outer :]
        self.output_sizes = tuple(output_sizes or b.out.sizes)[self.outer :]
        # In ceil mode the last window may extend beyond the padding; else the tail is unused.
        self.high = tuple(
            [
                (n - 1) * s + d * (k - 1) + 1 - size - p
                for n, s, d, k, size, p in zip(
                    self.output_sizes,
                    self.stride,
                    self.dilation,
                    self.kernel,
                    self.input_sizes,
                    self.padding,
                    strict=True,
                )
            ]
        )

    def fold(self, b: Build, x: Value, combine: Combine, start: object) -> Value:
        """A reduction over each window."""
        ones = (1,) * self.outer
        pads = ((0, 0),) * self.outer + tuple(zip(self.padding, self.high, strict=True))
        input_type = type_of(x)
        out = input_type.with_shape((*input_type.sizes[: self.outer], *self.output_sizes))
        op = ReduceWindow(
            (*ones, *self.kernel),
            (out,),
            window_strides=(*ones, *self.stride),
            window_dilations=(*ones, *self.dilation),
            padding=pads,
        )
        number = b.splat(start, input_type.with_shape(()))
        return b.op(op, x, number, regions=(combiner(combine, input_type),))

    def views(self, b: Build, x: Value, fill: object) -> list[Value]:
        """The elements of all windows, one tensor for each offset in a window."""
        none = [0] * self.outer
        padded = b.pad(x, [*none, *self.padding], [*none, *self.high], fill)
        slices = []
        for place in itertools.product(*map(range, self.kernel)):
            view = padded
            for n, at in enumerate(place):
                start = at * self.dilation[n]
                stop = start + (self.output_sizes[n] - 1) * self.stride[n] + 1
                view = b.slice(view, self.outer + n, start, stop, self.stride[n])
            slices.append(view)
        return slices

    def unfold(self, b: Build, grad: Value) -> Value:
        """The transpose of a sum over windows: each element's sum over the windows that hold it."""
        none = [0] * self.outer
        low = [k - 1 - p for k, p in zip(self.kernel, self.padding, strict=True)]
        inner = [s - 1 for s in self.stride]
        held = [(n - 1) * s + 1 for n, s in zip(self.output_sizes, self.stride, strict=True)]
        high = [
            size + k - 1 - at - n
            for size, k, at, n in zip(self.input_sizes, self.kernel, low, held, strict=True)
        ]
        spread = b.pad(grad, [*none, *low], [*none, *high], 0, [*none, *inner])
        grad_type = type_of(grad)
        out = grad_type.with_shape((*grad_type.sizes[: self.outer], *self.input_sizes))
        op = ReduceWindow((*(1,) * self.outer, *self.kernel), (out,))
        number = b.splat(0, grad_type.with_shape(()))
        return b.op(op, spread, number, regions=(combiner("add", grad_type),))

    def counts(self, include_padding: bool) -> Array:
        """The element count of each window, in the shape of the last dims."""
        element_counts = np.ones((), np.int64)
        for n, size in enumerate(self.input_sizes):
            begin = np.arange(self.output_sizes[n]) * self.stride[n] - self.padding[n]
            end = np.minimum(begin + self.kernel[n], size + self.padding[n])
            if not include_padding:
                begin, end = np.maximum(begin, 0), np.minimum(end, size)
            element_counts = element_counts[..., None] * np.maximum(end - begin, 0)
        return element_counts


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
    shape = windows.input_sizes
    place = b.reshape(b.iota(0, (int(np.prod(shape)),)), shape)
    places = b.spread(place, shape_of(x), range(windows.outer, len(shape_of(x))))
    pairs = zip(windows.views(b, x, least), windows.views(b, places, -1), strict=True)
    best, where = next(pairs)
    for value, at in pairs:
        # PyTorch's indices: the first maximum, NaN above all; padding (place -1) never wins.
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
    return b.convert(b.op(Divide(), sums, divisor), dtype)  # of integers, toward zero


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
            pooled = b.reduce(x, (dim,), "add", 0)
            pooled = b.op(Divide(), pooled, b.like(pooled, size))
            shape = shape_of(x)
            x = b.reshape(pooled, (*shape[:dim], 1, *shape[dim + 1 :]))
            continue
        weights = b.constant(_averages(size, wanted).astype(dtype_of(x).numpy))
        rank = len(shape_of(x))
        pooled = b.dot(x, weights, DotDims((), (), (dim,), (1,)), dtype_of(x))
        x = b.move(pooled, rank - 1, dim)
    return b.convert(x, dtype)


def adaptive_max_pool(b: Build, x: Value, output_size: Sequence[int]) -> LoweredResults:
    """Maxima over an adaptive number of windows, and their flat indices in the plane."""
    count = len(output_size)
    sizes = shape_of(x)
    outer = len(sizes) - count
    windows = [_members(sizes[outer + n], wanted) for n, wanted in enumerate(output_size)]
    if not b.out.size:
        return b.splat(0, b.out), b.splat(0, b.out.with_dtype(I64))
    place = np.zeros((), np.int64)
    for n, window in enumerate(windows):  # x becomes [.., windows, members, windows, members]
        x = index_select(b, x, outer + 2 * n, b.constant(window.reshape(-1)))
        shape = shape_of(x)
        at = outer + 2 * n
        x = b.reshape(x, (*shape[:at], *window.shape, *shape[at + 1 :]))
        place = place[..., None, None] * sizes[outer + n] + window
    made = [outer + 2 * n for n in range(count)]
    order = (*range(outer), *made, *[d + 1 for d in made])
    flat = (*sizes[:outer], *output_size, math.prod(w.shape[1] for w in windows))
    x = b.reshape(b.transpose(x, order), flat)
    places = place.transpose([d - outer for d in order[outer:]]).reshape(flat[outer:])
    index = b.spread(b.constant(places), flat, range(outer, len(flat)))
    return with_place(b, "GT", x, len(flat) - 1, index)


def _members(size: int, wanted: int) -> Array:
    """The elements of each adaptive window, the last one repeated where a window is shorter."""
    begin = np.arange(wanted) * size // wanted
    end = -(-(np.arange(wanted) + 1) * size // wanted)
    longest = int((end - begin).max(initial=1))
    found: Array = np.minimum(begin[:, None] + np.arange(longest), end[:, None] - 1)
    return found


def _averages(size: int, wanted: int) -> Array:
    """The averaging matrix: one row of weights for each window."""
    weights = np.zeros((wanted, size))
    for n in range(wanted):
        begin, end = n * size // wanted, -(-(n + 1) * size // wanted)
        weights[n, begin:end] = 1 / (end - begin)
    return weights


# Gradients


def mean_pool_gradient(
    b: Build,
    grad: Value,
    x: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Value:
    """Each element's sum of the gradients of its windows, divided by their counts."""
    dtype = b.out.dtype
    wide = computed_in(dtype)
    windows = PoolWindows(b, x, kernel_size, stride, padding, output_sizes=shape_of(grad))
    counts = windows.counts(count_include_pad)
    if divisor_override:
        counts = np.full_like(counts, divisor_override)
    # A window entirely in the padding has no elements, and 0 / 0 would reach the gradient.
    divisor = b.constant(np.maximum(counts, 1).astype(wide.numpy))
    divisor = b.spread(divisor, shape_of(grad), range(windows.outer, b.out.rank))
    grad = b.op(Divide(), b.convert(grad, wide), divisor)
    return b.convert(windows.unfold(b, grad), dtype)


def adaptive_mean_pool_gradient(b: Build, grad: Value, x: Value) -> Value:
    """Gradients of windows spread over their elements, one dim after the other."""
    dtype = b.out.dtype
    grad = b.convert(grad, computed_in(dtype))
    input_shape = shape_of(x)
    for dim, size in enumerate(input_shape):
        wanted = shape_of(grad)[dim]
        if size == wanted:
            continue
        if wanted == 1:
            shape = (*shape_of(grad)[:dim], size, *shape_of(grad)[dim + 1 :])
            grad = b.broadcast(b.op(Divide(), grad, b.like(grad, size)), shape)
            continue
        weights = b.constant(_averages(size, wanted).astype(dtype_of(grad).numpy))
        product = b.dot(grad, weights, DotDims((), (), (dim,), (0,)), dtype_of(grad))
        grad = b.move(product, len(input_shape) - 1, dim)
    return b.convert(grad, dtype)


def max_pool_gradient(count: int, b: Build, grad: Value, x: Value, *rest: Value) -> Value:
    """Gradients added where the maxima were: the last operand has their indices in the plane."""
    input_shape, places = shape_of(x), rest[-1]
    outer = input_shape[: len(input_shape) - count]
    plane, windows = (math.prod(s[len(outer) :]) for s in (input_shape, shape_of(grad)))
    zeros = b.splat(0, TensorType((*outer, plane), computed_in(b.out.dtype)))
    flat, index = (b.reshape(each, (*outer, windows)) for each in (grad, places))
    if plane and windows:
        zeros = scatter_add(b, zeros, len(outer), index, b.convert(flat, dtype_of(zeros)))
    return b.convert(b.reshape(zeros, input_shape), b.out.dtype)


LOWERINGS: dict[str, AtenLowering] = {
    "aten._adaptive_avg_pool2d.default": adaptive_mean_pool,
    "aten._adaptive_avg_pool2d_backward.default": adaptive_mean_pool_gradient,
    "aten._adaptive_avg_pool3d.default": adaptive_mean_pool,
    "aten._adaptive_avg_pool3d_backward.default": adaptive_mean_pool_gradient,
    "aten.adaptive_max_pool2d.default": adaptive_max_pool,
    "aten.adaptive_max_pool2d_backward.default": partial(max_pool_gradient, 2),
    "aten.adaptive_max_pool3d.default": adaptive_max_pool,
    "aten.adaptive_max_pool3d_backward.default": partial(max_pool_gradient, 3),
    "aten.avg_pool2d_backward.default": mean_pool_gradient,
    "aten.avg_pool3d_backward.default": mean_pool_gradient,
    "aten.max_pool2d_with_indices_backward.default": partial(max_pool_gradient, 2),
    "aten.max_pool3d_with_indices_backward.default": partial(max_pool_gradient, 3),
    "aten.adaptive_avg_pool1d.default": adaptive_mean_pool,
    "aten.avg_pool1d.default": mean_pool,
    "aten.avg_pool2d.default": mean_pool,
    "aten.avg_pool3d.default": mean_pool,
    "aten.max_pool2d_with_indices.default": max_pool,
    "aten.max_pool3d_with_indices.default": max_pool,
}
