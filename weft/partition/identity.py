"""What pieces are combined with, and what combining with it changes nothing."""

from __future__ import annotations

import numpy as np

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
            return -1 if dtype.kind == "int" else _bound(dtype, low=False)
        case "max":
            return _bound(dtype, low=True)
        case "min":
            return _bound(dtype, low=False)


def _bound(dtype: DType, *, low: bool) -> object:
    """The least or the greatest number of a type."""
    if dtype.kind == "bool":
        return not low
    if dtype.kind in ("int", "uint"):
        bits = dtype.bits
        if dtype.kind == "uint":
            return 0 if low else (1 << bits) - 1
        return -(1 << (bits - 1)) if low else (1 << (bits - 1)) - 1
    infinite = np.asarray(-np.inf if low else np.inf).astype(dtype.numpy)
    if np.isinf(infinite.astype(np.float64)):
        return infinite
    import ml_dtypes

    limits = ml_dtypes.finfo(dtype.numpy)
    return limits.min if low else limits.max
