"""Every elementwise op as instructions on vectors: a table of what is emitted, and of what not."""

from __future__ import annotations

from collections.abc import Sequence

from weft.emit.llvm import (
    pointwise_arithmetic,
    pointwise_convert,
    pointwise_functions,
    pointwise_integer,
)
from weft.emit.llvm.pointwise_kinds import Emit, refused
from weft.emit.llvm.storage import Held, fill
from weft.emit.llvm.vector import Vectors
from weft.ir.op import Op
from weft.ir.types import DType
from weft.ops import broadcasting, shape, special


def apply(
    v: Vectors, op: Op, args: list[Held], arg_dtypes: Sequence[DType], out_dtype: DType
) -> Held:
    """An elementwise op of values in registers; Unsupported if it has none for these types.

    Floats of fewer than 32 bits are computed in f32 and not rounded to their type, except by ops
    whose meaning is to round or to look at bits.
    """
    emit = EMIT.get(type(op))
    if emit is None:
        raise refused(op, UNSUPPORTED.get(type(op), "it is not elementwise"))
    return emit(v, op, args, arg_dtypes, out_dtype)


def _constant(v: Vectors, op: Op, args: list[Held], given: Sequence[DType], made: DType) -> Held:
    assert isinstance(op, shape.Constant | special.Constant | special.ConstantLike)
    if not op.value.is_splat:
        raise refused(op, "elements that differ")
    return fill(v, op.value.elements[0], made)


def _broadcast(v: Vectors, op: Op, args: list[Held], given: Sequence[DType], made: DType) -> Held:
    """The elementwise op; whoever loads the operands has stretched them."""
    assert isinstance(op, broadcasting.Broadcasting)
    return apply(v, op.applied(), args, given, made)


# Ops that are computed outside of kernels, and why.
UNSUPPORTED: dict[type[Op], str] = {
    special.AsinAcosKernel: "a part of complex arc functions, of no use by itself",
    special.Polygamma: "a sum of many powers, which numpy computes as fast",
    special.Zeta: "a sum of many powers, which numpy computes as fast",
    broadcasting.BroadcastPolygamma: "as polygamma",
    broadcasting.BroadcastZeta: "as zeta",
}

EMIT: dict[type[Op], Emit] = {
    **pointwise_arithmetic.EMIT,
    **pointwise_integer.EMIT,
    **pointwise_convert.EMIT,
    **pointwise_functions.EMIT,
    **{op: _broadcast for op in broadcasting.OPS if op not in UNSUPPORTED},
    shape.Constant: _constant,
    special.Constant: _constant,
    special.ConstantLike: _constant,
}
