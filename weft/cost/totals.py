"""Totals over a module: loops as often as they run, the largest of branches, calls followed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from weft.cost.trips import trips
from weft.ir.module import Module, Node, Region
from weft.ir.op import Op
from weft.ir.work import Work
from weft.ops.control import Call, Case, Composite, If, While

T = TypeVar("T")
CONTROL: frozenset[type[Op]] = frozenset((While, If, Case, Call, Composite))


@dataclass(frozen=True, slots=True)
class Totals(Generic[T]):
    """Adds up what nodes count; a loop whose rounds the text does not tell counts once."""

    module: Module
    of_node: Callable[[Node], T]  # what a node counts that is no control flow
    add: Callable[[list[T]], T]
    times: Callable[[T, int], T]
    size: Callable[[T], float]  # by which the largest of branches is found
    functions: dict[str, T] = field(default_factory=dict)

    def function(self, name: str) -> T:
        """The total of a function; one that calls itself counts once."""
        if name not in self.functions:
            self.functions[name] = self.add([])
            self.functions[name] = self.region(self.module.function(name).body)
        return self.functions[name]

    def region(self, region: Region) -> T:
        """The total of the nodes of a region."""
        return self.add([self.node(node) for node in region.nodes])

    def node(self, node: Node) -> T:
        """What a node counts, regions and called functions included."""
        match node.op:
            case op if type(op) not in CONTROL:
                return self.of_node(node)
            case While():
                rounds = trips(node)
                once = self.add([self.region(region) for region in node.regions])
                return once if rounds is None else self.times(once, rounds)
            case Call() as op:
                return self.function(op.callee)
            case Composite() as op:
                return self.function(op.decomposition)
        return max((self.region(region) for region in node.regions), key=self.size)


def region_work(region: Region) -> Work:
    """The work of one run of a region."""
    total = Work()
    for node in region.nodes:
        bodies = tuple([region_work(inner) for inner in node.regions])
        total += node.op.work(node.operand_types, node.types, bodies)
    return total
