"""Edits of a function with MLIR's use lists: the users of a value, in MLIR's order.

Shardy notifies the users of a value in the order of MLIR's use list, the latest use first. Passes
that redirect a use to another value change that order, and sometimes the outcome of propagation; so
the use lists are kept here as MLIR would keep them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, replace
from typing import TypeAlias

from weft.ir.module import Function, Module, Node, Region, Value
from weft.ir.op import Op
from weft.ir.types import TensorType
from weft.mesh import Sharding
from weft.ops.control import Call, Case, OptimizationBarrier, While
from weft.ops.distributed.sharding import ManualComputation, NamedComputation
from weft.records import dataclass
from weft.shard.closing import filled
from weft.shard.given import given_args, given_results
from weft.shard.manual import erased, manual_names

ValueUser: TypeAlias = Node | Region  # a region uses the values that it returns
Use: TypeAlias = tuple[ValueUser, int]

# Results of these are data flow edges: one sharding for all connected values.
CARRIES: tuple[type[Op], ...] = (
    While,
    Case,
    OptimizationBarrier,
    Call,
    NamedComputation,
    ManualComputation,
)


@dataclass
class Edits:
    """The pending edits of one function."""

    module: Module
    function: Function
    called: bool
    watched: dict[Value, list[Use]]  # use lists of some values, in MLIR's order
    places: dict[ValueUser, tuple[Region, int]] = field(default_factory=dict)
    holders: dict[Value, Node | None] = field(default_factory=dict)  # of arguments of regions
    given: dict[Value, Sharding] = field(default_factory=dict)
    operands: dict[ValueUser, list[Value]] = field(default_factory=dict)
    behind: dict[Value | Node | Region, list[Node]] = field(default_factory=dict)
    moved: set[Node] = field(default_factory=set)
    took: dict[Value, None] = field(default_factory=dict)  # values that uses were redirected to

    def __post_init__(self) -> None:
        for value in self.function.body.args:
            self.holders[value] = None
        self._see(self.function.body)
        for value, uses in self.watched.items():
            self.watched[value] = self._listed(value, uses)

    def _see(self, region: Region) -> None:
        for position, node in enumerate(region.nodes):
            self._read(node, node.operands, region, position)
            for inner in node.regions:
                for value in inner.args:
                    self.holders[value] = node
                self._see(inner)
        self._read(region, region.results, region, len(region.nodes))

    def _read(
        self, reader: ValueUser, values: tuple[Value, ...], region: Region, position: int
    ) -> None:
        for n, value in enumerate(values):
            if value in self.watched:
                self.watched[value].append((reader, n))
                self.places[reader] = (region, position)

    def _listed(self, value: Value, uses: list[Use]) -> list[Use]:
        """Uses in program order, sorted as MLIR's use list after edges and calls are imported."""
        if value.node is not None and isinstance(value.node.op, Call):
            return uses[::-1]
        return uses if self.owns_edge(value) else uses[::-1]

    # Queries

    def readers(self, value: Value) -> Iterable[ValueUser]:
        """The current users of a value."""
        return [reader for reader, _ in self.watched[value]]

    def operand(self, node: Node, index: int = 0) -> Value:
        """The current operand of a node."""
        return self.operands.get(node, node.operands)[index]

    def owns_edge(self, value: Value) -> bool:
        """Whether a value has a data flow edge right after it."""
        if not isinstance(value.type, TensorType):
            return False
        if value.node is not None:
            return isinstance(value.node.op, CARRIES)
        holder = self.holders[value]
        if holder is None:
            return self.called
        return isinstance(holder.op, NamedComputation | ManualComputation)

    def edge_of(self, value: Value) -> Value | None:
        """The owner of the edge that holds this value's sharding, if any."""
        if self.owns_edge(value):
            return value
        holder = self.holders.get(value) if value.node is None else None
        if holder is not None and isinstance(holder.op, While):
            return holder.results[value.index]
        return None

    def can_be_split(self, value: Value) -> bool:
        """Whether a value can have a sharding, unlike the arguments of a reducer."""
        if value.node is not None or self.edge_of(value) is not None:
            return True
        return self.holders[value] is None

    def sharding(self, value: Value) -> Sharding | None:
        """The current sharding of a value."""
        value = self.edge_of(value) or value
        if value in self.given:
            return self.given[value]
        if value.node is not None:
            return given_results(value.node, self.module)[value.index]
        holder = self.holders[value]
        if holder is None:
            return given_args(self.function, self.module, called=self.called)[value.index]
        if isinstance(holder.op, ManualComputation):
            return erased(holder.op.in_shardings[value.index], manual_names(holder.op))
        if not isinstance(holder.op, NamedComputation):
            return None  # such as an argument of a reducer
        return holder.op.in_shardings[value.index] if holder.op.in_shardings else None

    # Edits

    def give(self, value: Value, sharding: Sharding) -> None:
        """Set the sharding of a value; the other results of its node get open ones."""
        value = self.edge_of(value) or value
        node = value.node
        if node is not None and len(node.results) > 1 and not self.owns_edge(value):
            now = [self.sharding(v) for v in node.results]
            now[value.index] = sharding
            for other, shown in zip(node.results, filled(now, node.types), strict=True):
                assert shown is not None
                self.given[other] = shown
        self.given[value] = sharding

    def put_behind(self, value: Value, node: Node) -> None:
        """Place a node right after the definition of a value."""
        place: Value | Node | Region
        if self.owns_edge(value):
            place = value
        elif value.node is not None:
            place = value.node
        else:
            holder = self.holders[value]
            regions = (self.function.body,) if holder is None else holder.regions
            place = next(r for r in regions if value in r.args)
        # In front of those placed before, as MLIR inserts right behind a definition.
        self.behind.setdefault(place, []).insert(0, node)

    def move_behind(self, value: Value, node: Node) -> None:
        """Move a node right after the definition of a value."""
        self.moved.add(node)
        self.put_behind(value, node)

    def insert_behind(self, value: Value, node: Node) -> None:
        """Insert a new node right after the definition of a value that it reads."""
        self.put_behind(value, node)
        self.watched.setdefault(node.results[0], [])
        self.watched[value].insert(0, (node, 0))  # MLIR prepends new uses

    def take_over(self, value: Value, by: Value, uses: Iterable[Use]) -> None:
        """Redirect these uses of a value to another one."""
        redirected = dict.fromkeys(uses)
        for reader, index in redirected:
            before = reader.operands if isinstance(reader, Node) else reader.results
            self.operands.setdefault(reader, list(before))[index] = by
        # Each use is prepended in turn, so they end up reversed.
        self.watched[by] = [*reversed(redirected), *self.watched[by]]
        self.watched[value] = [u for u in self.watched[value] if u not in redirected]
        self.took[by] = None


@dataclass
class Edited:
    """A function after its edits, with the facts that the graph needs."""

    function: Function
    given: dict[Value, Sharding]  # initial shardings of values
    behind: dict[Value, tuple[Node, ...]]  # nodes between a value's edge and the next node
    orders: dict[Value, tuple[Use, ...]]  # use lists, where they differ from program order


def edited(edits: Edits) -> Edited:
    """Apply the edits."""
    if not (edits.operands or edits.behind or edits.moved):
        return Edited(edits.function, edits.given, {}, {})
    rebuilt = _Rebuilt(edits)
    function = replace(edits.function, body=rebuilt.region(edits.function.body))
    became = rebuilt.became
    return Edited(
        function,
        {became.get(v, v): s for v, s in edits.given.items()},
        {
            became.get(place, place): tuple(rebuilt.nodes[n] for n in nodes)
            for place, nodes in edits.behind.items()
            if isinstance(place, Value)
        },
        {became.get(v, v): rebuilt.uses(edits.watched[v]) for v in edits.took},
    )


class _Rebuilt:
    def __init__(self, edits: Edits) -> None:
        self.edits = edits
        self.became: dict[Value, Value] = {}
        self.nodes: dict[Node, Node] = {}
        self.regions: dict[Region, Region] = {}

    def region(self, region: Region) -> Region:
        edits, out = self.edits, list[Node]()
        self.place(region, out)
        for value in region.args:
            self.place(value, out)
        for node in region.nodes:
            if node in edits.moved:
                continue
            out.append(self.node(node))
            self.place(node, out)
            for value in node.results:
                self.place(value, out)
        results = self.read(region, region.results)
        made = Region(region.args, out, results, region.loc, region.arg_locs)
        self.regions[region] = made
        return made

    def place(self, place: Value | Node | Region, out: list[Node]) -> None:
        for node in self.edits.behind.get(place, ()):
            out.append(self.node(node))

    def read(self, reader: ValueUser, values: tuple[Value, ...]) -> tuple[Value, ...]:
        became = self.became
        return tuple([became.get(v, v) for v in self.edits.operands.get(reader, values)])

    def node(self, node: Node) -> Node:
        operands = self.read(node, node.operands)
        regions = tuple([self.region(r) for r in node.regions]) if node.regions else ()
        new = node
        if operands != node.operands or regions:
            new = node.rebuilt(operands, regions)
            self.became.update(zip(node.results, new.results, strict=True))
        self.nodes[node] = new
        return new

    def uses(self, uses: list[Use]) -> tuple[Use, ...]:
        return tuple(
            (self.nodes[reader] if isinstance(reader, Node) else self.regions[reader], index)
            for reader, index in uses
        )
