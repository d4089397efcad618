"""Kinds of nodes: how each may take part in kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from weft.ir.module import Node, Value, tensor_of
from weft.kernels.stacked_node import StackedNode
from weft.ops.convolution import Convolution
from weft.ops.distributed.collective import AllReduce, CollectivePermute, ReduceScatter
from weft.ops.distributed.local import AxisIndex, PermuteAlongAxes
from weft.ops.reduce import Reduce
from weft.ops.shape import BitcastConvert, Constant
from weft.ops.slicing import Concatenate, Pad
from weft.target import Target
from weft.tile.drafts.picks import counts, pick_of
from weft.tile.drafts.products import PRODUCTS, is_outer, is_plain_convolution
from weft.tile.drafts.pulls import MAPS, fusible_combine
from weft.tile.drafts.views import sees_through
from weft.tile.fusion.nodes import (
    element_by_element,
    is_dense,
    plain_product,
    unsupported_reason,
)

COPIED = 1 << 16  # bytes that are copied sooner than the host is reached
FusionKind = Literal["view", "map", "reduce", "product", "other"]

Makers: TypeAlias = Mapping[Value, StackedNode]  # the node of each value


def kind_of(stacked: StackedNode, makers: Makers, target: Target) -> FusionKind:
    """How a node may take part in kernels."""
    node = stacked.node
    if not is_dense(node) or unsupported_reason(node, target) is not None:
        return "other"
    if sees_through(stacked):
        return "view"
    match node.op:
        case Constant():
            # Only splats are written into a kernel's text; other constants are operands.
            return "map" if node.op.value.is_splat else "other"
        case Pad():
            # Interior padding makes the index of the source a division with a remainder, which
            # affine indices cannot say.
            return "other" if any(node.op.interior_padding) else "map"
        case Concatenate():
            # Every operand is a guarded load at each point: with many of them copies are
            # cheaper.
            return "map" if len(node.operands) <= target.limits.choices else "other"
        case Reduce():
            combines = len(node.operands) == 2 and fusible_combine(node) is not None
            return "reduce" if combines or _picks(node, makers) else "other"
        case AllReduce() | ReduceScatter():
            # In lockstep a sum over devices is a reduction along leading dims, if the operand
            # has all of them; a replicated operand would be counted once instead of once a
            # device.
            return "reduce" if _meets_evenly(stacked) else "other"
        case Convolution():
            plain = is_plain_convolution(node) and plain_product(node)
            return "product" if plain else "other"
        case op if type(op) in PRODUCTS:
            if not plain_product(node):
                return "other"
            # Without contracting dims a product is elementwise on broadcast operands.
            return "map" if is_outer(node) else "product"
        case AxisIndex() | CollectivePermute() | PermuteAlongAxes():
            return "map" if stacked.along is not None else "other"
        case op if type(op) in MAPS:
            return "map"
        case BitcastConvert():
            return "map" if _is_computed(node.operands[0], makers) else "other"
        case op if op.elementwise and node.operands and not node.regions:
            return "map" if element_by_element(node) else "other"
    return "other"


def _is_computed(value: Value, makers: Makers) -> bool:
    """Whether a small value is elementwise of others: its bits need not be in memory.

    Those of a large one are better viewed there: random bits are made by 64-bit arithmetic, and
    what is computed of them, in one kernel, would get vectors of as few lanes.
    """
    maker, type = makers.get(value), tensor_of(value)
    if maker is None or type.nbytes > COPIED:
        return False
    return maker.node.op.elementwise and element_by_element(maker.node)


def _picks(node: Node, makers: Makers) -> bool:
    """Whether a reduction is an argmax or argmin along its dim."""
    if len(node.operands) != 4 or pick_of(node) is None:
        return False
    index = makers.get(node.operands[1])
    assert isinstance(node.op, Reduce)
    dims = node.op.dimensions
    return index is not None and len(dims) == 1 and counts(index.node, dims[0])


def _meets_evenly(stacked: StackedNode) -> bool:
    """Whether a sum over devices is along leading dims that its operand varies along."""
    along = stacked.along
    if along is None or fusible_combine(stacked.node) is None:
        return False
    return all(mask >> d & 1 for mask in stacked.given for d in along)
