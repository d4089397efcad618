"""Classes of nodes in propagation: elementwise, constant expressions, broadcasts of scalars."""

from __future__ import annotations

from collections.abc import Container
from functools import cache

from weft.ir.module import Node, Value
from weft.ir.op import Op
from weft.ir.types import TensorType
from weft.ops.distributed.sharding import (
    PropagationBarrier,
    Reshard,
    ShardingConstraint,
    ShardyConstant,
)
from weft.ops.elementwise.broadcasting import Broadcasting
from weft.ops.elementwise.convert import Complex, Convert, ReducePrecision
from weft.ops.elementwise.pointwise import Clamp, Compare, Pointwise, Select
from weft.ops.elementwise.special import ConstantLike
from weft.ops.shape import BitcastConvert, BroadcastInDim, Constant, Iota, Reshape
from weft.ops.slicing import Slice

_ELEMENTWISE = (
    Pointwise,
    Compare,
    Select,
    Clamp,
    Convert,
    Complex,
    ReducePrecision,
    Broadcasting,
    ConstantLike,
    PropagationBarrier,
    Reshard,
    ShardingConstraint,
)
# Pointwise ops without MLIR's Elementwise trait.
_NOT_ELEMENTWISE = {"chlo.mulhi", "chlo.next_after", "chlo.polygamma", "chlo.zeta"}

# Ops without a rule in Shardy: no sharding propagates through them. Besides these, all of CHLO.
_NO_RULE = {
    "sdy.all_gather",
    "sdy.all_reduce",
    "sdy.all_slice",
    "sdy.all_to_all",
    "sdy.collective_permute",
    "sdy.data_flow_edge",
    "sdy.func_data_flow_edge",
    "sdy.reduce_scatter",
    "sdy.replicated_to_unreduced",
    "sdy.reshard",
    "sdy.sharded_to_unreduced",
    "stablehlo.batch_norm_grad",
    "stablehlo.batch_norm_training",
    "stablehlo.broadcast",
    "stablehlo.einsum",
    "stablehlo.map",
    "stablehlo.set_dimension_size",
    "stablehlo.torch_index_select",
    "stablehlo.unary_einsum",
}


@cache
def _always_elementwise(op: type[Op]) -> bool:
    return issubclass(op, _ELEMENTWISE) and op.name not in _NOT_ELEMENTWISE


@cache
def stops_shardings(op: type[Op]) -> bool:
    """Whether Shardy has no rule for an op, so that no sharding propagates through it."""
    return op.name in _NO_RULE or op.name.startswith("chlo.")


def is_elementwise(node: Node) -> bool:
    """Whether a node is elementwise; annotations are."""
    if _always_elementwise(type(node.op)):
        return True
    if isinstance(node.op, BitcastConvert):
        given, made = node.operands[0].type, node.results[0].type
        return isinstance(given, TensorType) and given.shape == made.shape  # type: ignore[union-attr]
    return False


@cache
def _makes_constants(op: type[Op]) -> bool:
    return issubclass(op, Constant | ShardyConstant | Iota)


@cache
def _keeps_constants(op: type[Op]) -> bool:
    return issubclass(op, BroadcastInDim | Reshape | Slice)


def is_scalar(value: Value) -> bool:
    """Whether a value is a rank-0 tensor, which cannot be split."""
    return isinstance(value.type, TensorType) and not value.type.shape


def keeps_constants(node: Node) -> bool:
    """Whether a node is a constant expression if its operands are."""
    kind = type(node.op)
    if kind is ShardingConstraint:
        return False
    return _makes_constants(kind) or _keeps_constants(kind) or is_elementwise(node)


def is_constant_expression(node: Node, constants: Container[Node | None]) -> bool:
    """A constant, an iota, or a broadcast, reshape, slice or elementwise op of such."""
    kind = type(node.op)
    if _makes_constants(kind):
        return True
    if not node.operands or node.operands[0].node not in constants:
        return False
    if not (_keeps_constants(kind) or is_elementwise(node)) or kind is ShardingConstraint:
        return False
    return all(v.node in constants for v in node.operands)


def is_scalar_expansion(node: Node) -> bool:
    """A broadcast of a scalar."""
    return isinstance(node.op, BroadcastInDim) and is_scalar(node.operands[0])
