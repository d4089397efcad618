"""Build the graph of a prepared module."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from weft.ir.module import Function, Node, Region, Value
from weft.ir.op import Op
from weft.ir.op import rule as rule_of
from weft.ir.rule import Factor, Rule
from weft.ir.types import TensorType
from weft.mesh import Sharding
from weft.ops.control import AsyncStart, Call, Case, If, OptimizationBarrier, While
from weft.ops.sharding import (
    ManualComputation,
    NamedComputation,
    Reshard,
    ShardingConstraint,
    ShardingGroup,
)
from weft.shard.annotations import annotated, given_args, given_results, shardings_of
from weft.shard.directions import ROUNDS, Table, directions, finds_unread, use_counts
from weft.shard.doomed import Doomed, reads, reads_inside
from weft.shard.drop_dead import dead_nodes
from weft.shard.edits import Reader, Use
from weft.shard.factors import BOTH
from weft.shard.graph import Graph, Instance, Member, Visit
from weft.shard.kinds import is_elementwise, is_scalar, stops_shardings
from weft.shard.manual import Frame, erased, manual_names
from weft.shard.prepare import Prepared
from weft.shard.rules import Rules


def build(prepared: Prepared, rules: Rules | None = None) -> Graph:
    """The graph of every function that nobody calls."""
    graph = Graph(prepared.module, rules=rules or Rules())
    functions = prepared.module.functions
    counts = {name: use_counts(function.body) for name, function in functions.items()}
    if any(finds_unread(functions[name].body, found) for name, found in counts.items()):
        graph.unread = True
        graph.dead = dead_nodes(prepared.module, flowing=True)
    shared = _Shared(graph, prepared, counts)
    # Shardy takes the last function first.
    for function in reversed([*functions.values()]):
        if function.name not in prepared.called:
            graph.roots.insert(0, _Builder(shared, function).root())
    return graph


class _Kind(NamedTuple):
    """What is the same for all nodes of one op on operands of the same types."""

    rule: Rule
    elementwise: bool
    tensors: tuple[int, ...]  # operands that can be split
    alone: Table  # directions where the node alone reads these
    shared: Table  # and elsewhere


@dataclass(slots=True)
class _Shared:
    """What the builders of all instances share."""

    graph: Graph
    prepared: Prepared
    counts: dict[str, dict[Value, int]]  # for each function, how often each value is read
    kinds: dict[object, _Kind | None] = field(default_factory=dict)

    def kind(self, node: Node) -> _Kind | None:
        """What there is to know of a node; None if no sharding passes through it."""
        key: object = (node.op, *[v.type for v in node.operands])
        if node.regions or node.attrs:
            key = (key, node.bodies, node.attrs)
        try:
            return self.kinds[key]
        except KeyError:
            found = self.kinds[key] = self.learn(node)
            return found

    def learn(self, node: Node) -> _Kind | None:
        values = node.operands + node.results
        if not any(isinstance(v.type, TensorType) and v.type.shape for v in values):
            return None
        rule = self.graph.rules.find(node)
        if rule is None:
            if stops_shardings(type(node.op)):
                return None
            rule = rule_of(node.op, node.operand_types, node.bodies)
        elementwise = is_elementwise(node)
        tensors = tuple(n for n, v in enumerate(node.operands) if not is_scalar(v))
        return _Kind(rule, elementwise, tensors, *directions(node, rule, elementwise))


# An edge's visit is known only after the regions that feed it: a list of one, filled in later.
Slot = list[int]
_NOTHING = Rule((), (), ())
_SPEAKING = (ShardingConstraint, Reshard)  # ops that say how their result is split


@lru_cache(maxsize=4096)
def identity_rule(type: TensorType, sources: int = 1) -> tuple[Rule, Table]:
    """Every dim from each source to the one result, in any direction."""
    dims = tuple((n,) for n in range(type.rank))
    rule = Rule(tuple(Factor(size) for size in type.sizes), (dims,) * sources, (dims,))
    return rule, ((BOTH,) * type.rank,) * ROUNDS


class _Builder:
    """Builds the part of the graph that belongs to one instance of a function."""

    def __init__(self, shared: _Shared, function: Function) -> None:
        self.shared = shared
        self.graph = shared.graph
        self.prepared = shared.prepared
        self.instance = Instance(function)
        self.cells = self.instance.cells
        self.counts = shared.counts[function.name]
        self.doomed = Doomed(self.counts)
        self.readers: defaultdict[Value, list[int | Slot]] = defaultdict(list)  # visits to tell
        self.carried: set[Value] = set()  # values that edges read
        self.slots: dict[Value, dict[Use, int | Slot]] = {}  # where orders are given
        self.edges: list[tuple[int, int | None, Value, tuple[Value, ...]]] = []
        self.owners: dict[Value, int] = {}  # the visit of the node that makes a value
        self.placed: set[Node] = set()  # visited before their turn
        self.loop_args: set[Value] = set()
        self.copies: list[Value] = []  # other names of values, whose readers wait for their turn
        self.members: list[tuple[Value, Member]] = []  # of sharding groups
        self.grouped: set[Value] = set()

    def root(self) -> Instance:
        """The instance of a function that nobody calls."""
        function = self.instance.function
        given = given_args(function, self.graph.module, called=False)
        for value, sharding in zip(function.body.args, given, strict=True):
            self.cell(value, sharding)
        self.region(function.body)
        self.instance.results = tuple(self.cells[v] for v in function.body.results)
        shown = function.res_attrs or ((),) * len(function.body.results)
        # Shardy looks at the result attributes of one function only.
        is_main = function.name == "main" or self.prepared.roots == 1
        made = []
        for value, attrs in zip(function.body.results, shown, strict=True):
            cell = self.graph.cell(value.type, annotated(attrs))
            made.append(cell)
            if is_main and isinstance(value.type, TensorType) and value.type.shape:
                rule, both = identity_rule(value.type)
                self.graph.results.append(Visit(rule, (self.cells[value], cell), both, False))
        self.instance.result_cells = tuple(made)
        self.tell()
        return self.instance

    def cell(self, value: Value, sharding: Sharding | None) -> int:
        """A cell for a value."""
        if self.prepared.given:
            sharding = self.prepared.given.get(value, sharding)
        made = self.cells[value] = self.graph.cell(value.type, sharding)
        return made

    def region(self, region: Region) -> None:
        """Build what belongs to the nodes of a region; the dead are met before what they hold."""
        placed, dead, handlers = self.placed, self.graph.dead, _HANDLERS
        for node in region.nodes:
            if node in dead:
                self.doom(node)
            elif node not in placed:
                handlers.get(type(node.op), _Builder.plain)(self, node)

    # Nodes with a rule

    def plain(self, node: Node) -> None:
        self.results(node)
        kind = self.shared.kind(node)
        if kind is None:
            return
        rule, elementwise, tensors, allowed, elsewhere = kind
        operands, cells, readers, counts = node.operands, self.cells, self.readers, self.counts
        for n in tensors:
            if counts[operands[n]] != 1:
                allowed = elsewhere
                break
        visits = self.graph.visits
        index = len(visits)
        read = [cells[v] for v in operands]
        for value in node.results:
            self.owners[value] = index
            read.append(cells[value])
        visits.append(Visit(rule, tuple(read), allowed, elementwise, node))
        for value in operands:
            readers[value].append(index)
        if len(operands) > 1 and len(set(operands)) < len(operands):
            self.graph.twice.add(index)
        if self.prepared.orders:
            self.keep(node, operands, [index] * len(operands))

    def results(self, node: Node) -> None:
        """Cells for the results of a node; several of them have shardings together."""
        if node.attrs or type(node.op) in _SPEAKING:
            given = given_results(node, self.graph.module)
        elif len(node.results) == 1:
            self.cell(node.results[0], None)
            return
        else:
            given = (None,) * len(node.results)
        made = [self.cell(v, s) for v, s in zip(node.results, given, strict=True)]
        if len(made) > 1:
            self.graph.siblings.update(dict.fromkeys(made, tuple(made)))

    def doom(self, node: Node) -> None:
        """Note a node that will be erased when its turn comes, whether it spreads or not."""
        index = len(self.graph.visits)
        if isinstance(node.op, If):
            self.add(Visit(_NOTHING, (), ((),) * ROUNDS, False, node))
        _HANDLERS.get(type(node.op), _Builder.plain)(self, node)
        if len(self.graph.visits) == index:
            self.add(Visit(_NOTHING, (), ((),) * ROUNDS, False, node))
        self.doomed.nodes[index] = node
        self.doomed.inside[index] = range(index + 1, len(self.graph.visits))

    def add(self, visit: Visit) -> int:
        self.graph.visits.append(visit)
        return len(self.graph.visits) - 1

    # Edges

    def read(self, reader: Reader, values: tuple[Value, ...], told: Sequence[int | Slot]) -> None:
        """Remember who is to be told of changes of these values."""
        self.carried.update(values)
        for value, visit in zip(values, told, strict=True):
            self.readers[value].append(visit)
        if self.prepared.orders:
            self.keep(reader, values, told)

    def keep(self, reader: Reader, values: tuple[Value, ...], told: Sequence[int | Slot]) -> None:
        """Remember which of the readers is which, where they are told in an order of their own."""
        for n, (value, visit) in enumerate(zip(values, told, strict=True)):
            if value in self.prepared.orders:
                self.slots.setdefault(value, {})[reader, n] = visit

    def edge(
        self,
        owner: Value,
        sources: tuple[int, ...],
        node: Node,
        others: tuple[Value, ...] = (),
        frame: Frame | None = None,
    ) -> int | None:
        """A visit between the sources of a carried value and the value, which others share."""
        cell = self.cells[owner]
        index = None
        if isinstance(owner.type, TensorType) and owner.type.shape:
            rule, both = identity_rule(owner.type, len(sources))
            index = self.add(Visit(rule, (*sources, cell), both, False, node, frame))
            if cell in sources or len(set(sources)) < len(sources):
                self.graph.twice.add(index)
        self.edges.append((cell, index, owner, others))
        for behind in self.prepared.behind.get(owner, ()):
            self.plain(behind)
            self.placed.add(behind)
        return index

    def loop(self, node: Node) -> None:
        condition, body = node.regions
        made = [self.cell(v, s) for v, s in zip(node.results, shardings_of(node), strict=True)]
        for inner in (condition, body):
            self.cells.update(zip(inner.args, made, strict=True))
            self.loop_args.update(inner.args)
        slots = [[-1] for _ in made]
        self.read(node, node.operands, slots)
        self.region(condition)
        self.region(body)
        self.read(body, body.results, slots)
        for n, result in enumerate(node.results):
            sources = (self.cells[node.operands[n]], self.cells[body.results[n]])
            others = (condition.args[n], body.args[n])
            _fill(slots[n], self.edge(result, sources, node, others))

    def branches(self, node: Node) -> None:
        for value, given in zip(node.results, shardings_of(node), strict=True):
            self.cell(value, given)
        slots = [[-1] for _ in node.results]
        for inner in node.regions:
            self.region(inner)
            self.read(inner, inner.results, slots)
        for n, value in enumerate(node.results):
            sources = tuple(self.cells[r.results[n]] for r in node.regions)
            _fill(slots[n], self.edge(value, sources, node))

    def either(self, node: Node) -> None:
        """Nothing flows through a stablehlo.if, in Shardy neither."""
        for inner in node.regions:
            self.region(inner)
        self.results(node)

    def asynchronous(self, node: Node) -> None:
        for value, operand in zip(node.regions[0].args, node.operands, strict=True):
            self.cells[value] = self.cells[operand]
            self.copies.append(value)
        self.either(node)

    def barrier(self, node: Node) -> None:
        slots = [[-1] for _ in node.results]
        self.read(node, node.operands, slots)
        for n, (value, given) in enumerate(zip(node.results, shardings_of(node), strict=True)):
            self.cell(value, given)
            _fill(slots[n], self.edge(value, (self.cells[node.operands[n]],), node))

    def call(self, node: Node) -> None:
        assert isinstance(node.op, Call)
        function = self.graph.module.function(node.op.callee)
        inner = _Builder(self.shared, function)
        self.instance.calls[node] = inner.instance
        self.enter(node, inner, given_args(function, self.graph.module, called=True))
        inner.instance.results = tuple(inner.cells[v] for v in function.body.results)
        self.leave(node, inner, given_results(node, self.graph.module))
        inner.tell()

    def named(self, node: Node) -> None:
        assert isinstance(node.op, NamedComputation)
        self.enter(node, self, node.op.in_shardings or (None,) * len(node.operands))
        self.leave(node, self, given_results(node, self.graph.module))

    def manual(self, node: Node) -> None:
        assert isinstance(node.op, ManualComputation)
        manual = manual_names(node.op)
        frames = [Frame(s, manual, False) for s in node.op.in_shardings]
        self.enter(node, self, [erased(f.outer, manual) for f in frames], frames)
        frames = [Frame(s, manual, True) for s in node.op.out_shardings]
        self.leave(node, self, node.op.out_shardings, frames)

    def enter(
        self,
        node: Node,
        inner: _Builder,
        given: Sequence[Sharding | None],
        frames: Sequence[Frame | None] = (),
    ) -> None:
        """Edges from the operands of a computation to the arguments of its body, and the body."""
        body = node.regions[0] if inner is self else inner.instance.function.body
        for value, sharding in zip(body.args, given, strict=True):
            inner.cell(value, sharding)
        # Shardy does not tell these edges when an operand changes: they wait for their turn.
        for n, (value, operand) in enumerate(zip(body.args, node.operands, strict=True)):
            frame = frames[n] if frames else None
            cell = self.cells[operand]
            index = inner.edge(value, (cell,), node, frame=frame)
            if index is not None:
                self.graph.untold.setdefault(cell, []).append(index)
        inner.region(body)

    def leave(
        self,
        node: Node,
        inner: _Builder,
        given: Sequence[Sharding | None],
        frames: Sequence[Frame | None] = (),
    ) -> None:
        """Edges from the results of the body of a computation to its own."""
        body = node.regions[0] if inner is self else inner.instance.function.body
        slots = [[-1] for _ in node.results]
        inner.read(body, body.results, slots)
        for n, (value, sharding) in enumerate(zip(node.results, given, strict=True)):
            self.cell(value, sharding)
            frame = frames[n] if frames else None
            source = inner.cells[body.results[n]]
            _fill(slots[n], self.edge(value, (source,), node, frame=frame))

    def group(self, node: Node) -> None:
        """Note that a value belongs to a sharding group."""
        assert isinstance(node.op, ShardingGroup)
        (value,) = node.operands
        if value in self.grouped:
            return
        self.grouped.add(value)
        # A loop's argument follows its group, but what changes in the loop is the edge.
        member = Member(self.cells[value], [], value not in self.loop_args)
        self.members.append((value, member))
        number = self.prepared.groups[node.op.group_id]
        self.graph.groups.setdefault(number, []).append(member)

    # Who is told

    def tell(self) -> None:
        """Say whom a change of each cell is told to, in the order in which Shardy does."""
        if self.doomed.nodes:
            self.complete_doomed()
        told = self.graph.told
        shared: set[Value] = set(self.copies)
        for value in self.copies:
            untold = self.graph.untold.setdefault(self.cells[value], [])
            untold.extend(self.listed(value, False))
        for cell, index, owner, others in self.edges:
            shared.update((owner, *others))
            for value in others:
                told[cell].extend(self.listed(value, False))
            if index is not None:
                told[cell].append(index)
            told[cell].extend(self.listed(owner, True))
        owners, readers = self.owners, self.readers
        unusual = {*self.carried, *self.slots}
        for value, cell in self.cells.items():
            if value in shared:
                continue
            found = told[cell]
            if (index := owners.get(value)) is not None:
                found.append(index)
            if value in unusual:
                found.extend(self.listed(value, False))
            elif value in readers:
                found.extend(readers[value][::-1])  # type: ignore[arg-type]
        for value, member in self.members:
            member.told.extend(told[member.cell] if member.leads else self.listed(value, False))

    def listed(self, value: Value, is_edge: bool) -> list[int]:
        """The visits that read a value, as MLIR lists its uses."""
        order = self.prepared.orders.get(value)
        if order is not None:
            slots = self.slots.get(value, {})
            return _visits([slots[use] for use in order if use in slots])
        found = self.readers.get(value, [])
        if not is_edge or (value.node is not None and isinstance(value.node.op, Call)):
            found = found[::-1]
        return _visits(found)

    def complete_doomed(self) -> None:
        """Say who else reads what the doomed nodes read."""
        doomed = self.doomed
        self.graph.doomed.append(doomed)
        doomed.makers.update(self.owners)
        doomed.makers.update({v: i for _, i, v, _ in self.edges if i is not None})
        doomed.makers.update({v: i for i, node in doomed.nodes.items() for v in node.results})
        for dead in doomed.nodes.values():
            for _, values in reads(dead):
                doomed.readers.update({v: set() for v in values})
        for reader, values in reads_inside(self.instance.function.body):
            for value in values:
                if value in doomed.readers:
                    doomed.readers[value].add(reader)
        for index in set(self.owners.values()):
            visit = self.graph.visits[index]
            node = visit.node
            assert node is not None
            kind = self.shared.kind(node)
            assert kind is not None
            if visit.directions is not kind.alone and doomed.readers.keys() & set(node.operands):
                values = tuple(node.operands[n] for n in kind.tensors)
                doomed.waiting[node] = (index, values, kind.alone)


def _fill(slot: Slot, index: int | None) -> None:
    slot[0] = -1 if index is None else index


def _visits(found: Iterable[int | Slot]) -> list[int]:
    """The visits themselves; edges of values that cannot be split have none."""
    visits = [v if isinstance(v, int) else v[0] for v in found]
    return [v for v in visits if v >= 0]


_HANDLERS: dict[type[Op], Callable[[_Builder, Node], None]] = {
    AsyncStart: _Builder.asynchronous,
    Call: _Builder.call,
    Case: _Builder.branches,
    If: _Builder.either,
    ManualComputation: _Builder.manual,
    NamedComputation: _Builder.named,
    OptimizationBarrier: _Builder.barrier,
    ShardingGroup: _Builder.group,
    While: _Builder.loop,
}
