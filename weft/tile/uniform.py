"""Lowering of uniform loops and branches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from weft.executable.items import Branch, Loop, Site
from weft.ir.module import Node
from weft.ops.control import If
from weft.tile.scope import Scope
from weft.varying.masks import Masks

if TYPE_CHECKING:
    from weft.tile.lowering import RegionLowering


def loop(lowering: RegionLowering, site: Site, scope: Scope, carried: Masks) -> Loop:
    """A loop with the same predicate on all devices."""
    node = site.node
    condition, body = node.regions
    listed = zip(body.args, carried, strict=True)
    slots = tuple([lowering.new(v, m, scope) for v, m in listed])
    for region in (condition, body):
        scope.slots.update(zip(region.args, slots, strict=True))
    test = lowering.region(condition, scope)
    work = lowering.region(body, scope)
    made = scope.of(body.results)
    ins = tuple([scope.slots[v] for v in node.operands])
    outs = lowering.results(node, carried, scope)
    masks = (site.given, made, carried)
    return Loop(test, work, slots, ins, outs, scope.stack_dims, *masks, node.loc, node)


def branch(lowering: RegionLowering, site: Site, scope: Scope) -> Branch:
    """A branch that all devices take together."""
    node = site.node
    blocks = tuple([lowering.region(region, scope) for region in node.regions])
    made = tuple([scope.of(region.results) for region in node.regions])
    ins = (scope.slots[node.operands[0]],)
    outs = lowering.results(node, site.made, scope)
    rest = (scope.stack_dims, made, site.made, node.loc, node)
    return Branch(way_of(node), blocks, ins, outs, *rest)


def way_of(node: Node) -> Literal["if", "case"]:
    """The kind of a branch: by predicate or by index."""
    return "if" if isinstance(node.op, If) else "case"
