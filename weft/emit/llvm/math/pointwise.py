"""Every elementwise op as instructions on vectors: a table of what is emitted, and of what not."""

from __future__ import annotations

from collections.abc import Sequence

from weft.emit.llvm.math import (
    pointwise_arithmetic,
    pointwise_convert,
    pointwise_functions,
    pointwise_integer,
)
from weft.emit.llvm.math.pointwise_kinds import Emit, refused
from weft.emit.llvm.writer.narrow import round_to
from weft.emit.llvm.writer.storage import Held, fill
from weft.emit.llvm.writer.vector import Vectors
from weft.ir.op import Op
from weft.ir.types import DType
from weft.kernels.kernel import is_rounded
from weft.ops import shape
from weft.ops.elementwise import broadcasting, convert, pointwise, special


def apply(
    v: Vectors, op: Op, args: list[Held], arg_dtypes: Sequence[DType], out_dtype: DType
) -> Held:
    """An elementwise op of values in registers; Unsupported if it has none for these types.

    Floats of fewer than 32 bits are computed in f32 and rounded to their type, but for bf16 where
    it may keep more.
    """
    made = unrounded(v, op, args, arg_dtypes, out_dtype)
    if _is_exact(op, out_dtype):
        return made
    return in_type(v, made, out_dtype)


def in_type(v: Vectors, held: Held, dtype: DType) -> Held:
    """A value as another step may read it."""
    if not is_rounded(dtype, excess_precision=v.code.excess_precision):
        return held
    return (round_to(v, held[0], dtype),)


def unrounded(
    v: Vectors, op: Op, args: list[Held], arg_dtypes: Sequence[DType], out_dtype: DType
) -> Held:
    """An elementwise op whose result may have more bits than its type, as sums have on the way."""
    emit = EMIT.get(type(op))
    if emit is None or (isinstance(op, CONSTANTS) and not op.value.is_splat):
        raise refused(op, refuses(op, tuple(arg_dtypes), out_dtype) or "")
    return emit(v, op, args, arg_dtypes, out_dtype)


def _is_exact(op: Op, dtype: DType) -> bool:
    """Whether an op of numbers of a narrow type gives such a number, or rounds by itself."""
    if type(op) in _CHOICES:
        return True
    # Small formats may have no -0, and a largest number that is no integer.
    return dtype.bits == 16 and type(op) in _WHOLE


def refuses(op: Op, given: tuple[DType, ...], made: DType) -> str | None:
    """Why an op of such operands cannot be computed in registers; None if it can."""
    emit = EMIT.get(type(op))
    if emit is None:
        return UNSUPPORTED.get(type(op), "it is not elementwise")
    if isinstance(op, CONSTANTS) and not op.value.is_splat:
        return "elements that differ"
    if isinstance(op, broadcasting.Broadcasting):
        return refuses(op.applied(), given, made)
    return emit.refuses(given, made)


CONSTANTS = (shape.Constant, special.ChloConstant, special.ConstantLike)


def _constant(v: Vectors, op: Op, args: list[Held], given: Sequence[DType], made: DType) -> Held:
    assert isinstance(op, CONSTANTS)
    return fill(v, op.value.elements[0], made)


def _broadcast(v: Vectors, op: Op, args: list[Held], given: Sequence[DType], made: DType) -> Held:
    """The elementwise op; whoever loads the operands has stretched them."""
    assert isinstance(op, broadcasting.Broadcasting)
    return unrounded(v, op.applied(), args, given, made)


# Ops that are computed outside of kernels, and why.
UNSUPPORTED: dict[type[Op], str] = {
    special.AsinAcosKernel: "a part of complex arc functions, of no use by itself",
    special.Polygamma: "a sum of many powers, which numpy computes as fast",
    special.Zeta: "a sum of many powers, which numpy computes as fast",
    broadcasting.BroadcastPolygamma: "as polygamma",
    broadcasting.BroadcastZeta: "as zeta",
}

_CHOICES: frozenset[type[Op]] = frozenset(
    {
        *(pointwise.Abs, pointwise.Maximum, pointwise.Minimum, pointwise.Clamp, pointwise.Select),
        *(convert.Convert, convert.Real, convert.ReducePrecision, shape.BitcastConvert),
        *(shape.Constant, special.ChloConstant, special.ConstantLike, special.NextAfter),
    }
)
_WHOLE: frozenset[type[Op]] = frozenset(
    {
        *(pointwise.Negate, pointwise.Sign, pointwise.Ceil, pointwise.Floor),
        *(pointwise.RoundNearestAfz, pointwise.RoundNearestEven, convert.Imag, special.Conj),
    }
)

EMIT: dict[type[Op], Emit] = {
    **pointwise_arithmetic.EMIT,
    **pointwise_integer.EMIT,
    **pointwise_convert.EMIT,
    **pointwise_functions.EMIT,
    **{op: Emit(_broadcast) for op in broadcasting.OPS if op not in UNSUPPORTED},
    **dict.fromkeys(CONSTANTS, Emit(_constant)),
}
