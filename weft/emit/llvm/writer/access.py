"""Memory accesses of steps: buffer indices, guards, and address computation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.apart import is_near, load_apart, store_apart
from weft.emit.llvm.writer.nest import plus, times
from weft.emit.llvm.writer.storage import Held
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.ir.types import DType
from weft.kernels.kernel import Affine, Guard, Shift
from weft.records import dataclass

LINE = 64  # bytes of a cache line


@dataclass(frozen=True, slots=True)
class LoopPoint:
    """The current loop point: the index of each open factor, and the vectorized one."""

    index: Mapping[int, str]
    ranges: Mapping[int, tuple[int, int]]  # known index ranges of factors: low..high-1
    vector: int | None = None
    mask: Vector | None = None  # lanes inside of the vectorized factor

    def stride(self, at: Affine) -> int:
        """The stride between lanes."""
        return 0 if self.vector is None else at.strides[self.vector]


@dataclass(frozen=True, slots=True)
class LaneIndex:
    """A vector index: base + lane * stride, or one for each lane."""

    base: str
    stride: int
    lanes: Vector | None = None

    def all_lanes(self, v: Vectors) -> Vector:
        """The index of every lane."""
        base = v.splat(Vector(self.base, "i64"))
        if self.stride and v.width > 1:
            base = v.add(base, v.mul(v.lanes(), v.constant(self.stride, "i64")))
        return base if self.lanes is None else v.add(base, self.lanes)


def base_of(v: Vectors, at: Affine, point: LoopPoint) -> str:
    """An affine index at lane 0."""
    base = ""
    for factor, stride in enumerate(at.strides):
        if stride and point.index[factor] != "0":
            term = times(v.code, point.index[factor], stride)
            base = plus(v.code, base, term) if base else term
    if at.offset and base:
        return plus(v.code, base, at.offset)
    return base or str(at.offset)


# Guards


def limits(at: Affine, ranges: Mapping[int, tuple[int, int]]) -> tuple[int, int]:
    """The least and the greatest value of an affine index."""
    low = high = at.offset
    for factor, stride in enumerate(at.strides):
        if stride:
            first, end = ranges[factor]
            ends = (stride * first, stride * (end - 1))
            low, high = low + min(ends), high + max(ends)
    return low, high


def guards_hold(guards: Sequence[Guard], point: LoopPoint) -> bool | None:
    """Whether all guards hold throughout (True), one never does (False), or unknown (None)."""
    verdict: bool | None = True
    for guard in guards:
        low, high = limits(guard.index, point.ranges)
        if high < guard.low or low >= guard.high:
            return False
        if low < guard.low or high >= guard.high:
            verdict = None
    return verdict


def boundaries(guard: Guard, factor: int) -> list[int]:
    """The indices of a factor at which a guard begins or ceases to hold.

    Empty if the guard depends on other factors, too.
    """
    at = guard.index
    stride = at.strides[factor]
    if stride == 0 or any(s for n, s in enumerate(at.strides) if n != factor):
        return []
    if stride > 0:
        # Where stride * index + offset reaches the bound: the quotient rounded up.
        return [-((at.offset - bound) // stride) for bound in (guard.low, guard.high)]
    return [(at.offset - bound) // -stride + 1 for bound in (guard.low, guard.high)]


def holds(v: Vectors, guards: Sequence[Guard], point: LoopPoint) -> Vector | None:
    """The mask where all guards hold; None if everywhere."""
    condition: Vector | None = None
    for guard in guards:
        low, high = limits(guard.index, point.ranges)
        index: Vector | None = None
        for needed, how, bound in (
            (low < guard.low, "sge", guard.low),
            (high >= guard.high, "slt", guard.high),
        ):
            if not needed:
                continue
            # Bounds out of range may be clamped; those in between fit the type.
            index = index or _compared(v, guard.index, point)
            # A bound far outside might not fit i32; just outside it decides the same.
            bound = min(max(bound, low - 1), high + 1)
            condition = both(v, condition, v.compare(how, index, _constant(v, index, bound)))
    return None if condition is None else _wide(v, condition)


def _compared(v: Vectors, at: Affine, point: LoopPoint) -> Vector:
    """An affine index as a scalar if it is uniform over lanes, else in a narrow type."""
    base, stride = base_of(v, at, point), point.stride(at)
    if stride == 0 or v.width == 1:
        return Vector(base, "i64")
    return counted(v, base, stride, kind_of(v, stride, limits(at, point.ranges)))


def kind_of(v: Vectors, stride: int, within: tuple[int, int]) -> str:
    """The narrowest LLVM type for these limits; lanes past the end of a factor count on."""
    # i32 halves the vectors that compares take; the lanes behind a factor's end are counted, too,
    # and must not wrap around into the guard's range.
    most = max(abs(within[0]), abs(within[1])) + abs(stride) * v.width
    return "i32" if most < 1 << 31 else "i64"


def counted(v: Vectors, base: str, stride: int, kind: str) -> Vector:
    """base + lane * stride in this integer type, from i64s."""
    start = Vector(base, "i64")
    if kind == "i32":
        start = Vector(v.code.let(f"trunc i64 {base} to i32"), "i32")
    if v.width == 1:
        return start
    listed = ", ".join(f"{kind} {n * stride}" for n in range(v.width))
    return v.add(v.splat(start), Vector(f"<{listed}>", kind, v.width))


def _constant(v: Vectors, like: Vector, value: int) -> Vector:
    return Vector(str(value), like.kind) if like.width == 1 else v.constant(value, like.kind)


def both(v: Vectors, a: Vector | None, b: Vector | None) -> Vector | None:
    """The conjunction of two masks, each a scalar, a vector, or None."""
    if a is None or b is None:
        return a or b
    if a.width != b.width:
        a, b = _wide(v, a), _wide(v, b)
    return v.binary("and", a, b)


def _wide(v: Vectors, condition: Vector) -> Vector:
    return condition if condition.width == v.width else v.splat(condition)


# Loads and stores


def shifted(
    v: Vectors, place: LaneIndex, shift: Shift, index: Vector, signed: bool
) -> tuple[LaneIndex, Vector | None]:
    """An index shifted by a dynamic one, and the mask of valid lanes."""
    one = v if index.width == v.width else Vectors(v.code, index.width)
    if index.bits < 64:
        index = one.cast("sext" if signed else "zext", index, "i64")
    limit = one.constant(shift.limit, "i64")
    low = one.intrinsic("smax", index, one.constant(0, "i64")) if signed else index
    # Unsigned indices are compared as such: one above 2^63 would be negative, and be clamped to 0.
    kept = one.intrinsic("smin" if signed else "umin", low, limit)
    inside = None if shift.clamped else one.compare("eq", kept, index)
    moved = one.mul(kept, one.constant(shift.stride, "i64"))
    if index.width == 1:
        return LaneIndex(plus(v.code, moved.text, place.base), place.stride, place.lanes), inside
    lanes = moved if place.lanes is None else v.add(place.lanes, moved)
    return LaneIndex(place.base, place.stride, lanes), inside


def prefetch(v: Vectors, base: str, place: LaneIndex, dtype: DType, ahead: int) -> None:
    """Prefetch: request elements early, while other lanes are computed."""
    if place.stride != 1 or place.lanes is not None:
        return
    kind = storage.memory_kind(dtype)
    first = Vectors(v.code, 1).at(base, place.base, kind)
    v.code.declare("declare void @llvm.prefetch.p0(ptr, i32 immarg, i32 immarg, i32 immarg)")
    for line in range(0, v.width * dtype.numpy.itemsize, LINE):
        soon = v.code.let(f"getelementptr i8, ptr {first}, i64 {ahead + line}")
        v.code.do(f"call void @llvm.prefetch.p0(ptr {soon}, i32 0, i32 3, i32 1)")


def read(v: Vectors, base: str, place: LaneIndex, dtype: DType, mask: Vector | None) -> Held:
    """Load elements, one for each lane; 0 where the mask does not hold."""
    if mask is not None:
        mask = _wide(v, mask)
    if v.width == 1 or (place.lanes is None and place.stride == 1):
        return storage.load(v, base, _scalar(v, place), dtype, mask)
    if place.lanes is None and place.stride == -1:
        first = plus(v.code, place.base, 1 - v.width)
        turned = storage.load(v, base, first, dtype, mask and _reversed(v, mask))
        return tuple([_reversed(v, part) for part in turned])
    if mask is None and place.lanes is None and is_near(v, place.stride, dtype):
        return load_apart(v, base, place.base, place.stride, dtype)
    return storage.gather(v, base, place.all_lanes(v), dtype, mask)


def write(
    v: Vectors,
    value: Held,
    base: str,
    place: LaneIndex,
    dtype: DType,
    mask: Vector | None,
    *,
    streaming: bool = False,
) -> None:
    """Store the lanes to a buffer, where the mask holds."""
    if mask is not None:
        mask = _wide(v, mask)
    if v.width == 1 or place.stride == 1:
        # A masked store cannot be non-temporal.
        streaming = streaming and mask is None
        storage.store(v, value, base, place.base, dtype, mask, streaming=streaming)
    elif place.stride == -1:
        first = plus(v.code, place.base, 1 - v.width)
        turned = tuple([_reversed(v, part) for part in value])
        storage.store(v, turned, base, first, dtype, mask and _reversed(v, mask))
    elif mask is None and place.lanes is None and is_near(v, place.stride, dtype):
        store_apart(v, value, base, place.base, place.stride, dtype)
    else:
        storage.scatter(v, value, base, place.all_lanes(v), dtype, mask)


def _scalar(v: Vectors, place: LaneIndex) -> str:
    return place.base if place.lanes is None else plus(v.code, place.base, place.lanes.text)


def _reversed(v: Vectors, a: Vector) -> Vector:
    if a.text.startswith("<"):  # a constant stays a constant
        return Vector(f"<{', '.join(reversed(a.text[1:-1].split(', ')))}>", a.kind, a.width)
    return v.shuffle(a, a, range(v.width)[::-1])
