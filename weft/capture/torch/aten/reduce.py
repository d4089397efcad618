"""Reductions along dims: sums, extrema with indices, variances, cumulative sums, softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from weft.capture.torch.build import (
    AtenLowering,
    Build,
    LoweredResults,
    Sizes,
    dim_of,
    dims_of,
    dtype_of,
    shape_of,
    type_of,
)
from weft.capture.torch.dtypes import computed_in
from weft.ir.module import Region, Value
from weft.ir.op import Op
from weft.ir.rule import Combine
from weft.ir.types import BOOL, F64, I64, TensorType
from weft.ops.combiners import COMBINERS
from weft.ops.elementwise.convert import Imag, Real
from weft.ops.elementwise.pointwise import Add, And, Divide, Floor, Multiply, Not, Or, Subtract
from weft.ops.elementwise.transcendental import Exponential, Log
from weft.ops.reduce import Reduce

ReducedDims = Sequence[int] | int | None


def total(b: Build, x: Value, dim: ReducedDims = None, keepdim: bool = False, **_: object) -> Value:
    """A sum, of integers in i64."""
    return _folded(b, b.convert(x, b.out.dtype), dim, keepdim, "add", 0)


def product(
    b: Build, x: Value, dim: ReducedDims = None, keepdim: bool = False, **_: object
) -> Value:
    """A product along dims."""
    return _folded(b, b.convert(x, b.out.dtype), dim, keepdim, "mul", 1)


def any_(b: Build, x: Value, dim: ReducedDims = None, keepdim: bool = False) -> Value:
    """Whether some element is not 0."""
    made = _folded(b, b.convert(x, BOOL), dim, keepdim, "or", False)
    return b.convert(made, b.out.dtype)


def all_(b: Build, x: Value, dim: ReducedDims = None, keepdim: bool = False) -> Value:
    """Whether no element is 0."""
    made = _folded(b, b.convert(x, BOOL), dim, keepdim, "and", True)
    return b.convert(made, b.out.dtype)


def extreme(
    combine: Combine, b: Build, x: Value, dim: ReducedDims = (), keepdim: bool = False
) -> Value:
    """The largest or smallest element; NaN if there is one."""
    least, most = dtype_of(x).limits
    return _folded(b, x, dim, keepdim, combine, least if combine == "max" else most)


def _folded(
    b: Build, x: Value, dim: ReducedDims, keepdim: bool, combine: Combine, start: object
) -> Value:
    sizes = shape_of(x)
    dims = dims_of(dim, len(sizes))
    return b.keep_dims(b.reduce(x, dims, combine, start), sizes, dims, keepdim)


def mean(b: Build, x: Value, dim: ReducedDims = None, keepdim: bool = False, **_: object) -> Value:
    """A mean, of narrow floats in f32."""
    dtype = b.out.dtype
    x = b.convert(x, computed_in(dtype))
    made = _folded(b, x, dim, keepdim, "add", 0)
    return b.convert(_over(b, made, _count(shape_of(x), dim)), dtype)


def _count(sizes: Sizes, dim: ReducedDims) -> int:
    return math.prod(sizes[d] for d in dims_of(dim, len(sizes)))


def _over(b: Build, x: Value, count: float) -> Value:
    return b.op(Divide(), x, b.like(x, count))


def variance(
    b: Build,
    x: Value,
    dim: ReducedDims = None,
    unbiased: object = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Value:
    """The variance: squared deviations over the count minus the correction."""
    return _moments(b, x, dim, keepdim, _correction(unbiased, correction))[0]


def variance_and_mean(
    b: Build,
    x: Value,
    dim: ReducedDims = None,
    unbiased: object = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> LoweredResults:
    """The variance and the mean."""
    return _moments(b, x, dim, keepdim, _correction(unbiased, correction))


def prims_variance(
    b: Build, x: Value, dims: ReducedDims, correction: float = 1, *, output_dtype: object = None
) -> Value:
    """The variance, in the form that decompositions use."""
    return _moments(b, x, dims, False, float(correction))[0]


def _correction(unbiased: object, correction: float | None) -> float:
    if isinstance(unbiased, bool):
        return float(unbiased)
    return 1.0 if correction is None else float(correction)


def _moments(
    b: Build, x: Value, dim: ReducedDims, keepdim: bool, correction: float
) -> tuple[Value, Value]:
    wide = computed_in(dtype_of(x))
    x = b.convert(x, wide)
    sizes, dims = shape_of(x), dims_of(dim, len(shape_of(x)))
    count = _count(sizes, dim)
    centre = _over(b, b.keep_dims(b.reduce(x, dims, "add", 0), sizes, dims, True), count)
    # Two passes: the mean of squares less the square of the mean would cancel.
    apart = b.op(Subtract(), x, b.broadcast(centre, sizes))
    if wide.is_complex:
        parts = [b.op(part, apart) for part in (Real(), Imag())]
        square = b.op(Add(), *[b.op(Multiply(), p, p) for p in parts])
    else:
        square = b.op(Multiply(), apart, apart)
    # Not below 0: PyTorch divides by 0 there, which gives inf or NaN.
    spread = _over(b, b.reduce(square, dims, "add", 0), max(0.0, count - correction))
    spread = b.keep_dims(spread, sizes, dims, keepdim)
    centre = b.reshape(centre, shape_of(spread))
    return b.convert(spread, b.out.dtype), b.convert(centre, b.outs[-1].dtype)  # type: ignore[union-attr]


# Extrema and their indices


def extreme_with_place(
    direction: str, b: Build, x: Value, dim: int, keepdim: bool = False
) -> LoweredResults:
    """The maximum or minimum along a dim, and its first index."""
    sizes = shape_of(x)
    if not sizes:
        return x, b.splat(0, TensorType((), I64))
    dims = (dim_of(dim, len(sizes)),)
    values, places = with_place(b, direction, x, dims[0])
    return b.keep_dims(values, sizes, dims, keepdim), b.keep_dims(places, sizes, dims, keepdim)


def place_of_extreme(
    direction: str, b: Build, x: Value, dim: int | None = None, keepdim: bool = False
) -> Value:
    """argmax or argmin: the first index, into the flattened tensor if no dim is named."""
    sizes = shape_of(x)
    if not sizes:
        return b.splat(0, b.out)
    if dim is None:
        _, places = with_place(b, direction, b.reshape(x, (type_of(x).size,)), 0)
        return b.reshape(places, b.out.sizes)
    dims = (dim_of(dim, len(sizes)),)
    return b.keep_dims(with_place(b, direction, x, dims[0])[1], sizes, dims, keepdim)


def with_place(
    b: Build, direction: str, x: Value, dim: int, index: Value | None = None
) -> tuple[Value, Value]:
    """The extreme along a dim, and its first place: the place in the dim, or one of an index."""
    x_type = type_of(x)
    least, most = x_type.dtype.limits
    scalar, place = x_type.with_shape(()), TensorType((), I64)
    start = b.splat(least if direction == "GT" else most, scalar)
    zero = b.splat(0, place)
    sizes = tuple([s for d, s in enumerate(x_type.sizes) if d != dim])
    outs = (TensorType(sizes, x_type.dtype), TensorType(sizes, I64))
    index = b.iota(dim, x_type.sizes) if index is None else index
    region = better(direction, scalar, place)
    made = b.all(Reduce((dim,), outs), x, index, start, zero, regions=(region,))
    return made[0], made[1]


def better(direction: str, scalar: TensorType, place: TensorType) -> Region:
    """The argmax region: the better of two elements with indices; NaN wins, ties take the first.

    JAX's argmax has the same form, which later stages recognize.
    """
    args = tuple([Value(t, None, n) for n, t in enumerate((scalar, place, scalar, place))])
    x, i, y, j = args
    inner = Build()
    ahead = inner.compare(direction, x, y)
    if scalar.dtype.is_float:
        ahead = inner.op(Or(), ahead, inner.compare("NE", x, x))
    first = inner.op(And(), inner.compare("EQ", x, y), inner.compare("LT", i, j))
    chosen = inner.select(ahead, x, y)
    where = inner.select(inner.op(Or(), ahead, first), i, j)
    return Region(args, inner.nodes, (chosen, where))


# Scans


def scan(b: Build, x: Value, dim: int, combine: Op, start: object) -> Value:
    """Prefix reductions along a dim, by recursive doubling."""
    sizes = shape_of(x)
    shift = 1
    while shift < sizes[dim]:
        low, high = [0] * len(sizes), [0] * len(sizes)
        low[dim], high[dim] = shift, -shift
        # log2(n) elementwise steps, which are fused and may be split along other dims.
        x = b.op(combine, b.pad(x, low, high, start), x)
        shift *= 2
    return x


def cumulative(combine: Combine, start: object, b: Build, x: Value, dim: int, **_: object) -> Value:
    """Prefix sums or products along a dim."""
    dtype = b.out.dtype
    x = b.convert(x, dtype)
    if not shape_of(x):
        return x
    x = b.convert(x, computed_in(dtype))
    return b.convert(scan(b, x, dim_of(dim, len(shape_of(x))), COMBINERS[combine], start), dtype)


def cumulative_extreme(direction: str, b: Build, x: Value, dim: int) -> LoweredResults:
    """Prefix maxima or minima, and the last index of each."""
    sizes = shape_of(x)
    if not sizes:
        return x, b.splat(0, TensorType((), I64))
    dim = dim_of(dim, len(sizes))
    least, most = dtype_of(x).limits
    start = least if direction == "GE" else most
    places = b.iota(dim, sizes)
    shift = 1
    while shift < sizes[dim]:
        low, high = [0] * len(sizes), [0] * len(sizes)
        low[dim], high[dim] = shift, -shift
        # Place -1 is in front of the first element: nothing there wins.
        before, at = b.pad(x, low, high, start), b.pad(places, low, high, -1)
        later = b.compare(direction, x, before)
        nan = b.is_nan(x)
        later = b.op(Or(), nan, b.op(And(), later, b.op(Not(), b.is_nan(before))))
        later = b.op(Or(), later, b.compare("LT", at, b.like(at, 0)))
        x, places = b.select(later, x, before), b.select(later, places, at)
        shift *= 2
    return x, places


# Softmax


def softmax(b: Build, x: Value, dim: int, half_to_float: bool = False) -> Value:
    """exp(x) over its sum along a dim."""
    if not shape_of(x):
        return b.splat(1, b.out)
    powers, sums, _ = _exponentials(b, x, dim)
    return b.convert(b.op(Divide(), powers, sums), b.out.dtype)


def log_softmax(b: Build, x: Value, dim: int, half_to_float: bool = False) -> Value:
    """x minus logsumexp(x) along a dim."""
    if not shape_of(x):
        return b.splat(0, b.out)
    _, sums, apart = _exponentials(b, x, dim)
    return b.convert(b.op(Subtract(), apart, b.op(Log(), sums)), b.out.dtype)


def _exponentials(b: Build, x: Value, dim: int) -> tuple[Value, Value, Value]:
    """exp(x - max), its sum, and x - max."""
    x = b.convert(x, computed_in(b.out.dtype))
    sizes = shape_of(x)
    dims = (dim_of(dim, len(sizes)),)
    other_dims = [d for d in range(len(sizes)) if d not in dims]
    top = b.spread(b.reduce(x, dims, "max", -math.inf), sizes, other_dims)
    apart = b.op(Subtract(), x, top)
    powers = b.op(Exponential(), apart)
    sums = b.spread(b.reduce(powers, dims, "add", 0), sizes, other_dims)
    return powers, sums, apart


def histogram(
    b: Build,
    x: Value,
    bins: int = 100,
    min: float = 0,
    max: float = 0,  # PyTorch's
) -> Value:
    """Counts of equal bins between two numbers, or the extreme elements if these are equal."""
    flat = b.reshape(x, (type_of(x).size,))
    # Integers, which devices other than the CPU count, too, divide exactly.
    value = b.convert(flat, F64 if b.out.dtype.is_integer else computed_in(b.out.dtype))
    low, high = _range_of(b, value, min, max)
    # The product first, as PyTorch: at the edges of bins another order rounds to other bins.
    scaled = b.op(Multiply(), b.op(Subtract(), value, low), b.like(value, bins))
    place = b.op(Floor(), b.op(Divide(), scaled, b.op(Subtract(), high, low)))
    last = b.compare("EQ", value, high)  # which the last bin includes
    place = b.select(last, b.like(value, bins - 1), place)
    shape, held = (bins, type_of(flat).size), dtype_of(value)
    hits = b.compare("EQ", b.spread(place, shape, (1,)), b.convert(b.iota(0, shape), held))
    return b.convert(b.reduce(b.convert(hits, held), (1,), "add", 0), b.out.dtype)


def _range_of(b: Build, value: Value, low: float, high: float) -> tuple[Value, Value]:
    """The range of a histogram, at every element; a single number is the middle of its range."""
    if low != high or not type_of(value).size:
        return b.like(value, low), b.like(value, high)
    least, most = (b.reduce(value, (0,), kind, start) for kind, start in _ENDS)
    is_point = b.compare("EQ", least, most)
    one = b.like(least, 1)
    least = b.select(is_point, b.op(Subtract(), least, one), least)
    most = b.select(is_point, b.op(Add(), most, one), most)
    return b.broadcast(least, shape_of(value)), b.broadcast(most, shape_of(value))


_ENDS: tuple[tuple[Combine, float], ...] = (("min", math.inf), ("max", -math.inf))

LOWERINGS: dict[str, AtenLowering] = {
    "aten.histc.default": histogram,
    "aten._log_softmax.default": log_softmax,
    "aten._softmax.default": softmax,
    "aten._is_all_true.default": all_,
    "aten._is_any_true.default": any_,
    "aten.all.default": all_,
    "aten.all.dim": all_,
    "aten.all.dims": all_,
    "aten.amax.default": partial(extreme, "max"),
    "aten.amin.default": partial(extreme, "min"),
    "aten.any.default": any_,
    "aten.any.dim": any_,
    "aten.any.dims": any_,
    "aten.argmax.default": partial(place_of_extreme, "GT"),
    "aten.argmin.default": partial(place_of_extreme, "LT"),
    "aten.cummax.default": partial(cumulative_extreme, "GE"),
    "aten.cummin.default": partial(cumulative_extreme, "LE"),
    "aten.cumprod.default": partial(cumulative, "mul", 1),
    "aten.cumsum.default": partial(cumulative, "add", 0),
    "aten.max.default": partial(extreme, "max"),
    "aten.max.dim": partial(extreme_with_place, "GT"),
    "aten.mean.default": mean,
    "aten.mean.dim": mean,
    "aten.min.default": partial(extreme, "min"),
    "aten.min.dim": partial(extreme_with_place, "LT"),
    "aten.prod.default": product,
    "aten.prod.dim_int": product,
    "aten.sum.default": total,
    "aten.sum.dim_IntList": total,
    "aten.var.correction": variance,
    "aten.var.dim": variance,
    "aten.var_mean.correction": variance_and_mean,
    "prims.var.default": prims_variance,
}
