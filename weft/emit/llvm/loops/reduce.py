"""Reductions in registers: start, update, and the final horizontal reduction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from weft.emit.llvm.jit.supplied import larger, smaller
from weft.emit.llvm.math.pointwise import apply
from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.storage import Held
from weft.emit.llvm.writer.vector import BITS, Vector, Vectors
from weft.errors import Unsupported
from weft.ir.rule import Combine
from weft.ir.types import DType
from weft.kernels.kernel import Kernel, Pick, Reduce, value_dtype
from weft.ops.combiners import COMBINERS, identity

# The accumulator: one value; of a pick, the key, the value and the position; of a NaN-tracking one,
# the extremum of the numbers and the mask of lanes without NaN so far.
HeldSums: TypeAlias = tuple[Held, ...]
FEW = 1 << 24  # positions that fit i32, with those of lanes past the end
REGISTER = 512  # bits; longer vectors need processors with mask registers


def begin(v: Vectors, kernel: Kernel, n: int, across: bool = False) -> HeldSums:
    """The initial accumulator; `across` if lanes are combined."""
    step = kernel.steps[n]
    if isinstance(step, Reduce):
        first = storage.fill(v, neutral(step.how, step.dtype), step.dtype)
        if not (across and _is_marked(v, step)):
            return (first,)
        return first, (Vectors(v.code, REGISTER // first[0].bits).constant(True, "i1"),)
    assert isinstance(step, Pick)
    key, where = _key_dtype(kernel, step), position_kind(kernel, step)
    return (
        storage.fill(v, identity(step.how, key), key),
        storage.fill(v, 0, step.dtype),
        # The largest position: any element comes before it, even one whose key is the identity.
        (v.constant((1 << BITS[where] - 1) - 1, where),),
    )


def _is_marked(v: Vectors, step: Reduce) -> bool:
    """Whether NaN is tracked in a mask beside the extremum, which is faster."""
    bits = BITS[storage.register_kind(step.dtype)]
    return step.how in ("max", "min") and step.dtype.is_float and v.width * bits > REGISTER


def position_kind(kernel: Kernel, step: Pick) -> str:
    """The LLVM type of positions along the factors of a pick."""
    count = math.prod([kernel.factors[f].size for f in step.over])
    return "i32" if count <= FEW else "i64"


def neutral(how: Combine, dtype: DType) -> bool | complex | float | int:
    """The identity element; -0 for a sum, so that a sum of -0 stays -0."""
    if how == "add" and dtype.is_complex:
        return complex(-0.0, -0.0)
    if how == "add" and dtype.is_float:
        return -0.0
    return identity(how, dtype)


def combined(v: Vectors, how: Combine, dtype: DType, a: Held, b: Held) -> Held:
    """Combine two values."""
    return apply(v, COMBINERS[how], [a, b], [dtype, dtype], dtype)


def update(
    v: Vectors, kernel: Kernel, n: int, sums: HeldSums, inputs: Sequence[Held], mask: Vector | None
) -> HeldSums:
    """Update the accumulator, for the lanes of a mask."""
    step = kernel.steps[n]
    if isinstance(step, Pick):
        return _better(v, step.how, _key_dtype(kernel, step), sums, tuple(inputs), mask)
    assert isinstance(step, Reduce)
    value = inputs[0]
    if mask is not None:
        rest = storage.fill(v, neutral(step.how, step.dtype), step.dtype)
        value = _select(v, mask, value, rest)
    if len(sums) == 2:
        (best,), (numbers,) = sums
        return (_further(v, step.how, best, value[0]),), (_numbers(v, value[0], numbers),)
    return (combined(v, step.how, step.dtype, sums[0], value),)


def finish(v: Vectors, kernel: Kernel, n: int, sums: HeldSums, across: bool) -> HeldSums:
    """The final value: lanes combined if they were reduced."""
    step = kernel.steps[n]
    if across and isinstance(step, Reduce) and step.how == "add" and sums[0][0].is_float:
        return (tuple([v.total_sum(part) for part in sums[0]]),)
    if isinstance(step, Reduce) and len(sums) == 2:
        return ((_furthest(v, step.how, *sums[0], *sums[1]),),)
    while across and sums[0][0].width > 1:
        half = Vectors(v.code, sums[0][0].width // 2)
        low, high = (tuple([_half(v, held, part) for held in sums]) for part in (0, 1))
        sums = update(half, kernel, n, low, high, None)
    return sums


def _further(v: Vectors, how: Combine, a: Vector, b: Vector) -> Vector:
    return larger(v, a, b) if how == "max" else smaller(v, a, b)


def _numbers(v: Vectors, x: Vector, seen: Vector) -> Vector:
    """The lanes where no register of a longer vector, and nothing before, was NaN."""
    one = Vectors(v.code, seen.width)
    parts = [v.shuffle(x, x, range(n, n + one.width)) for n in range(0, x.width, one.width)]
    # one unordered comparison covers two registers
    for a, b in zip(parts[::2], parts[1::2], strict=True):
        seen = one.binary("and", seen, one.compare("ord", a, b))
    return seen


def _furthest(v: Vectors, how: Combine, best: Vector, numbers: Vector) -> Vector:
    """The extremum of all lanes; NaN unless all were numbers."""
    while best.width > numbers.width:
        low, high = (_half_of(v, best, part) for part in (0, 1))
        best = _further(Vectors(v.code, low.width), how, low, high)
    one = Vectors(v.code, best.width)
    step = best.width // 2
    while step:  # full registers throughout
        rotated = one.shuffle(best, best, [(n + step) % best.width for n in range(best.width)])
        best, step = _further(one, how, best, rotated), step // 2
    found = Vector(v.code.let(f"extractelement {best.typed}, i64 0"), best.kind)
    alone = Vectors(v.code, 1)
    return alone.select(one.total("and", numbers), found, alone.constant(math.nan, best.kind))


def _key_dtype(kernel: Kernel, step: Pick) -> DType:
    dtype = value_dtype(kernel.steps[step.key])
    if dtype.is_complex:
        raise Unsupported("complex numbers have no order to pick by", help="pick by a real number")
    return dtype


def _better(
    v: Vectors, how: Combine, dtype: DType, a: HeldSums, b: HeldSums, mask: Vector | None
) -> HeldSums:
    """The better of two candidates: by key, NaN first, then by position."""
    (x,), (y,) = a[0], b[0]
    if dtype.is_float:
        order, same = ("ogt" if how == "max" else "olt"), "oeq"
    else:
        unsigned = dtype.kind in ("uint", "bool")
        order = ("u" if unsigned else "s") + ("gt" if how == "max" else "lt")
        same = "eq"
    wins, ties = v.compare(order, y, x), v.compare(same, y, x)
    if dtype.is_float:
        old, new = v.compare("uno", x, x), v.compare("uno", y, y)
        ties = v.binary("or", ties, v.binary("and", old, new))
        not_old = v.binary("xor", old, v.constant(True, "i1"))
        wins = v.binary("or", wins, v.binary("and", new, not_old))
    first = v.compare("slt", b[2][0], a[2][0])
    wins = v.binary("or", wins, v.binary("and", ties, first))
    if mask is not None:
        wins = v.binary("and", wins, mask)
    return tuple([_select(v, wins, new, old) for new, old in zip(b, a, strict=True)])


def _select(v: Vectors, condition: Vector, yes: Held, no: Held) -> Held:
    return tuple([v.select(condition, a, b) for a, b in zip(yes, no, strict=True)])


def _half(v: Vectors, held: Held, part: int) -> Held:
    """The lower or the upper half of the lanes."""
    return tuple([_half_of(v, one, part) for one in held])


def _half_of(v: Vectors, a: Vector, part: int) -> Vector:
    count = a.width // 2
    if count == 1:
        return Vector(v.code.let(f"extractelement {a.typed}, i64 {part}"), a.kind)
    return v.shuffle(a, a, range(part * count, (part + 1) * count))
