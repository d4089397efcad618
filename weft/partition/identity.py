"""What pieces are combined with, and what combining with it changes nothing."""

from __future__ import annotations

from weft.ir.module import Value
from weft.ir.rule import Combine
from weft.ir.types import DType
from weft.ops.shape import BroadcastInDim, Constant
from weft.ops.sharding import ShardyConstant

# The op that puts pieces together.
COMBINE_OPS: dict[Combine, str] = {
    "sum": "add",
    "max": "maximum",
    "min": "minimum",
    "prod": "multiply",
    "and": "and",
    "or": "or",
    "xor": "xor",
}


def is_all(value: Value, number: object) -> bool:
    """Whether every element of a value is known to be that number."""
    node = value.node
    while node is not None and isinstance(node.op, BroadcastInDim):
        node = node.operands[0].node
    if node is None or not isinstance(node.op, Constant | ShardyConstant):
        return False
    return bool((node.op.value.elements == number).all())


def identity(combine: Combine, dtype: DType) -> object:
    """The number that changes nothing when it is combined with another."""
    match combine:
        case "sum" | "or" | "xor":
            return 0
        case "prod":
            return 1
        case "and":
            return -1 if dtype.kind == "int" else dtype.limits[1]
        case "max":
            return dtype.limits[0]
        case "min":
            return dtype.limits[1]
