"""Which elementwise ops this target computes in registers, found by emitting them."""

from __future__ import annotations

from functools import cache

from weft.emit.llvm.math.pointwise import apply
from weft.emit.llvm.writer.code import Code
from weft.emit.llvm.writer.storage import load
from weft.emit.llvm.writer.vector import Vectors
from weft.errors import Unsupported
from weft.ir.op import Op
from weft.ir.types import DType


@cache
def computes(op: Op, given: tuple[DType, ...], made: DType) -> bool:
    """Whether an op of such operands can be a step of a kernel."""
    vectors = Vectors(Code("probe", ["ptr %p"]), 4)
    try:
        args = [load(vectors, "%p", "0", dtype) for dtype in given]
        apply(vectors, op, args, given, made)
    except Unsupported:
        return False
    return True
