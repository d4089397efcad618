"""Resampling of images and its gradients: a product with a matrix of weights along each dim.

Resampling is linear and separable, so that a gradient is the product with the transposed matrix.
Coordinates are computed in the type that PyTorch computes them in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from weft.capture.torch.build import AtenLowering, Build, dtype_of, shape_of
from weft.capture.torch.dtypes import computed_in
from weft.ir.module import Value
from weft.ir.types import F64, Array, DType
from weft.ops.contract import DotDims
from weft.ops.elementwise.pointwise import Add, Floor, Maximum, Minimum, Multiply

Resampling: TypeAlias = Callable[[int, int, bool, float | None, DType], Array]  # [out, in]


def _scale(in_size: int, out_size: int, align: bool, factor: float | None, real: type) -> Any:
    """Input pixels for each output pixel."""
    if align:
        return real(in_size - 1) / real(out_size - 1) if out_size > 1 else real(0)
    return real(1 / factor) if factor else real(in_size) / real(out_size)


def _real(dtype: DType) -> type:
    return np.float64 if dtype is F64 else np.float32


def nearest(
    in_size: int,
    out_size: int,
    align: bool,
    factor: float | None,
    dtype: DType,
    *,
    exact: bool = False,
) -> Array:
    """The weights of the nearest pixel: the one before, or the one whose centre is nearest."""
    real = _real(dtype)
    step = _scale(in_size, out_size, False, factor, real)
    places = (np.arange(out_size, dtype=real) + real(0.5 if exact else 0.0)) * step
    weights = np.zeros((out_size, in_size))
    weights[np.arange(out_size), np.minimum(np.floor(places).astype(np.int64), in_size - 1)] = 1
    return weights


def linear(in_size: int, out_size: int, align: bool, factor: float | None, dtype: DType) -> Array:
    """The weights of the two pixels around a point."""
    places = _places(in_size, out_size, align, factor, dtype)
    places = places if align else np.maximum(places, 0)
    low = np.minimum(np.floor(places).astype(np.int64), in_size - 1)
    part = np.clip(places - low, 0, 1)
    weights = np.zeros((out_size, in_size))
    rows = np.arange(out_size)
    np.add.at(weights, (rows, low), 1 - part)
    np.add.at(weights, (rows, np.minimum(low + 1, in_size - 1)), part)
    return weights


def cubic(in_size: int, out_size: int, align: bool, factor: float | None, dtype: DType) -> Array:
    """The weights of four pixels by Keys' cubic convolution, with edges repeated."""
    places = _places(in_size, out_size, align, factor, dtype)
    low = np.floor(places).astype(np.int64)
    part = places - low
    weights = np.zeros((out_size, in_size))
    rows = np.arange(out_size)
    for n in range(-1, 3):
        at = np.clip(low + n, 0, in_size - 1)
        # PyTorch's constant; other libraries have -0.5. At the edges several weights fall on one
        # pixel.
        np.add.at(weights, (rows, at), _keys(np.abs(part - n), -0.75))
    return weights


def _places(in_size: int, out_size: int, align: bool, factor: float | None, dtype: DType) -> Array:
    """The coordinates of output pixels in the input."""
    real = _real(dtype)
    step = _scale(in_size, out_size, align, factor, real)
    out: Array = np.arange(out_size, dtype=real)
    found: Array = out * step if align else (out + real(0.5)) * step - real(0.5)
    return found


def _keys(x: Array, a: float) -> Array:
    """Keys' cubic kernel."""
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def smoothed(
    support: float,
    kernel: Callable[[Array], Array],
    in_size: int,
    out_size: int,
    align: bool,
    factor: float | None,
    dtype: DType,
) -> Array:
    """The weights of an antialiasing filter, which widens where an image shrinks."""
    step = float(_scale(in_size, out_size, align, factor, _real(dtype)))
    wide = max(step, 1.0)
    weights = np.zeros((out_size, in_size))
    for n in range(out_size):
        centre = step * (n + 0.5)
        begin = max(math.trunc(centre - support * wide + 0.5), 0)
        end = min(math.trunc(centre + support * wide + 0.5), in_size)
        row = kernel(np.abs((np.arange(begin, end) - centre + 0.5) / wide))
        weights[n, begin:end] = row / (row.sum() or 1.0)
    return weights


def _triangle(x: Array) -> Array:
    found: Array = np.maximum(1 - x, 0)
    return found


_nearest_exact = partial(nearest, exact=True)
_smooth_linear = partial(smoothed, 1.0, _triangle)
_smooth_cubic = partial(smoothed, 2.0, partial(_keys, a=-0.5))


def resized(
    how: Resampling,
    has_align: bool,
    b: Build,
    x: Value,
    output_size: Sequence[int],
    *rest: bool | float | None,
) -> Value:
    """An image of another size."""
    align, factors = _options(has_align, rest, len(output_size))
    outer = len(shape_of(x)) - len(output_size)
    given = shape_of(x)[outer:]
    if dtype_of(x).is_integer:
        exact = _matrices(b, how, given, output_size, align, factors, F64)
        return _in_fixed_point(b, x, outer, exact)
    matrices = _matrices(b, how, given, output_size, align, factors, dtype_of(x))
    return _along_each(b, x, outer, matrices)


def _in_fixed_point(b: Build, x: Value, outer: int, matrices: Sequence[Array]) -> Value:
    """The products as PyTorch has them for images of bytes: from the last dim, each rounded.

    Its weights are integers of 16 bits. All sums fit f64.
    """
    x = b.convert(x, F64)
    for n, matrix in reversed([*enumerate(matrices)]):
        if matrix.shape[0] == matrix.shape[1] and (matrix == np.eye(matrix.shape[0])).all():
            continue
        limit = np.abs(matrix).max(initial=2.0**-7)
        bits = next((n for n in range(22) if 0.5 + limit * 2 ** (n + 1) >= 2**15), 22)
        weights = np.trunc(matrix * 2**bits + np.copysign(0.5, matrix))
        dim, rank = outer + n, len(shape_of(x))
        x = b.dot(x, b.constant(weights), DotDims((), (), (dim,), (1,)), F64)
        x = b.move(x, rank - 1, dim)
        x = b.op(Multiply(), x, b.like(x, 0.5**bits))
        x = b.op(Floor(), b.op(Add(), x, b.like(x, 0.5)))
        x = b.op(Maximum(), b.op(Minimum(), x, b.like(x, 255)), b.like(x, 0))
    return b.convert(x, b.out.dtype)


def resized_gradient(
    how: Resampling,
    has_align: bool,
    b: Build,
    grad: Value,
    output_size: Sequence[int],
    input_size: Sequence[int],
    *rest: bool | float | None,
) -> Value:
    """The gradient of a resized image with respect to the image."""
    align, factors = _options(has_align, rest, len(output_size))
    outer = len(input_size) - len(output_size)
    given = input_size[outer:]
    matrices = _matrices(b, how, given, output_size, align, factors, dtype_of(grad))
    return _along_each(b, grad, outer, [matrix.T for matrix in matrices])


def _options(
    has_align: bool, rest: Sequence[bool | float | None], count: int
) -> tuple[bool, list[float | None]]:
    """align_corners, and a scale factor or None for each dim."""
    align = bool(rest[0]) if has_align else False
    given = [None if f is None else float(f) for f in rest[1 if has_align else 0 :]]
    return align, [*given, *[None] * (count - len(given))]


def _matrices(
    b: Build,
    how: Resampling,
    in_sizes: Sequence[int],
    out_sizes: Sequence[int],
    align: bool,
    factors: Sequence[float | None],
    dtype: DType,
) -> list[Array]:
    return [
        how(size, wanted, align, factor, dtype)
        for size, wanted, factor in zip(in_sizes, out_sizes, factors, strict=True)
    ]


def _along_each(b: Build, x: Value, outer: int, matrices: Sequence[Array]) -> Value:
    """The products with a matrix along each of the last dims, rounded once."""
    dtype = b.out.dtype
    x = b.convert(x, computed_in(dtype))
    for n, matrix in enumerate(matrices):
        dim = outer + n
        if matrix.shape[0] == matrix.shape[1] and (matrix == np.eye(matrix.shape[0])).all():
            continue
        summed = _repeats(matrix)
        if summed:  # each input pixel became as many output pixels: their gradients are added
            sizes = shape_of(x)
            split = b.reshape(x, (*sizes[:dim], sizes[dim] // summed, summed, *sizes[dim + 1 :]))
            x = b.reduce(split, (dim + 1,), "add", 0)
            continue
        weights = b.constant(matrix.astype(dtype_of(x).numpy))
        rank = len(shape_of(x))
        x = b.move(b.dot(x, weights, DotDims((), (), (dim,), (1,)), dtype_of(x)), rank - 1, dim)
    return b.convert(x, dtype)


def _repeats(matrix: Array) -> int:
    """How many neighbours a matrix adds up, if that is all it does; else 0."""
    rows, columns = matrix.shape
    if not rows or columns % rows or columns == rows:
        return 0
    count = columns // rows
    return count if (matrix == np.repeat(np.eye(rows), count, 1)).all() else 0


_KINDS: dict[str, tuple[Resampling, bool]] = {
    "upsample_nearest1d": (nearest, False),
    "upsample_nearest2d": (nearest, False),
    "upsample_nearest3d": (nearest, False),
    "_upsample_nearest_exact1d": (_nearest_exact, False),
    "_upsample_nearest_exact2d": (_nearest_exact, False),
    "_upsample_nearest_exact3d": (_nearest_exact, False),
    "upsample_linear1d": (linear, True),
    "upsample_bilinear2d": (linear, True),
    "upsample_trilinear3d": (linear, True),
    "upsample_bicubic2d": (cubic, True),
    "_upsample_bilinear2d_aa": (_smooth_linear, True),
    "_upsample_bicubic2d_aa": (_smooth_cubic, True),
}

LOWERINGS: dict[str, AtenLowering] = {
    "aten._upsample_bilinear2d_aa.default": partial(resized, _smooth_linear, True),
    "aten._upsample_bicubic2d_aa.default": partial(resized, _smooth_cubic, True),
} | {
    f"aten.{name}_backward.default": partial(resized_gradient, how, has_align)
    for name, (how, has_align) in _KINDS.items()
}
