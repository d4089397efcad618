"""The graph that shardings flow along: cells that hold them, and visits that spread them.

Calls are followed as if inlined, each with cells of its own. What control flow carries (a loop's
values, a branch's results, a call's arguments) shares one cell, an edge, fed by its sources.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from weft.ir.module import Function, Module, Node, Value
from weft.ir.rule import Rule
from weft.ir.types import Type
from weft.mesh import Sharding
from weft.shard.manual import ManualFrame
from weft.shard.propagation.directions import DirectionTable
from weft.shard.propagation.doomed import Doomed, without_dead
from weft.shard.propagation.flow import Flow
from weft.shard.rules import Rules


class Visit(NamedTuple):
    """One node, or one edge, through which shardings may spread."""

    flow: Flow
    cells: tuple[int, ...]  # of the operands, then of the results
    node: Node | None = None

    @property
    def rule(self) -> Rule:
        """The factors of the node."""
        return self.flow.rule

    @property
    def directions(self) -> DirectionTable:
        """In which direction shardings may spread: for each round, for each factor."""
        return self.flow.directions

    @property
    def elementwise(self) -> bool:
        """Whether the node treats every element alike."""
        return self.flow.elementwise

    @property
    def frame(self) -> ManualFrame | None:
        """The border of a manual computation that an edge crosses."""
        return self.flow.frame


@dataclass(slots=True)
class Instance:
    """One call of a function, or the function itself where nobody calls it."""

    function: Function
    cells: dict[Value, int] = field(default_factory=dict)
    results: tuple[int, ...] = ()  # cells of the returned values
    result_cells: tuple[int, ...] = ()  # cells of the result attributes, for a root
    calls: dict[Node, Instance] = field(default_factory=dict)


@dataclass(slots=True)
class GroupMember:
    """A value of a sharding group."""

    cell: int
    leads: bool  # whether the others follow when it changes
    told: list[int] = field(default_factory=list)  # visits to run when another changes it


@dataclass
class Graph:
    """Cells, visits, and who is told when a cell changes."""

    module: Module
    types: list[Type] = field(default_factory=list)  # of each cell
    initial: list[Sharding | None] = field(default_factory=list)
    visits: list[Visit] = field(default_factory=list)
    # Visits to run when a cell changes, the last one first: readers come in as they are met.
    told: list[list[int]] = field(default_factory=list)
    makers: list[int] = field(default_factory=list)  # the visit that makes a cell's value, or -1
    twice: set[int] = field(default_factory=set)  # visits that hold a cell more than once
    untold: dict[int, list[int]] = field(default_factory=dict)  # visits that wait for their turn
    groups: dict[int, list[GroupMember]] = field(default_factory=dict)
    siblings: dict[int, tuple[int, ...]] = field(default_factory=dict)  # results of one node
    roots: list[Instance] = field(default_factory=list)
    results: list[Visit] = field(default_factory=list)  # returned values to result attributes
    unread: bool = False  # whether nobody reads what some node makes
    dead: set[Node] = field(default_factory=set)  # nodes that do not outlive the first round
    doomed: list[Doomed] = field(default_factory=list)
    rules: Rules = field(default_factory=Rules)  # of users, for their ops

    def cell(self, type: Type, sharding: Sharding | None = None, maker: int = -1) -> int:
        """A new cell."""
        self.types.append(type)
        self.initial.append(sharding)
        self.told.append([])
        self.makers.append(maker)
        return len(self.types) - 1


def bury(graph: Graph) -> None:
    """Forget the dead nodes, once shardings are propagated."""
    if not graph.dead:
        return
    graph.module, values, nodes = without_dead(graph.module, graph.dead)
    ahead = list(graph.roots)
    while ahead:
        instance = ahead.pop()
        ahead.extend(instance.calls.values())
        instance.function = graph.module.functions[instance.function.name]
        instance.cells = {values.get(v, v): cell for v, cell in instance.cells.items()}
        instance.calls = {nodes[node]: inner for node, inner in instance.calls.items()}
    graph.dead = set()
