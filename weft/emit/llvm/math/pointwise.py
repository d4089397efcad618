"""Elementwise ops as vector instructions: the table of emitters, and of unsupported cases."""

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
    """An elementwise op on values in registers; Unsupported for types without an emitter.

    Floats of fewer than 32 bits are computed in f32 and rounded to their type, except for bf16 with
    excess precision.
    """
    made = unrounded(v, op, args, arg_dtypes, out_dtype)
    if _is_exact(op, out_dtype):
        return made
    return in_type(v, made, out_dtype)


def in_type(v: Vectors, held: Held, dtype: DType) -> Held:
    """A value as other steps read it."""
    if not is_rounded(dtype, excess_precision=v.code.excess_precision):
        return held
    return (round_to(v, held[0], dtype),)


def unrounded(
    v: Vectors, op: Op, args: list[Held], arg_dtypes: Sequence[DType], out_dtype: DType
) -> Held:
    """An elementwise op without the final rounding, for accumulation."""
    emit = EMIT.get(type(op))
    if emit is None or (isinstance(op, CONSTANTS) and not op.value.is_splat):
        raise refused(op, refuses(op, tuple(arg_dtypes), out_dtype) or "")
    return emit(v, op, args, arg_dtypes, out_dtype)


def _is_exact(op: Op, dtype: DType) -> bool:
    """Whether an op on a narrow type needs no rounding, or rounds by itself."""
    if type(op) in _CHOICES:
        return True
    # Small formats may lack -0, or have a non-integral maximum.
    return dtype.bits == 16 and type(op) in _WHOLE


def refuses(op: Op, arg_dtypes: tuple[DType, ...], dtype: DType) -> str | None:
    """Why an op on these types cannot be emitted; None if it can."""
    emit = EMIT.get(type(op))
    if emit is None:
        return UNSUPPORTED.get(type(op), "it is not elementwise")
    if isinstance(op, CONSTANTS) and not op.value.is_splat:
        return "elements that differ"
    if isinstance(op, broadcasting.Broadcasting):
        return refuses(op.applied(), arg_dtypes, dtype)
    return emit.refuses(arg_dtypes, dtype)


CONSTANTS = (shape.Constant, special.ChloConstant, special.ConstantLike)


def _constant(
    v: Vectors, op: Op, args: list[Held], arg_dtypes: Sequence[DType], dtype: DType
) -> Held:
    assert isinstance(op, CONSTANTS)
    return fill(v, op.value.elements[0], dtype)


def _broadcast(
    v: Vectors, op: Op, args: list[Held], arg_dtypes: Sequence[DType], dtype: DType
) -> Held:
    """The elementwise op; its operands were broadcast by their loads."""
    assert isinstance(op, broadcasting.Broadcasting)
    return unrounded(v, op.applied(), args, arg_dtypes, dtype)


# Ops computed outside of kernels, and why.
UNSUPPORTED: dict[type[Op], str] = {
    special.AsinAcosKernel: "a part of complex arc functions, of no use by itself",
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
