"""From a region to instructions: kernels for nodes, control flow, and when values die."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.ir.module import Node, Region, Value
from weft.ir.reading import deaths
from weft.ir.write import node_text
from weft.kernels.group import Group
from weft.ops.control import (
    AfterAll,
    AsyncDone,
    AsyncStart,
    Call,
    Case,
    Composite,
    CreateToken,
    GetTupleElement,
    If,
    Tuple,
    While,
)
from weft.ops.sharding import NamedComputation, ShardingGroup
from weft.run.code import Code, Item, Step, bind_kernel
from weft.run.diverge import branch_apart, loop_apart
from weft.run.flow import shape_of
from weft.run.fold import is_broadcast, is_dot, spread_by_readers, summed_dims, uses_of
from weft.run.groups import awaited_in, deaths_of, placed_at
from weft.run.kernel import Kernel, Site
from weft.run.kernels import CONTROL, kernel_of
from weft.run.launch import Launches
from weft.run.layout import Layout, union
from weft.run.together import branch, loop, own_results
from weft.run.vary import Scope, loop_masks, outcome
from weft.target import Target
from weft.tile import group as grouped

KEPT = 1 << 14  # elements of a result that may be computed before the program runs


class Compiler:
    """Hands out slots and turns regions into code.

    Slot 0 holds the arena of planned memory, slot 1 the slots of arguments that may be written
    over in this run.
    """

    def __init__(self, *, fold: bool = True, target: Target | None = None) -> None:
        self.fold = fold  # whether values that nobody needs may be left out
        self.target = target  # what runs groups of nodes, where all devices go one way
        self.launches: Launches | None = None  # the target's kernels, once they are known
        self.slots = 2
        self.constants: dict[int, Any] = {}  # what is known before the program runs, by slot
        self.kernels: dict[Layout, dict[tuple[object, ...], Kernel]] = {}
        self.awaited: dict[Value, list[int]] = {}  # futures that need no slot: those of their parts

    def new(self) -> int:
        """A slot of its own."""
        self.slots += 1
        return self.slots - 1

    def region(self, region: Region, scope: Scope, *, frees: bool = False) -> Code:
        """The code of a region whose arguments have slots; `frees` if they die in it, too."""
        if self.target is not None and not scope.layout.has_rows:
            return self.grouped(region, scope, self.target, frees)
        code = Code()
        dying, uses = deaths(region), uses_of(region)
        args = set() if frees else set(region.args)
        for node, dead in zip(region.nodes, dying, strict=True):
            try:
                self.node(self.site(node, scope, uses), code)
            except WeftError as error:
                raise error.at(node.loc, node_text(node)) from None
            self.bury([v for v in dead if v not in args], scope, code)
        code.results = tuple([scope.slots[v] for v in region.results])
        return code

    def bury(self, dead: Sequence[Value], scope: Scope, code: Code) -> None:
        """Have the slots of values emptied after the latest instruction."""
        found = [slot for v in dead if (slot := scope.slots.get(v))]
        slots = [slot for slot in found if slot not in self.constants]
        if slots and code.items:
            code.items[-1].dead += tuple(slots)

    def site(self, node: Node, scope: Scope, uses: Mapping[Value, list[Node]]) -> Site:
        """What is known where a node stands."""
        given = scope.of(node.operands)
        made = outcome(node, given, scope)
        if self.fold and is_dot(node):
            summed, chain = summed_dims(node, scope, uses)
            scope.summed.update(dict.fromkeys(chain, summed))
            made = (union(*made) & ~summed,)
        elif self.fold and is_broadcast(node) and spread_by_readers(node, scope, uses):
            scope.placed.add(node.results[0])
        scope.let(node.results, made)
        return Site(node, scope, given, made)

    # Kernels of a target

    def grouped(self, region: Region, scope: Scope, target: Target, frees: bool) -> Code:
        """The code of a region whose nodes a target takes together."""
        code, layout, placed = Code(), scope.layout, []
        self.awaited.update((future, []) for future in awaited_in(region))
        for node in region.nodes:
            given = scope.of(node.operands)
            made = outcome(node, given, scope)
            scope.let(node.results, made)
            placed.append(placed_at(node, given, made, scope))
        groups = grouped(placed, layout.shape(layout.everything), region.results, target)
        dying = deaths_of(groups, region, frees=frees)
        for group, dead in zip(groups, dying, strict=True):
            node = group.nodes[-1]
            try:
                if group.kernel is None:
                    given, made = scope.of(node.operands), scope.of(node.results)
                    self.node(Site(node, scope, given, made), code)
                else:
                    self.launch(group, scope, code)
            except WeftError as error:
                raise error.at(node.loc, node_text(node)) from None
            self.bury(dead, scope, code)
        code.results = tuple([scope.slots[v] for v in region.results])
        return code

    def launch(self, group: Group, scope: Scope, code: Code) -> None:
        """Append a kernel of the target."""
        ins = tuple([scope.slots[v] for v in group.inputs])
        outs = tuple([self.new() for _ in group.outputs])
        scope.slots.update(zip(group.outputs, outs, strict=True))
        scope.masks.update(_unnamed(group, scope))
        shapes = tuple([shape_of(v, scope.masks[v], scope.layout) for v in group.outputs])
        item = Item(group.nodes[-1], _unbound, None, ins, outs, group.outputs, shapes)
        item.group = group
        code.items.append(item)

    def settled(self, slots: Sequence[int]) -> Step | None:
        """What tells the target's kernels where these slots' values are, if they read them."""
        return None if self.launches is None else self.launches.settled(slots)

    # Nodes

    def node(self, site: Site, code: Code) -> None:
        """Append what a node does."""
        if type(site.op) not in CONTROL:
            self.kernel(site, self.made(site), code)
            return
        match site.op:
            case Call() | Composite():
                self.call(site, code)
            case NamedComputation():
                self.inline(site.node.regions[0], site.scope, site, code)
            case AsyncStart():
                self.start(site, code)
            case While() | If() | Case():
                self.control(site, code)
            case AsyncDone() if site.node.operands[0] in self.awaited:
                slots = self.awaited[site.node.operands[0]]
                site.scope.slots.update(zip(site.node.results, slots, strict=True))
            case AsyncDone():
                self.kernel(site, Kernel(_unpack(len(site.node.results)), shares=True), code)
            case Tuple():
                self.kernel(site, Kernel(lambda *parts: parts, shares=True), code)
            case GetTupleElement(index=index):
                self.kernel(site, Kernel(lambda parts: parts[index], shares=True), code)
            case AfterAll() | CreateToken():
                self.kernel(site, Kernel(lambda *tokens: None), code)
            case ShardingGroup():
                pass
            case op:
                raise AssertionError(f"{op.name} has no code")

    def made(self, site: Site) -> Kernel:
        """The kernel of a node; nodes that are alike have one."""
        node, scope = site.node, site.scope
        if node.regions or node.op.collective or node.op.control:
            return kernel_of(site)
        leaves = [(scope.summed.get(v, 0), v in scope.placed) for v in node.results]
        key = (node.op, node.operand_types, node.types, site.given, site.made, *leaves)
        known = self.kernels.setdefault(scope.layout, {})
        found = known.get(key)
        if found is None:
            found = known[key] = kernel_of(site)
        return found

    def kernel(self, site: Site, kernel: Kernel, code: Code) -> None:
        """Append a kernel."""
        scope, node = site.scope, site.node
        ins = [scope.slots[v] for v in (*node.operands, *kernel.extra)]
        if kernel.reads_active:
            assert scope.layout.active is not None
            ins.append(scope.layout.active)
        outs = self.results(node, scope)
        shapes = tuple(
            [shape_of(v, m, scope.layout) for v, m in zip(node.results, site.made, strict=True)]
        )
        if self.known(node, kernel, ins, shapes):
            with np.errstate(all="ignore"):
                made = kernel.run(*[self.constants[n] for n in ins])
            listed = made if isinstance(made, tuple) else (made,)
            self.constants.update(zip(outs, listed, strict=True))
            return
        if node.results and node.results[0] in scope.placed:
            shapes = (None,)
        code.items.append(Item(node, bind_kernel, kernel, tuple(ins), outs, node.results, shapes))

    def known(
        self,
        node: Node,
        kernel: Kernel,
        ins: Sequence[int],
        shapes: Sequence[tuple[int, ...] | None],
    ) -> bool:
        """Whether a result is known before the program runs, and small enough to be kept."""
        if not self.fold and node.operands:
            return False
        if not node.op.pure or kernel.reads_active or any(n not in self.constants for n in ins):
            return False
        elements = [math.prod(shape) if shape else 0 for shape in shapes]
        return kernel.shares or sum(elements) <= KEPT

    def results(self, node: Node, scope: Scope) -> tuple[int, ...]:
        """New slots for the results of a node."""
        outs = tuple([self.new() for _ in node.results])
        scope.slots.update(zip(node.results, outs, strict=True))
        return outs

    # Code that stands in the place of a node

    def call(self, site: Site, code: Code) -> None:
        """A function's code, in place of the call."""
        op = site.op
        name = op.callee if isinstance(op, Call) else op.decomposition  # type: ignore[attr-defined]
        body = site.scope.module.function(name).body
        self.inline(body, site.scope.inner(call=name), site, code)

    def inline(self, body: Region, scope: Scope, site: Site, code: Code) -> None:
        """A region's code in place of a node; results get slots of their own where they must."""
        outer = site.scope
        for arg, value, mask in zip(body.args, site.node.operands, site.given, strict=True):
            scope.slots[arg], scope.masks[arg] = outer.slots[value], mask
        inner = self.region(body, scope)
        code.items += inner.items
        slots = self.separate(body, scope, site.node, code)
        outer.slots.update(zip(site.node.results, slots, strict=True))

    def separate(self, region: Region, scope: Scope, node: Node, code: Code) -> list[int]:
        """A slot for each result of a region that is nobody else's."""
        made = {v for n in region.nodes for v in n.results}
        found: list[int] = []
        for result in region.results:
            slot = scope.slots[result]
            if result not in made or slot in found:
                slot = self.copy(node, slot, code)
            found.append(slot)
        return found

    def copy(self, node: Node, slot: int, code: Code) -> int:
        """Another slot that holds the same value."""
        other = self.new()
        kernel = Kernel(lambda x: x, shares=True)
        code.items.append(Item(node, bind_kernel, kernel, (slot,), (other,)))
        return other

    def start(self, site: Site, code: Code) -> None:
        """The region of an asynchronous start, whose results are packed."""
        scope, (region,) = site.scope, site.node.regions
        for arg, value, mask in zip(region.args, site.node.operands, site.given, strict=True):
            scope.slots[arg], scope.masks[arg] = scope.slots[value], mask
        inner = self.region(region, scope)
        code.items += inner.items
        (future,) = site.node.results
        if future in self.awaited:
            self.awaited[future] = self.separate(region, scope, site.node, code)
            return
        kernel = Kernel(lambda *parts: parts, shares=True)
        outs = self.results(site.node, scope)
        own = own_results(region, scope, self.constants)
        code.items.append(Item(site.node, bind_kernel, kernel, inner.results, outs, dead=own))

    # Control flow

    def control(self, site: Site, code: Code) -> None:
        """A loop or a branch."""
        scope, node = site.scope, site.node
        if isinstance(site.op, While):
            carried, predicate = loop_masks(node, site.given, scope)
            if predicate:
                loop_apart(self, site, carried, predicate, code)
            else:
                loop(self, site, carried, code)
        elif union(site.given[0]):
            branch_apart(self, site, code)
        else:
            branch(self, site, code)


def _unbound(item: Item) -> Step:
    raise AssertionError(f"{item.node!r} is launched with others")


def _unnamed(group: Group, scope: Scope) -> dict[Value, int]:
    """What the outputs of a kernel that no node makes vary along, as their stacks say."""
    assert group.kernel is not None
    operands = [o for o in group.kernel.operands if o.output]
    return {
        value: scope.layout.mask(d for d in range(scope.layout.lead) if operand.shape[d] > 1)
        for value, operand in zip(group.outputs, operands, strict=True)
        if value not in scope.masks
    }


def _unpack(count: int) -> Any:
    return (lambda parts: parts[0]) if count == 1 else (lambda parts: parts)
