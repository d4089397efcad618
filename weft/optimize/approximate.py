"""Mark the ops whose functions may be approximate, as the option `approximate` names them."""

from __future__ import annotations

from collections.abc import Collection

from weft.ir.module import Module, Node, Value
from weft.ir.rebuild import Rewritten, rewrite
from weft.ir.types import F32, TensorType
from weft.ops.elementwise.approximate import APPROXIMABLE, TOLERANT
from weft.ops.elementwise.pointwise import Divide
from weft.ops.shape import BroadcastInDim
from weft.optimize.simplification.splats import is_number


def approximate(module: Module, names: Collection[str]) -> Module:
    """The module with a mark on every op of f32 that these names stand for."""
    kinds = {kind for name in names for kind in APPROXIMABLE[name]}
    return rewrite(module, _marked, kinds=kinds) if kinds else module


def _marked(node: Node) -> Rewritten:
    """f(x) -> f(x) that may err, for f32, unless the program itself says how exact it must be."""
    given, op = node.operands[0].type, node.op
    if op.result_accuracy is not None:  # type: ignore[attr-defined]
        return None
    if not isinstance(given, TensorType) or given.dtype is not F32:
        return None
    if isinstance(op, Divide) and not _is_one(node.operands[0]):
        return None
    marked = type(op)(result_accuracy=TOLERANT)  # type: ignore[call-arg]
    return Node(marked, node.operands, node.types, node.regions, node.attrs, node.loc)


def _is_one(value: Value) -> bool:
    node = value.node
    if node is not None and isinstance(node.op, BroadcastInDim):
        return _is_one(node.operands[0])
    return is_number(value, 1)
