"""Merge independent collectives of one kind and group into one that has several operands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, replace
from heapq import heappop, heappush
from typing import TypeAlias

from weft.cost.collective_time import GroupExtent, TrafficKind
from weft.cost.costs import KINDS, Costs
from weft.cost.prices import knee
from weft.ir.gc_pause import without_gc
from weft.ir.location import fuse
from weft.ir.module import Function, Module, Node, Region, Value
from weft.ir.op import Op
from weft.ir.rebuild import carry_tables
from weft.ir.types import TensorType
from weft.ir.uses import reads
from weft.ir.work import moved
from weft.machine import Machine
from weft.mesh import MeshAxes
from weft.ops.combiners import SHORT_NAMES, combiner
from weft.ops.distributed.collective import AllGather, AllReduce, AllToAll, ReduceScatter
from weft.ops.distributed.local import PermuteAlongAxes, VariadicReduceScatter
from weft.optimize.collectives.facts import plain_combiner
from weft.records import dataclass

# XLA's byte threshold on GPUs, so that a program sends the same messages here and there. It holds
# where no machine with links of its own is given.
MOST_BYTES = 30 * 1024 * 1024 + 7
_KNEES = 4.0  # beyond this many knees a longer message gains little, and is waited for longer
MOST_OPS = 2048
MergeKey: TypeAlias = tuple[object, ...]
SetMask: TypeAlias = int  # a bit mask of sets


def combine_collectives(
    module: Module,
    *,
    machine: Machine | None = None,
    combine_bytes: int | None = None,
    combine_ops: int = MOST_OPS,
) -> Module:
    """Merge independent collectives, up to these bytes and ops in one.

    A limit of 0 or less disables merging. A collective above the byte limit stays alone. Without
    `combine_bytes` the limit of each group is a multiple of the bytes that the machine's links
    carry in the latency of one collective.
    """
    if combine_ops <= 0 or (combine_bytes is not None and combine_bytes <= 0):
        return module
    with without_gc():
        run = _Combining(ByteLimits(module, machine, combine_bytes), combine_ops)
        functions = {name: run.function(f) for name, f in module.functions.items()}
        return carry_tables(module.with_functions(functions), run.became)


class ByteLimits:
    """The most bytes of a combined collective: a given number, or by the machine's links."""

    def __init__(self, module: Module, machine: Machine | None, limit: int | None) -> None:
        # Where nothing overlaps, waiting for more members costs nothing.
        by_links = limit is None and machine is not None and machine.overlaps
        self.costs = Costs(module, machine) if machine is not None and by_links else None
        self.most = MOST_BYTES if limit is None else limit
        self.known: dict[tuple[TrafficKind, GroupExtent], int] = {}

    def of(self, op: Op) -> int:
        """The limit of a collective's kind and group."""
        if self.costs is None:
            return self.most
        kind, spread = KINDS[type(op)], self.costs.group_extent(op)
        limit = self.known.get((kind, spread))
        if limit is None:
            bytes = _KNEES * knee(kind, spread, self.costs.machine) if spread.devices > 1 else 0.0
            limit = self.known[kind, spread] = round(bytes)
        return limit


@dataclass(eq=False)
class _Set:
    """Collectives to be merged into one."""

    bit: SetMask
    members: list[Node] = field(default_factory=list)
    bytes: int = 0
    ops: int = 0
    after: SetMask = 0  # the sets that depend on this one, transitively


def key_of(op: Op, node: Node) -> MergeKey | None:
    """The key that collectives must share to be merged; None if it is never merged."""
    match op:
        case AllGather():
            return (AllGather, op.all_gather_dim, op.replica_groups, _groups_key(op), node.attrs)
        case AllReduce():
            dtypes = {
                t.dtype for t in (*node.operand_types, *node.types) if isinstance(t, TensorType)
            }
            # Operands of one dtype: the merged region combines scalars of a single type.
            how = plain_combiner(node)
            if how is None or len(dtypes) != 1:
                return None
            return (AllReduce, how, *dtypes, op.replica_groups, _groups_key(op), node.attrs)
        case ReduceScatter() if isinstance(op.replica_groups, MeshAxes):
            how = plain_combiner(node)
            usual = op.channel > 0 and op.use_global_device_ids and len(node.operands) == 1
            same = _same_dtypes(node)
            if how is None or not usual or not same:
                return None
            return (VariadicReduceScatter, how, op.replica_groups, node.attrs)
        case VariadicReduceScatter():
            return (VariadicReduceScatter, op.combine, op.axes, node.attrs)
        case AllToAll():
            dims = (op.split_dimension, op.concat_dimension, op.split_count)
            return (AllToAll, *dims, op.replica_groups, _groups_key(op), node.attrs)
        case PermuteAlongAxes():
            return (PermuteAlongAxes, op.axes, op.sources, node.attrs)
    return None


def _groups_key(op: AllGather | AllReduce | AllToAll) -> tuple[bool, bool]:
    """Whether a collective has a channel, whatever its id, and use_global_device_ids."""
    return op.channel > 0, bool(getattr(op, "use_global_device_ids", False))


def _same_dtypes(node: Node) -> bool:
    pairs = zip(node.operand_types, node.types, strict=True)
    return all(
        isinstance(a, TensorType) and isinstance(b, TensorType) and a.dtype is b.dtype
        for a, b in pairs
    )


def merged(members: list[Node]) -> Node:
    """The merged collective."""
    first = members[0]
    operands = tuple([v for node in members for v in node.operands])
    types = tuple([v.type for node in members for v in node.results])
    op: Op = first.op
    regions = first.regions
    match op:
        case AllGather():
            op = op.replace(outs=types)
        case AllReduce():
            how, scalar = plain_combiner(first), types[0]
            assert how is not None and isinstance(scalar, TensorType)
            regions = (combiner(how, scalar),)
        case ReduceScatter() | VariadicReduceScatter():
            op, regions = _scattered(members), ()
    loc = fuse(*(node.loc for node in members))
    return Node(op, operands, types, regions, first.attrs, loc)


def _scattered(members: list[Node]) -> Op:
    dims: list[int] = []
    outs = tuple([v.type for node in members for v in node.results])
    how, groups = None, None
    for node in members:
        match node.op:
            case ReduceScatter() as op:
                dims.append(op.scatter_dimension)
                how, groups = plain_combiner(node), op.replica_groups
            case VariadicReduceScatter() as op:
                dims.extend(op.scatter_dimensions)
                how, groups = op.combine, op.axes
    assert how is not None and groups is not None
    return VariadicReduceScatter(tuple(dims), SHORT_NAMES[how], groups, outs)


class _Combining:
    """One run over a module."""

    def __init__(self, limits: ByteLimits, most_ops: int) -> None:
        self.limits = limits
        self.most_ops = most_ops
        self.became: dict[Value, Value] = {}

    def function(self, function: Function) -> Function:
        """The function with collectives merged; the same one if there are none."""
        body = self.region(function.body)
        return function if body is function.body else replace(function, body=body)

    def region(self, region: Region) -> Region:
        """The region with collectives merged, and those inside it."""
        sets = [s for s in self.sets(region.nodes) if len(s.members) > 1]
        out = _Placing(self, sets).nodes(region.nodes) if sets else self.renewed(region.nodes)
        results = tuple([self.became.get(v, v) for v in region.results])
        if results == region.results and out == region.nodes:
            return region
        return Region(region.args, out, results, region.loc, region.arg_locs)

    def renewed(self, nodes: list[Node]) -> list[Node]:
        """The nodes on the new values of their operands."""
        if not self.became and not any(node.regions for node in nodes):
            return nodes
        return [self.renew(node) for node in nodes]

    def renew(self, node: Node) -> Node:
        """One node on the new values of its operands."""
        operands = tuple([self.became.get(v, v) for v in node.operands])
        regions = tuple([self.region(r) for r in node.regions]) if node.regions else ()
        if operands == node.operands and regions == node.regions:
            return node
        made = node.rebuilt(operands, regions)
        self.became.update(zip(node.results, made.results, strict=True))
        return made

    def sets(self, nodes: list[Node]) -> list[_Set]:
        """Sets of collectives that can be merged without a cyclic dependence.

        Every value has the mask of sets that it depends on. A collective may join the open set of
        its key unless it depends on that set, directly or through others.
        """
        sets_so_far: list[_Set] = []
        open_sets: dict[MergeKey, _Set] = {}
        needs: dict[Value, SetMask] = {}
        last_effect: SetMask = 0
        for node in nodes:
            mask = 0
            for value in reads(node):
                mask |= needs.get(value, 0)
            if node.op.collective:
                key = key_of(node.op, node)
                if key is not None:
                    chosen = self.join(key, node, mask, open_sets, sets_so_far)
                    mask |= chosen.bit
            if not node.op.pure:
                # Effects keep their order, so merging must not move one across another: each
                # depends on the sets of those before it.
                mask |= last_effect
                last_effect = mask
            if mask:
                for value in node.results:
                    needs[value] = mask
        return sets_so_far

    def join(
        self,
        key: MergeKey,
        node: Node,
        mask: SetMask,
        open_sets: dict[MergeKey, _Set],
        all_sets: list[_Set],
    ) -> _Set:
        """The set of a collective: the open one of its key, or a new one."""
        size = max(moved(*node.operand_types), moved(*node.types))
        count, most = len(node.operands), self.limits.of(node.op)
        # One open set for each key: first fit, in program order.
        open_set = open_sets.get(key)
        fits = (
            open_set is not None
            and open_set.bytes + size <= most
            and open_set.ops + count <= self.most_ops
            # A member that depends on the set, directly or through another set, would wait for
            # itself.
            and not mask & (open_set.bit | open_set.after)
        )
        if open_set is None or not fits:
            open_set = _Set(1 << len(all_sets))
            all_sets.append(open_set)
            if size <= most:  # one that is too large does not close the open set
                open_sets[key] = open_set
        open_set.members.append(node)
        open_set.bytes += size
        open_set.ops += count
        # The set now depends on the sets that its new member depends on, transitively. Closed sets
        # get no more members, so their masks need no update.
        for other in open_sets.values():
            if other is not open_set and mask & (other.bit | other.after):
                other.after |= open_set.bit | open_set.after
        return open_set


class _Placing:
    """Reorders the nodes of a region, with every set as one node at its last member.

    Users of earlier members are delayed until then; all other nodes keep their order.
    """

    def __init__(self, combining: _Combining, sets: list[_Set]) -> None:
        self.combining = combining
        self.of: dict[Node, int] = {m: n for n, s in enumerate(sets) for m in s.members}
        self.sets = sets
        self.awaited: dict[Value, frozenset[int]] = {}  # sets that must come before a value
        self.waiting: dict[int, list[int]] = {n: [] for n in range(len(sets))}
        # For each delayed item, the number of sets that it waits for.
        self.missing: dict[int, int] = {}
        self.items: dict[int, Node | int] = {}
        self.out: list[Node] = []

    def nodes(self, nodes: list[Node]) -> list[Node]:
        """The nodes in their new order."""
        # At its last member all operands of a set exist; earlier, some would not.
        last = {s.members[-1]: n for n, s in enumerate(self.sets)}
        effect: frozenset[int] = frozenset()
        for place, node in enumerate(nodes):
            index = self.of.get(node)
            before = self.before(reads(node))
            if not node.op.pure:
                # An effect waits for all sets that an earlier effect waits for: effects stay in
                # order even where they are delayed.
                before = effect = self.to_come(before | effect)
            if index is not None:
                awaited = before | {index}
                self.awaited.update(dict.fromkeys(node.results, awaited))
                if node in last:
                    self.place(place, index, self.before_set(index))
                continue
            if before:
                self.awaited.update(dict.fromkeys(node.results, before))
            self.place(place, node, before)
        assert not self.missing, "sets of collectives wait for each other"
        return self.out

    def before(self, values: Iterable[Value]) -> frozenset[int]:
        """The sets that must still be emitted before these values are available."""
        sets: frozenset[int] = frozenset()
        if self.awaited:
            for value in values:
                awaited = self.awaited.get(value)
                if awaited is not None:
                    sets |= awaited
        return self.to_come(sets) if sets else sets

    def to_come(self, sets: frozenset[int]) -> frozenset[int]:
        """The collectives of some sets that are not emitted yet."""
        return frozenset([n for n in sets if n in self.waiting])

    def before_set(self, index: int) -> frozenset[int]:
        """The sets that must come before one of them."""
        return self.before(v for m in self.sets[index].members for v in reads(m)) - {index}

    def place(self, place: int, item: Node | int, before: frozenset[int]) -> None:
        """Emit a node or a set, or delay it until its sets are emitted."""
        self.items[place] = item
        if before:
            self.missing[place] = len(before)
            for index in before:
                self.waiting[index].append(place)
            return
        ready = [place]
        while ready:  # in the original order
            next_item = self.items.pop(heappop(ready))
            if isinstance(next_item, Node):
                self.out.append(self.combining.renew(next_item))
            else:
                for freed in self.emit(next_item):
                    heappush(ready, freed)

    def emit(self, index: int) -> list[int]:
        """Append a set as one node; returns the items that waited for this set only."""
        members = self.sets[index].members
        made = merged([self.combining.renew(m) for m in members])
        old = [v for m in members for v in m.results]
        self.combining.became.update(zip(old, made.results, strict=True))
        self.out.append(made)
        freed = []
        for place in self.waiting.pop(index):
            self.missing[place] -= 1
            if not self.missing[place]:
                del self.missing[place]
                freed.append(place)
        return freed
