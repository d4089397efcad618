"""The propagation graph: cells hold shardings, and visits propagate between cells.

Calls are followed as if inlined, each with its own cells. A value that control flow carries (of a
loop, a branch, a call) has one cell, that of the owner of a data flow edge; a visit of the edge
propagates between this cell and those of its sources.
"""

from __future__ import annotations

from dataclasses import field
from typing import NamedTuple

from weft.ir.module import Function, Module, Node, Value
from weft.ir.rule import Rule
from weft.ir.types import Type
from weft.mesh import Sharding
from weft.records import dataclass
from weft.shard.manual import ManualFrame
from weft.shard.propagation.dead_nodes import DeadNodes, without_dead
from weft.shard.propagation.directions import DirectionTable
from weft.shard.propagation.flow import Flow
from weft.shard.rules import Rules


class Visit(NamedTuple):
    """One node, or one data flow edge, through which shardings propagate."""

    flow: Flow
    cells: tuple[int, ...]  # cells of the operands, then of the results
    node: Node | None = None

    @property
    def rule(self) -> Rule:
        """The factors of the node."""
        return self.flow.rule

    @property
    def directions(self) -> DirectionTable:
        """The allowed directions: for each round, for each factor."""
        return self.flow.directions

    @property
    def elementwise(self) -> bool:
        """Whether the node is elementwise."""
        return self.flow.elementwise

    @property
    def frame(self) -> ManualFrame | None:
        """The border of a manual computation that an edge crosses."""
        return self.flow.frame


@dataclass(slots=True)
class Instance:
    """One call of a function, or a function without callers."""

    function: Function
    cells: dict[Value, int] = field(default_factory=dict)
    results: tuple[int, ...] = ()  # cells of the returned values
    result_cells: tuple[int, ...] = ()  # cells of the result attributes, for a root
    calls: dict[Node, Instance] = field(default_factory=dict)


@dataclass(slots=True)
class GroupMember:
    """A value of a sharding group."""

    cell: int
    leads: bool  # whether its changes are copied to the other members
    # Visits to notify when another member changes it.
    listeners: list[int] = field(default_factory=list)


@dataclass
class Graph:
    """Cells, visits, and the visits to notify of each cell's changes."""

    module: Module
    types: list[Type] = field(default_factory=list)  # the type of each cell
    initial: list[Sharding | None] = field(default_factory=list)
    visits: list[Visit] = field(default_factory=list)
    # Visits to notify of a cell's change, the last one first: users are appended in program order.
    listeners: list[list[int]] = field(default_factory=list)
    makers: list[int] = field(default_factory=list)  # the visit that defines a cell's value, or -1
    twice: set[int] = field(default_factory=set)  # visits with a repeated cell
    deferred: dict[int, list[int]] = field(default_factory=dict)  # woken in program order only
    groups: dict[int, list[GroupMember]] = field(default_factory=dict)
    # For each cell of a node with several results, the cells of all of them.
    siblings: dict[int, tuple[int, ...]] = field(default_factory=dict)
    roots: list[Instance] = field(default_factory=list)
    results: list[Visit] = field(default_factory=list)  # returned values to result attributes
    unread: bool = False  # whether some node's results are all unused
    dead: set[Node] = field(default_factory=set)  # dead nodes, erased in the first round
    dead_nodes: list[DeadNodes] = field(default_factory=list)
    rules: Rules = field(default_factory=Rules)  # the user's rules

    def cell(self, type: Type, sharding: Sharding | None = None, maker: int = -1) -> int:
        """A new cell."""
        self.types.append(type)
        self.initial.append(sharding)
        self.listeners.append([])
        self.makers.append(maker)
        return len(self.types) - 1


def remove_dead_nodes(graph: Graph) -> None:
    """Remove the dead nodes after propagation."""
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
