"""Totals over a module: loops times their trip count, the largest branch, calls followed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Generic, TypeVar

from weft.cost.trips import trips
from weft.ir.module import Module, Node, Region
from weft.ir.op import Op
from weft.ir.work import Work
from weft.ops.control import Call, Case, Composite, If, While
from weft.records import dataclass

T = TypeVar("T")
CONTROL: frozenset[type[Op]] = frozenset((While, If, Case, Call, Composite))


@dataclass(frozen=True, slots=True)
class Totals(Generic[T]):
    """Sums a count over nodes; a loop without a static trip count counts once."""

    module: Module
    of_node: Callable[[Node], T]  # the count of a node other than control flow
    add: Callable[[list[T]], T]
    times: Callable[[T, int], T]
    size: Callable[[T], float]  # the order in which one branch is the largest
    functions: dict[str, T] = field(default_factory=dict)

    def function(self, name: str) -> T:
        """The total of a function; recursion counts once."""
        if name not in self.functions:
            self.functions[name] = self.add([])
            self.functions[name] = self.region(self.module.function(name).body)
        return self.functions[name]

    def region(self, region: Region) -> T:
        """The total of the nodes of a region."""
        return self.add([self.node(node) for node in region.nodes])

    def node(self, node: Node) -> T:
        """The count of a node, with its regions and called functions."""
        match node.op:
            case op if type(op) not in CONTROL:
                return self.of_node(node)
            case While():
                count = trips(node)
                once = self.add([self.region(region) for region in node.regions])
                return once if count is None else self.times(once, count)
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
