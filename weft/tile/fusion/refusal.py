"""Reasons why a target cannot compute a node in a kernel: its op, types, or region."""

from __future__ import annotations

from weft.ir.module import Node
from weft.ir.types import TensorType
from weft.target import Target
from weft.tile.drafts.pulls import REDUCTIONS


def refusal(node: Node, target: Target) -> str | None:
    """The reason, or None if the target can compute the node."""
    given = tuple([t.dtype for t in node.operand_types if isinstance(t, TensorType)])
    made = tuple([t.dtype for t in node.types if isinstance(t, TensorType)])
    if len(given) < len(node.operands) or len(made) < len(node.results):
        return "of what is no tensor"
    if reason := target.can(node.op, given, made):
        return reason
    if type(node.op) in REDUCTIONS:  # a region of one node becomes the reduction op
        for region in node.regions:
            if len(region.nodes) == 1 and (reason := refusal(region.nodes[0], target)):
                return reason
    return None
