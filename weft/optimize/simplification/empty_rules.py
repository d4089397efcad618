"""Rules on tensors without elements: nothing is computed for them, and sums over them are zeros."""

from __future__ import annotations

from weft.ir.module import Node
from weft.ir.rebuild import Rewritten
from weft.ir.types import TensorType, Type
from weft.ops.contract import Dot, DotGeneral
from weft.ops.custom_calls.custom import CustomCall
from weft.ops.distributed.sharding import Annotation, ShardyConstant
from weft.ops.random import RngBitGenerator
from weft.ops.shape import Constant
from weft.optimize.simplification.splats import splat

_NEVER = (Constant, RngBitGenerator, Annotation, ShardyConstant)


def is_empty(type: Type) -> bool:
    """Whether a tensor has no elements."""
    return isinstance(type, TensorType) and 0 in type.shape and type.is_static


def makes_nothing(node: Node) -> bool:
    """Whether all results of a node are empty, or it is a product of an empty operand."""
    types = node.types
    if types and is_empty(types[0]):
        return all(map(is_empty, types[1:]))
    return isinstance(node.op, Dot | DotGeneral) and is_empty(node.operands[0].type)


def without_elements(node: Node) -> Rewritten:
    """f(x) -> constants, when all results are empty; x y -> 0, when x and y are empty."""
    op = node.op
    if not makes_nothing(node) or node.attrs or isinstance(op, _NEVER):
        return None
    if not op.pure or op.collective or (op.control and not isinstance(op, CustomCall)):
        return None
    nodes = [splat(0, type, node.loc) for type in node.types if isinstance(type, TensorType)]
    return tuple([made.results[0] for made in nodes])
