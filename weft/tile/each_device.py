"""Divergent control flow as a flow of one device, launched for each of them.

Where a predicate varies, devices take different branches. If there is no collective inside, and
nothing depends on the device's index, a flow on the pieces of one device runs for each of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from weft.executable.items import (
    Block,
    Branch,
    DivergentBranch,
    DivergentLoop,
    Item,
    Launch,
    Loop,
    Site,
    all_items,
    blocks_of,
)
from weft.ir.module import Module, Node, Region
from weft.ir.purity import callee_of
from weft.ir.uses import free_variables
from weft.ops.control import While
from weft.ops.distributed.local import AllSlice, AxisIndex
from weft.tile.flows import KnownScalars, flow_of, launch_of
from weft.tile.scope import Scope
from weft.tile.uniform import branch, loop

if TYPE_CHECKING:
    from weft.tile.lowering import RegionLowering


def diverges(item: Item) -> bool:
    """Whether devices go different ways in an item."""
    inside = [inner for block in blocks_of(item) for inner in all_items(block)]
    return any(isinstance(one, DivergentLoop | DivergentBranch) for one in (item, *inside))


def each_device(lowering: RegionLowering, site: Site, scope: Scope) -> Launch | None:
    """Control flow as a launch that runs it for each device; None if it cannot be a flow."""
    node, target, outer = site.node, lowering.target, scope.stack_dims
    if not target.has_kernels or outer.has_rows or _meets(node, scope.module):
        return None
    # Lowered again without any device dims: on the piece of a single device.
    lone = replace(outer, absent=tuple(range(len(outer.sub_axes.sizes))))
    inner = scope.parted(lone)
    wholes: dict[int, int] = {}  # by slot of a piece, the slot of all of them
    for value in dict.fromkeys((*node.operands, *free_variables(node))):
        slot = lowering.new(value, 0, inner)
        wholes[slot], inner.slots[value] = scope.slots[value], slot
    nothing = (0,) * len(node.operands)
    alone = replace(site, stack_dims=lone, given=nothing, made=(0,) * len(node.results), summed=())
    item: Loop | Branch
    if isinstance(node.op, While):
        item = loop(lowering, alone, inner, nothing)
    else:
        item = branch(lowering, alone, inner)
    constants = {slot: lowering.constants.get(whole) for slot, whole in wholes.items()}
    flow_and_slots = flow_of(
        item, lowering.stacks, KnownScalars(Block((item,), ()), constants), target
    )
    if flow_and_slots is None:
        return None
    flow, pieces = flow_and_slots
    ins = tuple([wholes.get(slot, slot) for slot in pieces])  # constants are as they are
    shapes = [lowering.stacks[slot] for slot in ins]
    result_shapes = [outer.shape(mask) for mask in site.made if isinstance(mask, int)]
    if any(stack is None or stack.shape is None for stack in shapes) or not result_shapes:
        return None
    leading = [
        *result_shapes,
        *(stack.shape[: outer.lead] for stack in shapes if stack and stack.shape),
    ]
    lead = tuple([max(sizes) for sizes in zip(*leading, strict=True)])
    # One launch runs a flow for each device at once.
    if any(shape != lead for shape in result_shapes):
        return None  # devices that share a result would write it at the same time
    outs = lowering.results(node, site.made, scope)
    operands = []
    for slot, operand in zip((*ins, *outs), flow.operands, strict=True):
        stack = lowering.stacks[slot]
        assert stack is not None and stack.shape is not None, "operands have shapes"
        operands.append(replace(operand, shape=stack.shape))
    steps = math.prod(lead) * flow.arithmetic
    whole = replace(flow, operands=tuple(operands), devices=lead, arithmetic=steps)
    return launch_of(whole, ins, outs, item)


def _meets(node: Node, module: Module) -> bool:
    """Whether a node contains a collective, or depends on the device's index."""
    return any(
        one.op.collective or isinstance(one.op, AllSlice | AxisIndex)
        for one in _inside(node, module)
    )


def _inside(node: Node, module: Module) -> Iterator[Node]:
    """The nodes in a node's regions and in the functions that are called there."""
    regions: list[Region] = [*node.regions]
    seen: set[str] = set()
    while regions:
        for inner in regions.pop().nodes:
            yield inner
            regions += inner.regions
            name = callee_of(inner.op)
            if name is not None and name not in seen:
                seen.add(name)
                regions.append(module.function(name).body)
