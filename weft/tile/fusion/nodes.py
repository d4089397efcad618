"""Predicates of single nodes for grouping, and reasons why a target cannot compute a node."""

from __future__ import annotations

from functools import cache

from weft.ir.module import Node, tensor_of
from weft.ir.types import TensorType, Type
from weft.ops.elementwise.convert import Convert
from weft.target import Target
from weft.tile.drafts.pulls import REDUCTIONS


def is_dense(node: Node) -> bool:
    """Whether a node has results, all of them tensors of static, nonzero sizes."""
    return bool(node.results) and all(map(_is_dense, {*node.operand_types, *node.types}))


@cache
def _is_dense(type: Type) -> bool:
    return isinstance(type, TensorType) and type.is_static and type.size > 0


def element_by_element(node: Node) -> bool:
    """Whether every operand has the result's shape, or is a scalar."""
    shape = tensor_of(node.results[0]).shape
    return all(tensor_of(v).shape in (shape, ()) for v in node.operands)


def plain_product(node: Node) -> bool:
    """Whether a contraction has operands of one numeric element type."""
    lhs, rhs = (tensor_of(v).dtype for v in node.operands)
    return lhs is rhs and not lhs.is_complex and lhs.kind != "bool"


def is_simple(node: Node) -> bool:
    """Whether computing a node costs no more than loading its result."""
    work = getattr(type(node.op), "each_element", None)
    return work is None or not work.transcendentals


def widens(node: Node) -> bool:
    """Whether a node is a widening cast."""
    if not isinstance(node.op, Convert):
        return False
    given, made = tensor_of(node.operands[0]).dtype, tensor_of(node.results[0]).dtype
    return given.bits < made.bits


def narrows(node: Node) -> bool:
    """Whether a node is a cast to a narrower float."""
    if not isinstance(node.op, Convert):
        return False
    given, made = tensor_of(node.operands[0]).dtype, tensor_of(node.results[0]).dtype
    return made.is_float and given.bits > made.bits


def unsupported_reason(node: Node, target: Target) -> str | None:
    """The reason, or None if the target can compute the node."""
    operand_dtypes = tuple([t.dtype for t in node.operand_types if isinstance(t, TensorType)])
    result_dtypes = tuple([t.dtype for t in node.types if isinstance(t, TensorType)])
    if len(operand_dtypes) < len(node.operands) or len(result_dtypes) < len(node.results):
        return "of values that are not tensors"
    if reason := target.unsupported_op(node.op, operand_dtypes, result_dtypes):
        return reason
    if type(node.op) in REDUCTIONS:  # a region of one node becomes the way to combine
        for region in node.regions:
            if len(region.nodes) == 1 and (reason := unsupported_reason(region.nodes[0], target)):
                return reason
    return None
