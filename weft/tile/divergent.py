"""Lowering of divergent loops and branches."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weft.errors import Unsupported
from weft.executable.divergence import Divergence, OuterValue
from weft.executable.items import DivergentBranch, DivergentLoop, Site
from weft.executable.stack_dims import StackDims
from weft.ir.module import Node
from weft.ir.types import TensorType
from weft.ir.uses import free_variables
from weft.tile.scope import Scope
from weft.tile.uniform import way_of
from weft.varying.masks import bits, union

if TYPE_CHECKING:
    from weft.tile.lowering import RegionLowering


def divergent_branch(lowering: RegionLowering, site: Site, scope: Scope) -> DivergentBranch:
    """A divergent branch: every region runs on the devices that take it."""
    node = site.node
    _no_tuples(node)
    parted = _diverge(lowering, scope.stack_dims, union(site.given[0]))
    inner = scope.parted(parted.inner)
    seen = _see(lowering, site, scope, parted, inner)
    blocks = tuple([lowering.region(region, inner) for region in node.regions])
    ins = (scope.slots[node.operands[0]], *[entry.outer for entry in seen])
    outs = lowering.results(node, site.made, scope)
    rest = (site.given[0], site.made, node.loc, node)
    return DivergentBranch(way_of(node), blocks, ins, outs, parted, seen, *rest)


def divergent_loop(
    lowering: RegionLowering, site: Site, scope: Scope, predicate: int
) -> DivergentLoop:
    """A divergent loop: devices leave at different times."""
    node = site.node
    _no_tuples(node)
    parted = _diverge(lowering, scope.stack_dims, predicate)
    inner = scope.parted(parted.inner)
    seen = _see(lowering, site, scope, parted, inner)
    in_masks = tuple(parted.inside(m) for m in site.given)
    masks, tested = inner.loop(node)
    assert not tested & ~1, "a predicate on rows varies along the rows only"
    condition, body = node.regions
    listed = zip(body.args, masks, strict=True)
    slots = tuple([lowering.new(v, m, inner) for v, m in listed])
    for region in (condition, body):
        inner.slots.update(zip(region.args, slots, strict=True))
    test, work = lowering.region(condition, inner), lowering.region(body, inner)
    ins = tuple([scope.slots[v] for v in node.operands]) + tuple([e.outer for e in seen])
    outs = lowering.results(node, site.made, scope)
    inside = (site.given, in_masks, inner.of(body.results), masks, site.made)
    rest = (parted, seen, *inside, node.loc, node)
    return DivergentLoop(test, work, slots, ins, outs, *rest)


def _diverge(lowering: RegionLowering, stack_dims: StackDims, predicate: int) -> Divergence:
    """The inner stack dims for a predicate that varies along these dims."""
    rows = stack_dims.has_rows
    added = tuple(stack_dims.kept[d - rows] for d in bits(predicate) if not (rows and d == 0))
    # Devices that diverge become rows of one leading dim, which shrinks to those still in the
    # branch.
    inner = replace(stack_dims, rows=stack_dims.rows + added, active=lowering.bare())
    return Divergence(stack_dims, inner, predicate | rows)


def _see(
    lowering: RegionLowering, site: Site, scope: Scope, divergence: Divergence, inner: Scope
) -> tuple[OuterValue, ...]:
    """Inner slots of outer values that regions capture."""
    outer_values: list[OuterValue] = []
    for value in free_variables(site.node):
        (mask,) = scope.of([value])
        inside = divergence.inside(mask)
        slot = lowering.new(value, inside, inner)
        outer_values.append(OuterValue(scope.slots[value], slot, mask, inside))
        inner.slots[value], inner.masks[value] = slot, inside
    return tuple(outer_values)


def _no_tuples(node: Node) -> None:
    """Raise for tuples in divergent code, which only old programs have."""
    if any(not isinstance(v.type, TensorType) and "tuple" in str(v.type) for v in node.results):
        raise Unsupported(
            f"{node.op.name}: returns a tuple in divergent control flow",
            help="return the values one by one",
        )
