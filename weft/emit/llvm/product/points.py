"""Points of a contraction's steps: an index for each factor, scalar or per lane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.nest import divided, plus, times
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.kernels.kernel import Affine, Factor, Guard
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class CollapsedFactors:
    """Factors that lanes count as one, outermost first, and the number of lane 0."""

    role: tuple[int, ...]
    sizes: tuple[int, ...]
    number: str

    def stride(self, affine: Affine) -> int | None:
        """The stride between lanes, if it is uniform."""
        step = stride = affine.strides[self.role[-1]]
        for factor, size in zip(reversed(self.role[:-1]), reversed(self.sizes[1:]), strict=True):
            step *= size
            if affine.strides[factor] != step:
                return None
        return stride


@dataclass(frozen=True, slots=True)
class FactorPoint:
    """Indices of factors: a scalar, one that grows by 1 a lane, or arbitrary per lane."""

    numbers: dict[int, str] = field(default_factory=dict)
    ramp: int | None = None  # the factor that grows by 1 a lane
    lanes: dict[int, Vector] = field(default_factory=dict)
    together: CollapsedFactors | None = None  # the linearization of the lanes' factors

    def __or__(self, other: FactorPoint) -> FactorPoint:
        ramp = self.ramp if other.ramp is None else other.ramp
        lanes = self.lanes | other.lanes
        return FactorPoint(
            self.numbers | other.numbers, ramp, lanes, other.together or self.together
        )


@dataclass(frozen=True, slots=True)
class AffineLanes:
    """An affine index in every lane: base + step * lane + lanes."""

    base: str
    step: int = 0
    lanes: Vector | None = None


def flat_point(
    code: Writer, factors: Sequence[Factor], role: Sequence[int], number: str
) -> FactorPoint:
    """The point of a linear number over the factors of a role."""
    numbers: dict[int, str] = {}
    for n, factor in reversed(list(enumerate(role))):
        if n:
            number, index = divided(code, number, factors[factor].size)
        else:
            index = number
        numbers[factor] = index
    return FactorPoint(numbers)


def flat_lanes(
    v: Vectors,
    factors: Sequence[Factor],
    role: Sequence[int],
    number: str,
    *,
    aligned: bool = True,
) -> FactorPoint:
    """The points of consecutive linear numbers, one a lane; `aligned` to the width."""
    if v.width == 1 or not role:
        return flat_point(v.code, factors, role, number)
    inner = role[-1]
    # Lanes stay inside of one row of the innermost factor: outer indices are equal in all of them.
    if len(role) == 1 or (aligned and factors[inner].size % v.width == 0):
        point = flat_point(v.code, factors, role, number)
        return FactorPoint(point.numbers, inner)
    return _each_lane(v, factors, role, number)


def lane_count(factors: Sequence[Factor], role: Sequence[int], most: int) -> int:
    """The vector width along a role, chosen so that lanes are contiguous if that pays off."""
    if len(role) < 2:
        return most
    count = most
    while count > 1 and factors[role[-1]].size % count:
        count //= 2
    return count if count >= 4 else most


def _each_lane(
    v: Vectors, factors: Sequence[Factor], role: Sequence[int], number: str
) -> FactorPoint:
    # 32-bit division takes few instructions, 64-bit many.
    small = Vector(v.code.let(f"trunc i64 {number} to i32"), "i32")
    left = v.add(v.splat(small), v.lanes("i32"))
    indices: dict[int, Vector] = {}
    for n, factor in reversed(list(enumerate(role))):
        index = left
        if n:
            size = v.constant(factors[factor].size, "i32")
            quotient = v.binary("udiv", left, size)
            index = v.sub(left, v.mul(quotient, size))
            left = quotient
        indices[factor] = v.cast("zext", index, "i64")
    sizes = tuple([factors[f].size for f in role])
    return FactorPoint({}, None, indices, CollapsedFactors(tuple(role), sizes, number))


def place(v: Vectors, affine: Affine, point: FactorPoint) -> AffineLanes:
    """An affine index at a point; unnamed factors are 0."""
    code = v.code
    base, step = "0", 0
    lanes: Vector | None = None
    # Where an access treats the lanes' factors as one, it is a ramp (or, with stride 0, a
    # broadcast) instead of a gather.
    even = None if point.together is None else point.together.stride(affine)
    if point.together is not None and even:
        base, step = times(code, point.together.number, even), even
    for factor, stride in enumerate(affine.strides):
        if stride == 0 or (even is not None and factor in point.lanes):
            continue
        if factor in point.lanes:
            far = v.mul(point.lanes[factor], v.constant(stride, "i64"))
            lanes = far if lanes is None else v.add(lanes, far)
        elif factor in point.numbers:
            base = plus(code, times(code, point.numbers[factor], stride), base)
            if factor == point.ramp:
                step = stride
    base = plus(code, base, affine.offset)
    return AffineLanes(base, step, lanes)


def indices(v: Vectors, at: AffineLanes) -> Vector:
    """The number in every lane, as i64."""
    found = v.splat(Vector(at.base, "i64")) if v.width > 1 else Vector(at.base, "i64")
    if at.step and v.width > 1:
        found = v.add(found, v.mul(v.lanes(), v.constant(at.step, "i64")))
    return found if at.lanes is None else v.add(found, at.lanes)


def split_guards(
    v: Vectors, guards: Sequence[Guard], point: FactorPoint
) -> tuple[list[str], list[Guard]]:
    """The conditions (i1) of guards that are equal in all lanes, and the other guards."""
    equal: list[str] = []
    others: list[Guard] = []
    one = Vectors(v.code, 1)
    for guard in guards:
        at = place(v, guard.index, point)
        if at.step or at.lanes is not None:
            others.append(guard)
        else:
            equal.append(_inside(one, at, guard).text)
    return equal, others


def holds(v: Vectors, guards: Sequence[Guard], point: FactorPoint) -> Vector | None:
    """The mask where all guards hold; None without guards."""
    mask: Vector | None = None
    for guard in guards:
        at = place(v, guard.index, point)
        inside = _inside(v, at, guard)
        mask = inside if mask is None else v.binary("and", mask, inside)
    return mask


def _inside(v: Vectors, at: AffineLanes, guard: Guard) -> Vector:
    """low <= index < high as one unsigned comparison."""
    varies = at.step != 0 or at.lanes is not None
    w = v if varies else Vectors(v.code, 1)
    index = indices(w, at)
    # An index below `low` wraps to a huge unsigned number.
    above = w.sub(index, w.constant(guard.low, "i64"))
    inside = w.compare("ult", above, w.constant(max(0, guard.high - guard.low), "i64"))
    return inside if varies else v.splat(inside)
