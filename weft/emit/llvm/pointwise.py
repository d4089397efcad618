"""Every elementwise op as instructions on vectors: a table of what is emitted, and of what not."""

from __future__ import annotations

from collections.abc import Sequence

from weft.emit.llvm import (
    pointwise_arithmetic,
    pointwise_convert,
    pointwise_functions,
    pointwise_integer,
)
from weft.emit.llvm.pointwise_kinds import Emit
from weft.emit.llvm.storage import Held
from weft.emit.llvm.vector import Vectors
from weft.errors import Unsupported
from weft.ir.op import Op
from weft.ir.types import DType

EMIT: dict[type[Op], Emit] = {
    **pointwise_arithmetic.EMIT,
    **pointwise_integer.EMIT,
    **pointwise_convert.EMIT,
    **pointwise_functions.EMIT,
}


def apply(
    v: Vectors, op: Op, args: list[Held], arg_dtypes: Sequence[DType], out_dtype: DType
) -> Held:
    """An elementwise op of values in registers.

    Floats of fewer than 32 bits are computed in f32 and not rounded to their type, except by ops
    whose meaning is to round or to look at bits.
    """
    emit = EMIT.get(type(op))
    if emit is None:
        raise Unsupported(
            f"{op.name} has no kernel for CPUs",
            help="it runs outside of kernels; this is a bug in weft if you see this message",
        )
    return emit(v, op, args, arg_dtypes, out_dtype)
