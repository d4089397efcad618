"""Sorting, top-k and medians."""

from __future__ import annotations

from weft.capture.torch.build import (
    AtenLowering,
    Build,
    LoweredResults,
    dim_of,
    dtype_of,
    shape_of,
    type_of,
)
from weft.ir.module import Region, Value
from weft.ir.types import I64, TensorType
from weft.ops.elementwise.pointwise import Compare
from weft.ops.sort import Sort


def sort(b: Build, x: Value, dim: int = -1, descending: bool = False) -> LoweredResults:
    """Sorted values, NaN last, and their indices."""
    sizes = shape_of(x)
    if not sizes:
        return x, b.splat(0, TensorType((), I64))
    dim = dim_of(dim, len(sizes))
    keys = _keys(b, x)
    index = b.iota(dim, sizes)
    # The values travel with their keys, which have lost the sign of zeros and the bits of NaNs.
    operands = (keys, index) if keys is x else (keys, index, x)
    region = _before("GT" if descending else "LT", tuple(type_of(v) for v in operands))
    made = b.all(Sort(dim, is_stable=True), *operands, regions=(region,))
    return made[0 if keys is x else 2], made[1]


def stable_sort(
    b: Build, x: Value, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> LoweredResults:
    """A stable sort; all sorts here are."""
    return sort(b, x, dim, descending)


def top_k(
    b: Build, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> LoweredResults:
    """The first k sorted values and their indices."""
    sizes = shape_of(x)
    values, places = _two(sort(b, x, dim, largest))
    if not sizes:
        return values, places
    dim = dim_of(dim, len(sizes))
    return b.slice(values, dim, 0, k), b.slice(places, dim, 0, k)


def kth_value(b: Build, x: Value, k: int, dim: int = -1, keepdim: bool = False) -> LoweredResults:
    """The k-th smallest element along a dim, and its index."""
    return _at(b, x, k - 1, dim, keepdim)


def median(b: Build, x: Value, dim: int | None = None, keepdim: bool = False) -> LoweredResults:
    """The lower median; NaN if there is one."""
    if dim is None:
        flat = b.reshape(x, (type_of(x).size,))
        return _two(median(b, flat, 0))[0]
    sizes = shape_of(x)
    if not sizes:
        return x, b.splat(0, TensorType((), I64))
    size = sizes[dim_of(dim, len(sizes))]
    value, place = _two(_at(b, x, (size - 1) // 2, dim, keepdim))
    if not dtype_of(x).is_float:
        return value, place
    # NaNs are sorted to the end: if there is one, it is the last element.
    last, where = _two(_at(b, x, size - 1, dim, keepdim))
    nan = b.is_nan(last)
    return b.select(nan, last, value), b.select(nan, where, place)


def _at(b: Build, x: Value, n: int, dim: int, keepdim: bool) -> LoweredResults:
    sizes = shape_of(x)
    values, places = _two(sort(b, x, dim))
    if not sizes:
        return values, places
    dim = dim_of(dim, len(sizes))
    shape = [1 if d == dim else s for d, s in enumerate(sizes) if keepdim or d != dim]
    taken = [b.reshape(b.slice(v, dim, n, n + 1), shape) for v in (values, places)]
    return taken[0], taken[1]


def _two(results: LoweredResults) -> tuple[Value, Value]:
    assert isinstance(results, tuple), "a pair"
    first, second = results
    assert first is not None and second is not None, "a pair of values"
    return first, second


def _keys(b: Build, x: Value) -> Value:
    """Sort keys: -0 equals 0, and all NaNs are equal and largest."""
    if not dtype_of(x).is_float:
        return x
    zero = b.like(x, 0)
    # TOTALORDER puts -0 before 0, and NaNs with a sign before all numbers.
    x_or_zero = b.select(b.compare("EQ", x, zero), zero, x)
    return b.select(b.is_nan(x), b.like(x, float("nan")), x_or_zero)


def _before(direction: str, types: tuple[TensorType, ...]) -> Region:
    scalars = [t.with_shape(()) for t in types for _ in range(2)]
    args = tuple([Value(t, None, n) for n, t in enumerate(scalars)])
    inner = Build()
    kind = "TOTALORDER" if types[0].dtype.is_float else None
    made = inner.op(Compare(direction, kind), args[0], args[1])
    return Region(args, inner.nodes, (made,))


LOWERINGS: dict[str, AtenLowering] = {
    "aten.kthvalue.default": kth_value,
    "aten.median.default": median,
    "aten.median.dim": median,
    "aten.sort.default": sort,
    "aten.sort.stable": stable_sort,
    "aten.topk.default": top_k,
}
