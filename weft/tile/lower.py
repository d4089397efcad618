"""Lowering of regions to blocks of items: launches, host nodes, collectives, control flow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from weft.errors import WeftError
from weft.executable.items import (
    Block,
    Collective,
    Done,
    Host,
    Item,
    Launch,
    Move,
    Site,
    Slots,
    Stack,
    Start,
    Traits,
    moved,
)
from weft.executable.stack_dims import StackDims
from weft.ir.module import Node, Region, Value
from weft.ir.types import TensorType
from weft.ir.uses import free_variables
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
    stream_of,
)
from weft.ops.distributed.sharding import NamedComputation, ShardingGroup
from weft.target import Target
from weft.tile.deferred import (
    Functions,
    is_broadcast,
    is_dot,
    spread_by_readers,
    summed_dims,
    uses_of,
)
from weft.tile.divergent import divergent_branch, divergent_loop
from weft.tile.each_device import diverges, each_device
from weft.tile.fusion.groups import group
from weft.tile.scope import Scope
from weft.tile.stacked_nodes import awaited_in, stacked_node_at, waited_once
from weft.tile.uniform import branch, loop
from weft.varying.masks import Mask, union

KEPT = 1 << 14  # elements of a result that may be constant-folded
RESERVED = 2  # reserved slots: the arena, and the arguments that may be overwritten in this run


class HostTraits(Functions, Protocol):
    """Kernels for the nodes that the host computes."""

    def traits(self, site: Site) -> Traits:
        """The properties of a node that the memory planner reads."""
        ...

    def compute(self, site: Site, operands: Sequence[Any]) -> tuple[Any, ...]:
        """Compute a node."""
        ...


class Lowering:
    """Allocates slots and lowers regions to blocks."""

    def __init__(self, host: HostTraits, target: Target, fold: bool) -> None:
        self.host, self.target = host, target
        self.fold = fold  # whether dead values may be omitted
        self.stacks: list[Stack | None] = [None] * RESERVED
        self.constants: dict[int, Any] = {}  # constants by slot
        self.awaited: dict[Value, list[int]] = {}  # futures without a slot: those of their parts
        self.pending: set[Value] = set()  # futures with a single waiter
        self.begun: dict[Value, Start] = {}  # futures of collectives between processes

    # Slots

    def new(self, value: Value, mask: Mask, scope: Scope) -> int:
        """A slot for a value."""
        self.stacks.append(Stack(value.type, shape_of(value, mask, scope.stack_dims)))
        return len(self.stacks) - 1

    def bare(self) -> int:
        """A slot for the active rows."""
        self.stacks.append(None)
        return len(self.stacks) - 1

    def results(self, node: Node, made: Sequence[Mask], scope: Scope) -> Slots:
        """New slots for a node's results."""
        outs = tuple([self.new(v, m, scope) for v, m in zip(node.results, made, strict=True)])
        scope.slots.update(zip(node.results, outs, strict=True))
        return outs

    # Regions

    def region(self, region: Region, scope: Scope) -> Block:
        """Lower a region whose arguments have slots."""
        items: list[Item] = []
        # Some devices are in other processes: starts of collectives with these stay apart from
        # their dones.
        if scope.stack_dims.absent:
            self.pending.update(waited_once(region))
        if self.target.has_kernels and not scope.stack_dims.has_rows:
            self.grouped(region, scope, self.target, items)
        else:
            uses = uses_of(region)
            for node in region.nodes:
                try:
                    self.node(self.site(node, scope, uses), scope, items)
                except WeftError as error:
                    raise error.at(node.loc, node_text(node)) from None
        return Block(tuple(items), tuple([scope.slots[v] for v in region.results]))

    def site(self, node: Node, scope: Scope, uses: Mapping[Value, list[Node]]) -> Site:
        """A node with its context."""
        operand_masks = scope.of(node.operands)
        spread = False
        if self.fold and is_dot(node):
            summed, chain = summed_dims(node, scope, uses, self.host)
            scope.summed.update(dict.fromkeys(chain, summed))
            scope.let(chain, [union(mask) & ~summed for mask in scope.of(chain)])
        elif self.fold and is_broadcast(node) and spread_by_readers(node, scope, uses, self.host):
            scope.placed.add(node.results[0])
            spread = True
        return site_at(node, operand_masks, scope.of(node.results), scope, spread)

    def grouped(self, region: Region, scope: Scope, target: Target, items: list[Item]) -> None:
        """Lower a region whose nodes a target groups into kernels."""
        stack_dims, placed = scope.stack_dims, []
        self.awaited.update((future, []) for future in awaited_in(region))
        for node in region.nodes:
            operand_masks, result_masks = scope.of(node.operands), scope.of(node.results)
            placed.append(stacked_node_at(node, operand_masks, result_masks, scope))
        sizes = stack_dims.shape(stack_dims.everything)
        for unit in group(placed, sizes, region.results, target):
            node = unit.nodes[-1]
            try:
                if unit.kernel is None:
                    operand_masks, result_masks = scope.of(node.operands), scope.of(node.results)
                    self.node(site_at(node, operand_masks, result_masks, scope), scope, items)
                else:
                    self.launch(unit, scope, items)
            except WeftError as error:
                raise error.at(node.loc, node_text(node)) from None

    def launch(self, group: Group, scope: Scope, items: list[Item]) -> None:
        """Append a launch."""
        assert group.kernel is not None
        scope.masks.update(_unnamed(group, scope))
        ins = tuple([scope.slots[v] for v in group.inputs])
        masks = scope.of(group.outputs)
        outs = tuple([self.new(v, m, scope) for v, m in zip(group.outputs, masks, strict=True)])
        scope.slots.update(zip(group.outputs, outs, strict=True))
        items.append(Launch(group.kernel, ins, outs, group.nodes[-1].loc, group))

    # Nodes

    def node(self, site: Site, scope: Scope, items: list[Item]) -> None:
        """Append the items of a node."""
        node = site.node
        match site.op:
            case Call() | Composite():
                inner = scope.called(node)
                body = scope.module.function(inner.calls[-1]).body
                self.inline(body, inner, site, scope, items)
            case NamedComputation():
                self.inline(node.regions[0], scope, site, scope, items)
            case AsyncStart():
                self.start(site, scope, items)
            case While() | If() | Case():
                item = self.control(site, scope)
                # Lowered first, because only its items show whether devices diverge anywhere
                # inside.
                alone = each_device(self, site, scope) if diverges(item) else None
                items.append(item if alone is None else alone)
            case AsyncDone() if node.operands[0] in self.begun:
                start = self.begun[node.operands[0]]
                outs = self.results(node, site.made, scope)
                items.append(Done((*start.outs, *start.ins), outs, node.loc, node))
            case AsyncDone() if node.operands[0] in self.awaited:
                slots = self.awaited[node.operands[0]]
                scope.slots.update(zip(node.results, slots, strict=True))
            case AsyncDone():
                self.move("unpack", site, scope, items)
            case Tuple():
                self.move("pack", site, scope, items)
            case GetTupleElement(index=index):
                self.move("part", site, scope, items, index)
            case AfterAll() | CreateToken():
                self.move("token", site, scope, items)
            case ShardingGroup():
                pass
            case _:
                self.host_node(site, scope, items)

    def control(self, site: Site, scope: Scope) -> Item:
        """A loop or a branch, which all devices take together or not."""
        if isinstance(site.op, While):
            carried, predicate = scope.loop(site.node)
            if predicate:
                return divergent_loop(self, site, scope, predicate)
            return loop(self, site, scope, carried)
        if union(site.given[0]):
            return divergent_branch(self, site, scope)
        return branch(self, site, scope)

    def move(self, how: Any, site: Site, scope: Scope, items: list[Item], index: int = 0) -> None:
        """Append a move; constant if all of its parts are."""
        ins = tuple([scope.slots[v] for v in site.node.operands])
        outs = self.results(site.node, site.made, scope)
        move = Move(how, ins, outs, site.node.loc, index, site.node)
        if self.fold and all(n in self.constants for n in ins) and site.op.pure:
            made = moved(move, [self.constants[n] for n in ins])
            self.constants.update(zip(outs, made, strict=True))
        else:
            items.append(move)

    def host_node(self, site: Site, scope: Scope, items: list[Item]) -> None:
        """Append a host node, or constants if its results can be folded."""
        node, traits = site.node, self.host.traits(site)
        seen = free_variables(node) if traits.sees_outside else ()
        ins = [scope.slots[v] for v in (*node.operands, *seen)]
        if traits.reads_rows:
            assert scope.stack_dims.active is not None
            ins.append(scope.stack_dims.active)
        outs = self.results(node, site.made, scope)
        if site.spread_by_readers:
            self.stacks[outs[0]] = Stack(node.results[0].type, None)
        if self._is_known(site, traits, ins, outs) and not scope.leaves(node):
            made = self.host.compute(site, [self.constants[n] for n in ins])
            self.constants.update(zip(outs, made, strict=True))
            return
        kind = Collective if node.op.collective else Host
        items.append(kind(site, tuple(ins), outs, traits))

    def _is_known(self, site: Site, traits: Traits, ins: Sequence[int], outs: Slots) -> bool:
        """Whether a result can be constant-folded, and is small enough."""
        if not self.fold and site.node.operands:
            return False
        if not site.op.pure or traits.reads_rows or any(n not in self.constants for n in ins):
            return False
        shapes = [stack.shape if (stack := self.stacks[n]) else None for n in outs]
        return traits.shares or sum([math.prod(s) if s else 0 for s in shapes]) <= KEPT

    # Inlined blocks

    def inline(
        self, body: Region, inner: Scope, site: Site, outer: Scope, items: list[Item]
    ) -> None:
        """Inline a region in place of a node; results get their own slots where necessary."""
        for arg, value, mask in zip(body.args, site.node.operands, site.given, strict=True):
            inner.slots[arg], inner.masks[arg] = outer.slots[value], mask
        items += self.region(body, inner).items
        slots = self.separate(body, inner, site.node, items)
        outer.slots.update(zip(site.node.results, slots, strict=True))

    def separate(self, region: Region, scope: Scope, node: Node, items: list[Item]) -> list[int]:
        """An unaliased slot for each result of a region."""
        local = {v for n in region.nodes for v in n.results}
        slots: list[int] = []
        for result in region.results:
            slot = scope.slots[result]
            # A result that is an argument, or one that is returned twice: two values in one slot
            # could not be freed or donated one by one.
            if result not in local or slot in slots:
                other = self.new(result, scope.of([result])[0], scope)
                items.append(Move("same", (slot,), (other,), node.loc))
                slot = other
            slots.append(slot)
        return slots

    def start(self, site: Site, scope: Scope, items: list[Item]) -> None:
        """The region of an asynchronous start, with packed results."""
        (region,) = site.node.regions
        for arg, value, mask in zip(region.args, site.node.operands, site.given, strict=True):
            scope.slots[arg], scope.masks[arg] = scope.slots[value], mask
        if site.node.results[0] in self.pending and scope.sends(region.nodes[0]):
            self.begin(site, scope, items)
            return
        inner = self.region(region, scope)
        items += inner.items
        (future,) = site.node.results
        if future in self.awaited:
            self.awaited[future] = self.separate(region, scope, site.node, items)
            return
        outs = self.results(site.node, site.made, scope)
        items.append(Move("pack", inner.results, outs, site.node.loc))

    def begin(self, site: Site, scope: Scope, items: list[Item]) -> None:
        """Append the start of a collective between processes."""
        (node,) = site.node.regions[0].nodes
        inner = site_at(node, scope.of(node.operands), scope.of(node.results), scope)
        traits = self.host.traits(inner)
        ins = [scope.slots[v] for v in node.operands]
        if traits.reads_rows:
            assert scope.stack_dims.active is not None
            ins.append(scope.stack_dims.active)
        outs = self.results(site.node, site.made, scope)
        start = Start(inner, tuple(ins), outs, traits, stream_of(site.node.attrs))
        self.begun[site.node.results[0]] = start
        items.append(start)


def site_at(
    node: Node,
    masks: Sequence[Mask],
    result_masks: Sequence[Mask],
    scope: Scope,
    spread: bool = False,
) -> Site:
    """A node with its context."""
    summed: tuple[int, ...] = ()
    if scope.summed:
        listed = [scope.summed.get(v, 0) for v in (*node.operands, *node.results)]
        summed = tuple(listed) if any(listed) else ()
    rest = (tuple(masks), tuple(result_masks), summed, spread)
    return Site(node, scope.stack_dims, scope.world, scope.module, *rest)


def shape_of(value: Value, mask: Mask, stack_dims: StackDims) -> tuple[int, ...] | None:
    """The static shape of a stack, or None."""
    type = value.type
    if not isinstance(type, TensorType) or not isinstance(mask, int):
        return None
    if stack_dims.has_rows and mask & 1:
        return None
    return stack_dims.shape(mask) + type.sizes


def _unnamed(group: Group, scope: Scope) -> dict[Value, int]:
    """The masks of kernel outputs without a node, from their stacks."""
    assert group.kernel is not None
    operands = [o for o in group.kernel.operands if o.output]
    return {
        value: scope.stack_dims.mask(
            d for d in range(scope.stack_dims.lead) if operand.shape[d] > 1
        )
        for value, operand in zip(group.outputs, operands, strict=True)
        if value not in scope.body.masks
    }
