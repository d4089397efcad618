"""The owner of a cell: the value whose sharding it holds, and its annotations."""

from __future__ import annotations

from collections.abc import Iterator

from weft.ir.location import Location
from weft.ir.module import Function, Node, Region, Value, walk
from weft.ir.names import SHARDING
from weft.ops.distributed.annotations import sharding_attribute
from weft.ops.distributed.sharding import (
    ManualComputation,
    NamedComputation,
    Reshard,
    ShardingConstraint,
    ShardingGroup,
)
from weft.records import dataclass
from weft.shard.propagation.graph import Graph, Instance


@dataclass(frozen=True, slots=True)
class Owner:
    """A value in one call of its function, or a declared result of a function."""

    value: Value
    function: Function
    loc: Location
    argument: int | None = None  # the number of an argument of a function or region
    result: int | None = None  # the number of a declared result
    region_of: Node | None = None  # the node whose region has the argument
    calls: tuple[Node, ...] = ()  # the call stack of this instance of the function
    # The constraint, computation or group that annotates it by reading it.
    reader: Node | None = None

    @property
    def line(self) -> Location:
        """Its own location or that of its call site, whichever is in the user's program."""
        places = (self.loc, *(call.loc for call in reversed(self.calls)))
        return next((place for place in places if place.line), self.loc)

    @property
    def is_signature(self) -> bool:
        """Whether it is a function's argument or the program's result."""
        return self.result is not None or (self.argument is not None and self.region_of is None)

    def annotation(self) -> tuple[str, Location]:
        """The kind of its annotation, and the location of it."""
        if self.result is not None:
            return f"the annotation of result {self.result}", self.loc
        if self.reader is not None and not self.is_annotated():
            return _SAYS[type(self.reader.op)], self.reader.loc
        if self.region_of is not None:
            return f"argument {self.argument} of {self.region_of.op.name}", self.region_of.loc
        if self.argument is not None:
            return "the annotation of the argument", self.loc
        assert self.value.node is not None
        kind = type(self.value.node.op)
        return _SAYS.get(kind, "the annotation of the op"), self.loc

    def is_annotated(self) -> bool:
        """Whether the value itself is annotated."""
        node = self.value.node
        if node is not None:
            return type(node.op) in _SAYS or any(name == SHARDING for name, _ in node.attrs)
        attrs = self.function.arg_attrs
        if self.region_of is not None or self.argument is None or not attrs:
            return False
        return sharding_attribute(attrs[self.argument]) is not None


_SAYS = {
    ShardingConstraint: "the sharding constraint",
    Reshard: "the reshard",
    ManualComputation: "the manual computation",
    NamedComputation: "the named computation",
    ShardingGroup: "the sharding group",
}


def owners(graph: Graph) -> tuple[list[Owner | None], dict[Value, list[int]]]:
    """For each cell its owner, and for each value its cells, one per call of its function."""
    by_cell: list[Owner | None] = [None] * len(graph.types)
    cells: dict[Value, list[int]] = {}
    for root in graph.roots:
        for instance, calls in _instances(root, ()):
            for owner in _values(instance, calls):
                cell = instance.cells.get(owner.value)
                if cell is None:
                    continue
                cells.setdefault(owner.value, []).append(cell)
                held = by_cell[cell]
                # An argument of a region shares the cell of the operand outside, which is the one
                # to name.
                if held is None or held.region_of is not None:
                    by_cell[cell] = owner
        for n, cell in enumerate(root.result_cells):
            value = root.function.body.results[n]
            by_cell[cell] = Owner(value, root.function, root.function.loc, result=n)
    return by_cell, cells


def _instances(
    instance: Instance, calls: tuple[Node, ...]
) -> Iterator[tuple[Instance, tuple[Node, ...]]]:
    yield instance, calls
    for node, inner in instance.calls.items():
        yield from _instances(inner, (*calls, node))


def _values(instance: Instance, calls: tuple[Node, ...]) -> Iterator[Owner]:
    """Every value of an instance."""
    function = instance.function
    readers = _readers(function.body)

    def region(inner: Region, node: Node | None) -> Iterator[Owner]:
        for n, (value, loc) in enumerate(zip(inner.args, inner.arg_locs, strict=True)):
            place = loc if loc.known or node is None else node.loc
            reader = readers.get(value)
            yield Owner(value, function, place, n, None, node, calls, reader)
        for inner_node in inner.nodes:
            for value in inner_node.results:
                reader = readers.get(value)
                yield Owner(value, function, inner_node.loc, calls=calls, reader=reader)
            for deeper in inner_node.regions:
                yield from region(deeper, inner_node)

    yield from region(function.body, None)


def _readers(body: Region) -> dict[Value, Node]:
    """For each value the constraint, computation or group that annotates it by reading it."""
    readers: dict[Value, Node] = {}
    for node in walk(body):
        if isinstance(node.op, ShardingConstraint | ManualComputation | ShardingGroup):
            for value in node.operands:
                first = readers.get(value)
                # A constraint says more than membership in a group, and comes first.
                if first is None or isinstance(first.op, ShardingGroup):
                    readers[value] = node
    return readers
