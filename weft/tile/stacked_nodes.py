"""Stacked nodes for grouping: masks, and the group dims of collectives."""

from __future__ import annotations

from collections import Counter

from weft.executable.stack_dims import group_dims, moves
from weft.ir.module import Node, Region, Value
from weft.ir.uses import reads
from weft.kernels.stacked_node import StackedNode
from weft.ops.control import AsyncDone, AsyncStart
from weft.ops.distributed.collective import CollectivePermute
from weft.ops.distributed.local import AllSlice, AxisIndex, PermuteAlongAxes
from weft.tile.scope import Scope
from weft.varying.masks import Masks, union


def stacked_node_at(node: Node, masks: Masks, result_masks: Masks, scope: Scope) -> StackedNode:
    """A node with the masks of its values and the leading dims of its groups."""
    if isinstance(node.op, CollectivePermute | PermuteAlongAxes):
        found = moves(node.op, scope.stack_dims, scope.world)
        along, sources = (None, ()) if found is None else (found[0], tuple(found[1].tolist()))
        return StackedNode(node, _whole(masks), _whole(result_masks), along, sources)
    sends = isinstance(node.op, AsyncStart) and scope.sends(node.regions[0].nodes[0])
    return StackedNode(node, _whole(masks), _whole(result_masks), _along(node, scope), sends=sends)


def _whole(masks: Masks) -> tuple[int, ...]:
    return tuple([mask if isinstance(mask, int) else union(mask) for mask in masks])


def _along(node: Node, scope: Scope) -> tuple[int, ...] | None:
    """The leading dims that a collective, or a device's position, depends on."""
    op = node.op
    match op:
        case AxisIndex():
            return scope.stack_dims.dims(scope.world.axis_dims(op.over.mesh, op.over.axes))
        case AllSlice():
            axes = tuple([axis for dim in op.pieces.dims for axis in dim.axes])
            return scope.stack_dims.dims(scope.world.axis_dims(op.pieces.mesh, axes))
    return group_dims(op, scope.stack_dims, scope.world) if op.collective else None


def awaited_in(region: Region) -> list[Value]:
    """The futures of a region that do not leave it."""
    futures = {n.results[0]: None for n in region.nodes if isinstance(n.op, AsyncStart)}
    if futures:
        others = [n for n in region.nodes if not isinstance(n.op, AsyncDone)]
        for value in (*region.results, *(v for n in others for v in reads(n))):
            futures.pop(value, None)
    return list(futures)


def waited_once(region: Region) -> list[Value]:
    """The futures of single collectives with exactly one waiter in the region."""
    dones = Counter(n.operands[0] for n in region.nodes if isinstance(n.op, AsyncDone))
    alone = {
        n.results[0]
        for n in region.nodes
        if isinstance(n.op, AsyncStart) and len(n.regions[0].nodes) == 1
        if n.regions[0].results == n.regions[0].nodes[0].results
    }
    return [future for future in awaited_in(region) if dones[future] == 1 and future in alone]
