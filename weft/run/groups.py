"""The nodes of a region as a target is told of them, and when values die among its groups."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.module import Node, Region, Value
from weft.ir.reading import reads
from weft.kernels.group import Group
from weft.kernels.placed import Placed
from weft.ops.collective import CollectivePermute
from weft.ops.control import AsyncDone, AsyncStart
from weft.ops.local import AllSlice, AxisIndex, PermuteAlongAxes
from weft.run.scope import Scope
from weft.varying.masks import Masks, union


def placed_at(node: Node, given: Masks, made: Masks, scope: Scope) -> Placed:
    """A node with what its values vary along, and along what devices meet in it."""
    if isinstance(node.op, CollectivePermute | PermuteAlongAxes):
        found = scope.moves(node)
        along, sources = (None, ()) if found is None else (found[0], tuple(found[1].tolist()))
        return Placed(node, _whole(given), _whole(made), along, sources)
    return Placed(node, _whole(given), _whole(made), _along(node, scope))


def _whole(masks: Masks) -> tuple[int, ...]:
    return tuple([mask if isinstance(mask, int) else union(mask) for mask in masks])


def _along(node: Node, scope: Scope) -> tuple[int, ...] | None:
    """The leading dims that a collective, or who a device is, depends on."""
    op = node.op
    match op:
        case AxisIndex():
            return scope.layout.dims(scope.world.axis_dims(op.over.mesh, op.over.axes))
        case AllSlice():
            axes = tuple([axis for dim in op.pieces.dims for axis in dim.axes])
            return scope.layout.dims(scope.world.axis_dims(op.pieces.mesh, axes))
    return scope.group_dims(node) if op.collective else None


def awaited_in(region: Region) -> list[Value]:
    """The futures of a region that are only waited for in it, and handed to nobody."""
    found = {n.results[0]: None for n in region.nodes if isinstance(n.op, AsyncStart)}
    if found:
        others = [n for n in region.nodes if not isinstance(n.op, AsyncDone)]
        for value in (*region.results, *(v for n in others for v in reads(n))):
            found.pop(value, None)
    return list(found)


def deaths_of(groups: Sequence[Group], region: Region, *, frees: bool) -> list[list[Value]]:
    """For each group, the values of the region that nothing reads after it."""
    last: dict[Value, int] = dict.fromkeys(region.args, -1) if frees else {}
    for position, group in enumerate(groups):
        made = group.outputs if group.kernel is not None else group.nodes[0].results
        last.update(dict.fromkeys(made, position))
    for position, group in enumerate(groups):
        read = group.inputs if group.kernel is not None else reads(group.nodes[0])
        last.update((value, position) for value in read if value in last)
    kept = set(region.results)
    dead: list[list[Value]] = [[] for _ in groups]
    for value, position in last.items():
        if position >= 0 and value not in kept:
            dead[position].append(value)
    return dead
