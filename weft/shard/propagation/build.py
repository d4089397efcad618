"""The builder of a prepared module's propagation graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

from weft.ir.module import Function, Node, Region, Value
from weft.ir.op import Op
from weft.ir.types import TensorType
from weft.mesh import Sharding
from weft.ops.control import AsyncStart, Call, Case, If, OptimizationBarrier, While
from weft.ops.distributed.annotations import sharding_attribute, shardings_of
from weft.ops.distributed.sharding import (
    ManualComputation,
    NamedComputation,
    Reshard,
    ShardingConstraint,
    ShardingGroup,
)
from weft.records import dataclass
from weft.shard.drop_dead import dead_nodes
from weft.shard.given import given_args, given_results
from weft.shard.manual import ManualFrame, erased, manual_names
from weft.shard.preparation.edits import Use, ValueUser
from weft.shard.preparation.prepare import Prepared
from weft.shard.propagation.dead_nodes import DeadNodes, reads, reads_inside
from weft.shard.propagation.directions import finds_unread
from weft.shard.propagation.flow import NOTHING, Flow, FlowClass, Flows
from weft.shard.propagation.graph import Graph, GroupMember, Instance, Visit
from weft.shard.rules import Rules


def build(prepared: Prepared, rules: Rules | None = None) -> Graph:
    """The graph of all functions without callers."""
    graph = Graph(prepared.module, rules=rules or Rules())
    functions = prepared.module.functions
    counts = {name: prepared.summaries[f.body].counts for name, f in functions.items()}
    if any(finds_unread(functions[name].body, found) for name, found in counts.items()):
        graph.unread = True
        graph.dead = dead_nodes(prepared.module, flowing=True)
    shared = _Shared(graph, prepared, counts, Flows(graph.rules))
    # Shardy visits the last function first.
    for function in reversed([*functions.values()]):
        if function.name not in prepared.called:
            graph.roots.insert(0, _Builder(shared, function).root())
    for listeners, maker in zip(graph.listeners, graph.makers, strict=True):
        if maker >= 0:
            listeners.append(maker)  # the last of the list is notified first
    return graph


@dataclass(slots=True)
class _Shared:
    """The state shared by the builders of all instances."""

    graph: Graph
    prepared: Prepared
    counts: dict[str, dict[Value, int]]  # use counts of each function's values
    flows: Flows
    pending: list[int] = field(default_factory=list)  # the visits of edges, once built


class _Builder:
    """Builds the part of the graph of one instance of a function."""

    def __init__(self, shared: _Shared, function: Function) -> None:
        self.shared = shared
        self.graph = shared.graph
        self.flows = shared.flows
        self.prepared = shared.prepared
        self.instance = Instance(function)
        self.cells = self.instance.cells
        self.counts = shared.counts[function.name]
        self.dead_nodes = DeadNodes(self.counts)
        # The visits that use a value whose cell belongs to an edge or to several values; users of
        # other values are added to the cell directly.
        self.readers: dict[Value, list[int]] = {}
        self.carried: set[Value] = set()  # values that edges read
        self.slots: dict[Value, dict[Use, int]] = {}  # use lists with an explicit order
        self.edges: list[tuple[int, int | None, Value, tuple[Value, ...]]] = []
        self.visits: list[int] = []  # of nodes with a rule
        self.placed: set[Node] = set()  # visits out of program order
        self.loop_args: set[Value] = set()
        self.copies: list[Value] = []  # aliases of values, whose users are not notified at once
        self.members: list[tuple[Value, GroupMember]] = []  # of sharding groups
        self.grouped: set[Value] = set()

    def root(self) -> Instance:
        """The instance of a function without callers."""
        function = self.instance.function
        given = given_args(function, self.graph.module, called=False)
        for value, sharding in zip(function.body.args, given, strict=True):
            self.cell(value, sharding)
        self.region(function.body)
        self.instance.results = tuple(self.cells[v] for v in function.body.results)
        shown = function.res_attrs or ((),) * len(function.body.results)
        # Shardy uses the result attributes of one function only.
        is_main = function.name == "main" or self.prepared.roots == 1
        result_cells = []
        for value, attrs in zip(function.body.results, shown, strict=True):
            cell = self.graph.cell(value.type, sharding_attribute(attrs))
            result_cells.append(cell)
            if is_main and isinstance(value.type, TensorType) and value.type.shape:
                flow = self.flows.edge(value.type)
                self.graph.results.append(Visit(flow, (self.cells[value], cell)))
        self.instance.result_cells = tuple(result_cells)
        self.set_listeners()
        return self.instance

    def cell(self, value: Value, sharding: Sharding | None, maker: int = -1) -> int:
        """A cell for a value."""
        if self.prepared.given:
            sharding = self.prepared.given.get(value, sharding)
        made = self.cells[value] = self.graph.cell(value.type, sharding, maker)
        return made

    def region(self, region: Region) -> None:
        """Build the visits of a region's nodes."""
        graph, prepared, handlers = self.graph, self.prepared, _HANDLERS
        # Each of these concerns single nodes or values, which only the general path looks up.
        if graph.dead or prepared.given or prepared.orders or prepared.behind:
            for node in region.nodes:
                self.node(node)
            return
        kind_of, cells, readers, counts = self.flows.kind, self.cells, self.readers, self.counts
        types, initial, makers = graph.types, graph.initial, graph.makers
        listeners = graph.listeners
        visits, twice = graph.visits, graph.twice
        for node in region.nodes:
            results = node.results
            if type(node.op) in handlers or node.attrs or len(results) != 1:
                self.node(node)
                continue
            # The fast path of `plain`, inlined for the many ordinary nodes.
            value = results[0]
            result_cell = cells[value] = len(types)
            types.append(value.type)
            initial.append(None)
            listeners.append([])
            kind = kind_of(node)
            if kind is None:
                makers.append(-1)
                continue
            operands, index = node.operands, len(visits)
            tensors, flow, elsewhere, idle = kind
            for n in tensors:
                if counts[operands[n]] != 1:
                    flow = elsewhere
                    break
            read = [cells[v] for v in operands]
            visits.append(Visit(flow, (*read, result_cell), node))
            if idle:
                makers.append(-1)
                continue
            makers.append(index)
            for value, cell in zip(operands, read, strict=True):
                if value in readers:
                    readers[value].append(index)
                else:
                    listeners[cell].append(index)
            if len(operands) > 1 and len({*operands}) < len(operands):
                twice.add(index)

    def node(self, node: Node) -> None:
        """Build the visits of a node; dead nodes come before their regions."""
        if node in self.graph.dead:
            self.mark_dead(node)
        elif node not in self.placed:
            _HANDLERS.get(type(node.op), _Builder.plain)(self, node)

    # Nodes with a rule

    def plain(self, node: Node) -> None:
        kind = self.flows.kind(node)
        if kind is None:
            self.results(node)
            return
        operands = node.operands
        index = len(self.graph.visits)
        cells = [self.cells[v] for v in operands]
        made = self.results(node, -1 if kind.idle else index)
        self.add(Visit(self.flow(node, kind), (*cells, *made), node))
        self.visits.append(index)
        if kind.idle:
            return
        for value in operands:
            self.readers_of(value).append(index)
        if len(set(operands)) < len(operands):
            self.graph.twice.add(index)
        if self.prepared.orders:
            self.keep(node, operands, [index] * len(operands))

    def readers_of(self, value: Value) -> list[int]:
        """The visits built so far that use a value."""
        found = self.readers.get(value)
        return self.graph.listeners[self.cells[value]] if found is None else found

    def flow(self, node: Node, kind: FlowClass) -> Flow:
        """The flow of a node, which may depend on the other uses of its operands."""
        for n in kind.tensors:
            if self.counts[node.operands[n]] != 1:
                return kind.shared
        return kind.alone

    def results(self, node: Node, maker: int = -1) -> list[int]:
        """Cells for the results of a node; several results get shardings together."""
        given: Sequence[Sharding | None] = (None,) * len(node.results)
        if node.attrs or isinstance(node.op, ShardingConstraint | Reshard):
            given = given_results(node, self.graph.module)
        made = [self.cell(v, s, maker) for v, s in zip(node.results, given, strict=True)]
        if len(made) > 1:
            self.graph.siblings.update(dict.fromkeys(made, tuple(made)))
        return made

    def mark_dead(self, node: Node) -> None:
        """Record a dead node, which MLIR's driver erases when it visits it."""
        index = len(self.graph.visits)
        if isinstance(node.op, If):
            self.add(Visit(NOTHING, (), node))
        _HANDLERS.get(type(node.op), _Builder.plain)(self, node)
        if len(self.graph.visits) == index:
            self.add(Visit(NOTHING, (), node))
        self.dead_nodes.nodes[index] = node
        self.dead_nodes.inside[index] = range(index + 1, len(self.graph.visits))

    def add(self, visit: Visit) -> int:
        self.graph.visits.append(visit)
        return len(self.graph.visits) - 1

    # Edges

    def reserve_edges(self, edges: int) -> list[int]:
        """Reserve numbers for edges whose visits are built after the regions that feed them."""
        pending = self.shared.pending
        begin = len(pending)
        pending.extend([-1] * edges)
        return [-1 - n for n in range(begin, len(pending))]

    def set_edge(self, number: int, index: int | None) -> None:
        """Set the visit of a reserved edge; edges of values without shardings have none."""
        self.shared.pending[-1 - number] = -1 if index is None else index

    def read(self, reader: ValueUser, values: tuple[Value, ...], listeners: Sequence[int]) -> None:
        """Add a user to be notified of changes of these values."""
        self.carried.update(values)
        for value, visit in zip(values, listeners, strict=True):
            self.readers_of(value).append(visit)
        if self.prepared.orders:
            self.keep(reader, values, listeners)

    def keep(self, reader: ValueUser, values: tuple[Value, ...], listeners: Sequence[int]) -> None:
        """Record a user's position, for values with an explicit notification order."""
        for n, (value, visit) in enumerate(zip(values, listeners, strict=True)):
            if value in self.prepared.orders:
                self.slots.setdefault(value, {})[reader, n] = visit

    def edge(
        self,
        owner: Value,
        sources: tuple[int, ...],
        node: Node,
        others: tuple[Value, ...] = (),
        frame: ManualFrame | None = None,
    ) -> int | None:
        """The visit of a data flow edge, between its sources and its owner and targets."""
        cell = self.cells[owner]
        index = None
        self.readers[owner] = []
        if isinstance(owner.type, TensorType) and owner.type.shape:
            flow = self.flows.edge(owner.type, len(sources), frame)
            index = self.add(Visit(flow, (*sources, cell), node))
            if cell in sources or len(set(sources)) < len(sources):
                self.graph.twice.add(index)
        self.edges.append((cell, index, owner, others))
        # Nodes that import placed between an edge and the next node: their visits follow the
        # edge's.
        for behind in self.prepared.behind.get(owner, ()):
            self.plain(behind)
            self.placed.add(behind)
        return index

    def loop(self, node: Node) -> None:
        condition, body = node.regions
        carried = [self.cell(v, s) for v, s in zip(node.results, shardings_of(node), strict=True)]
        for inner in (condition, body):
            self.cells.update(zip(inner.args, carried, strict=True))
            self.loop_args.update(inner.args)
            self.readers.update({v: [] for v in inner.args})
        slots = self.reserve_edges(len(carried))
        self.read(node, node.operands, slots)
        self.region(condition)
        self.region(body)
        self.read(body, body.results, slots)
        for n, result in enumerate(node.results):
            sources = (self.cells[node.operands[n]], self.cells[body.results[n]])
            others = (condition.args[n], body.args[n])
            self.set_edge(slots[n], self.edge(result, sources, node, others))

    def branches(self, node: Node) -> None:
        for value, given in zip(node.results, shardings_of(node), strict=True):
            self.cell(value, given)
        slots = self.reserve_edges(len(node.results))
        for inner in node.regions:
            self.region(inner)
            self.read(inner, inner.results, slots)
        for n, value in enumerate(node.results):
            sources = tuple(self.cells[r.results[n]] for r in node.regions)
            self.set_edge(slots[n], self.edge(value, sources, node))

    def either(self, node: Node) -> None:
        """Nothing propagates through a stablehlo.if, as in Shardy."""
        for inner in node.regions:
            self.region(inner)
        self.results(node)

    def asynchronous(self, node: Node) -> None:
        for value, operand in zip(node.regions[0].args, node.operands, strict=True):
            self.cells[value] = self.cells[operand]
            self.copies.append(value)
            self.readers[value] = []
        self.either(node)

    def barrier(self, node: Node) -> None:
        slots = self.reserve_edges(len(node.results))
        self.read(node, node.operands, slots)
        for n, (value, given) in enumerate(zip(node.results, shardings_of(node), strict=True)):
            self.cell(value, given)
            self.set_edge(slots[n], self.edge(value, (self.cells[node.operands[n]],), node))

    def call(self, node: Node) -> None:
        assert isinstance(node.op, Call)
        function = self.graph.module.function(node.op.callee)
        inner = _Builder(self.shared, function)
        self.instance.calls[node] = inner.instance
        self.enter(node, inner, given_args(function, self.graph.module, called=True))
        inner.instance.results = tuple(inner.cells[v] for v in function.body.results)
        self.leave(node, inner, given_results(node, self.graph.module))
        inner.set_listeners()

    def named(self, node: Node) -> None:
        assert isinstance(node.op, NamedComputation)
        self.enter(node, self, node.op.in_shardings or (None,) * len(node.operands))
        self.leave(node, self, given_results(node, self.graph.module))

    def manual(self, node: Node) -> None:
        assert isinstance(node.op, ManualComputation)
        manual = manual_names(node.op)
        frames = [ManualFrame(s, manual, False) for s in node.op.in_shardings]
        self.enter(node, self, [erased(f.outer, manual) for f in frames], frames)
        frames = [ManualFrame(s, manual, True) for s in node.op.out_shardings]
        self.leave(node, self, node.op.out_shardings, frames)

    def enter(
        self,
        node: Node,
        inner: _Builder,
        shardings: Sequence[Sharding | None],
        frames: Sequence[ManualFrame | None] = (),
    ) -> None:
        """Edges from the operands of a computation to the arguments of its body, and the body."""
        body = node.regions[0] if inner is self else inner.instance.function.body
        for value, sharding in zip(body.args, shardings, strict=True):
            inner.cell(value, sharding)
        # Shardy does not notify these edges when an operand changes: they run in program order.
        for n, (value, operand) in enumerate(zip(body.args, node.operands, strict=True)):
            frame = frames[n] if frames else None
            cell = self.cells[operand]
            index = inner.edge(value, (cell,), node, frame=frame)
            if index is not None:
                self.graph.deferred.setdefault(cell, []).append(index)
        inner.region(body)

    def leave(
        self,
        node: Node,
        inner: _Builder,
        shardings: Sequence[Sharding | None],
        frames: Sequence[ManualFrame | None] = (),
    ) -> None:
        """Edges from the results of the body of a computation to its own."""
        body = node.regions[0] if inner is self else inner.instance.function.body
        slots = self.reserve_edges(len(node.results))
        inner.read(body, body.results, slots)
        for n, (value, sharding) in enumerate(zip(node.results, shardings, strict=True)):
            self.cell(value, sharding)
            frame = frames[n] if frames else None
            source = inner.cells[body.results[n]]
            self.set_edge(slots[n], self.edge(value, (source,), node, frame=frame))

    def group(self, node: Node) -> None:
        """Add a value to its sharding group."""
        assert isinstance(node.op, ShardingGroup)
        (value,) = node.operands
        if value in self.grouped:
            return
        self.grouped.add(value)
        # A loop's argument follows its group, but in the loop the edge's cell changes.
        member = GroupMember(self.cells[value], value not in self.loop_args)
        self.members.append((value, member))
        number = self.prepared.groups[node.op.group_id]
        self.graph.groups.setdefault(number, []).append(member)

    # Notification order

    def set_listeners(self) -> None:
        """Set the visits to notify of each cell's changes, in Shardy's order."""
        if self.dead_nodes.nodes:
            self.complete_use_counts()
        listeners = self.graph.listeners
        for value in self.copies:
            deferred = self.graph.deferred.setdefault(self.cells[value], [])
            deferred.extend(self.listed(value))
        for value in (*self.carried, *self.slots):
            if value not in self.readers:
                listeners[self.cells[value]] = self.listed(value)[::-1]
        for cell, index, owner, others in self.edges:
            notified = [visit for value in others for visit in self.listed(value)]
            if index is not None:
                notified.append(index)
            listeners[cell] = [*notified, *self.listed(owner, is_edge=True)][::-1]
        for value, member in self.members:
            if not member.leads:
                member.listeners.extend(self.listed(value))

    def listed(self, value: Value, *, is_edge: bool = False) -> list[int]:
        """The visits that use a value, in the order of MLIR's use list."""
        order = self.prepared.orders.get(value)
        if order is not None:
            slots = self.slots.get(value, {})
            return self.existing_visits([slots[use] for use in order if use in slots])
        found = self.readers_of(value)
        if not is_edge or (value.node is not None and isinstance(value.node.op, Call)):
            found = found[::-1]
        return self.existing_visits(found)

    def existing_visits(self, found: list[int]) -> list[int]:
        """The visits of these numbers; edges of values without shardings have none."""
        pending = self.shared.pending
        visits = [v if v >= 0 else pending[-1 - v] for v in found]
        return [v for v in visits if v >= 0]

    def complete_use_counts(self) -> None:
        """Complete the use counts of dead nodes' operands."""
        dead_nodes = self.dead_nodes
        self.graph.dead_nodes.append(dead_nodes)
        nodes = {index: self.graph.visits[index].node for index in self.visits}
        dead_nodes.makers.update({v: i for i, node in nodes.items() if node for v in node.results})
        dead_nodes.makers.update({v: i for _, i, v, _ in self.edges if i is not None})
        dead_nodes.makers.update(
            {v: i for i, node in dead_nodes.nodes.items() for v in node.results}
        )
        for dead in dead_nodes.nodes.values():
            for _, values in reads(dead):
                dead_nodes.readers.update({v: set() for v in values})
        for reader, values in reads_inside(self.instance.function.body):
            for value in values:
                if value in dead_nodes.readers:
                    dead_nodes.readers[value].add(reader)
        for index, node in nodes.items():
            assert node is not None
            kind = self.flows.kind(node)
            assert kind is not None
            flow = self.graph.visits[index].flow
            if flow is not kind.alone and dead_nodes.readers.keys() & set(node.operands):
                values = tuple(node.operands[n] for n in kind.tensors)
                dead_nodes.waiting[node] = (index, values, kind.alone)


_HANDLERS: dict[type[Op], Callable[[_Builder, Node], None]] = {
    AsyncStart: _Builder.asynchronous,
    Call: _Builder.call,
    Case: _Builder.branches,
    If: _Builder.either,
    ManualComputation: _Builder.manual,
    NamedComputation: _Builder.named,
    OptimizationBarrier: _Builder.barrier,
    Reshard: _Builder.plain,
    ShardingConstraint: _Builder.plain,
    ShardingGroup: _Builder.group,
    While: _Builder.loop,
}
