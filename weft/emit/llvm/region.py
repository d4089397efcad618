"""Regions of scalars, written where they are used: combiners, comparators, selections."""

from __future__ import annotations

from collections.abc import Sequence

from weft.emit.llvm import storage
from weft.emit.llvm.pointwise import apply
from weft.emit.llvm.storage import Held
from weft.emit.llvm.vector import Vectors
from weft.ir.module import Region, Value
from weft.ir.types import DType, TensorType
from weft.ops.convert import Convert
from weft.ops.shape import Constant


def inline(v: Vectors, region: Region, args: Sequence[Held]) -> list[Held]:
    """The results of a region on vectors of arguments, lane by lane."""
    known = dict(zip(region.args, args, strict=True))
    return [evaluated(v, value, known) for value in region.results]


def evaluated(v: Vectors, value: Value, known: dict[Value, Held]) -> Held:
    """A value of a region, given its arguments; what is computed on the way is remembered."""
    if value in known:
        return known[value]
    node = value.node
    assert node is not None, "a region reads its arguments, its nodes, and constants"
    dtype = dtype_of(value)
    if isinstance(node.op, Constant):
        made = storage.fill(v, node.op.value.array.reshape(-1)[0], dtype)
    else:
        given = [evaluated(v, operand, known) for operand in node.operands]
        made = apply(v, node.op, given, [dtype_of(o) for o in node.operands], dtype)
    known[value] = made
    return made


def converted(v: Vectors, held: Held, given: DType, wanted: DType) -> Held:
    """A value in another type."""
    if given is wanted:
        return held
    return apply(v, Convert(TensorType((), wanted)), [held], [given], wanted)


def dtype_of(value: Value) -> DType:
    """The element type of a value of a region."""
    assert isinstance(value.type, TensorType)
    return value.type.dtype
