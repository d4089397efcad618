"""Products with a converted boolean become selects, as on XLA's devices: false * NaN is 0.

Programs rely on it: they mask infinities by a product with a comparison.
"""

from __future__ import annotations

import numpy as np

from weft.ir.dense import Dense
from weft.ir.module import Module, Node, Value, apply
from weft.ir.rebuild import Rewritten, rewrite
from weft.ir.types import TensorType
from weft.ops.distributed.sharding import ShardingConstraint
from weft.ops.elementwise.convert import Convert
from weft.ops.elementwise.pointwise import Multiply, Select
from weft.ops.shape import Constant

# Narrower floats are not among them: XLA widens and multiplies them, so false * NaN stays NaN.
_CHOSEN = ("f32", "f64", "complex<f32>", "complex<f64>")


def choose_by_flags(module: Module) -> Module:
    """Turn products with converted booleans into selects."""
    if all(by_flag(node) is None for node in module.nodes()):
        return module
    return rewrite(module, by_flag, kinds=(Multiply,))


def by_flag(node: Node) -> Rewritten:
    """x * convert(flag) -> select(flag, x, 0), when flag is a boolean."""
    if not isinstance(node.op, Multiply):
        return None
    (out,) = node.types
    assert isinstance(out, TensorType)
    if out.dtype.name not in _CHOSEN:
        return None
    # A product is commutative: the flag may stand on either side.
    for x, other in (node.operands, reversed(node.operands)):
        flag = _converted_flag(other)
        if flag is not None:
            zero = apply(Constant(Dense(np.zeros((), out.dtype.numpy), out)), loc=node.loc)
            chosen = (flag, x, zero.results[0])
            return apply(Select(), *chosen, attrs=node.attrs, loc=node.loc)
    return None


def _converted_flag(value: Value) -> Value | None:
    """The booleans that a value converts to numbers, with its sharding constraints."""
    node = value.node
    if node is None or not isinstance(node.op, Convert | ShardingConstraint):
        return None
    (inner,) = node.operands
    if isinstance(node.op, Convert):
        assert isinstance(inner.type, TensorType)
        return inner if inner.type.dtype.kind == "bool" else None
    flag = _converted_flag(inner)
    if flag is None:
        return None
    # The constraint moves onto the boolean: a user's sharding of the mask must survive the rewrite.
    return apply(node.op, flag, attrs=node.attrs, loc=node.loc).results[0]
