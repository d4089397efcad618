"""Gathers in full: those that leave every device with what all of them held."""

from __future__ import annotations

from weft.cost.sent import group
from weft.ir.module import Module, Value
from weft.ir.work import moved
from weft.ops.collective import AllGather


def full_gathers(module: Module) -> int:
    """How many gathers, in one step or several, end with every device holding everything."""
    everyone = max((mesh.size for mesh in module.meshes.values()), default=1)
    reach: dict[Value, int] = {}
    found = 0
    for node in module.nodes():
        before = max((reach.get(v, 1) for v in node.operands), default=1)
        if isinstance(node.op, AllGather) and moved(*node.types):
            _, devices = group(node.op, module.meshes, everyone)
            reach |= dict.fromkeys(node.results, before * devices)
            found += before < everyone <= before * devices
        elif before > 1 and len(node.operands) == 1 and not node.regions:
            reach |= dict.fromkeys(node.results, before)  # rearranged, at most
    return found
