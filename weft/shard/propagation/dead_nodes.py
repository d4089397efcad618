"""Dead nodes: MLIR's greedy driver erases each when it visits it, and not before.

Until then they count as uses of their operands, and a chain of them even propagates shardings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field, replace

from weft.ir.module import Module, Node, Region, Value
from weft.ir.rebuild import Rebuild
from weft.records import dataclass
from weft.shard.preparation.edits import ValueUser
from weft.shard.propagation.flow import Flow


@dataclass
class DeadNodes:
    """The dead nodes of one instance of a function, and the use counts of their operands."""

    counts: dict[Value, int]  # use counts
    nodes: dict[int, Node] = field(default_factory=dict)  # dead nodes, by visit
    inside: dict[int, range] = field(default_factory=dict)  # visits in the regions of a dead node
    makers: dict[Value, int] = field(default_factory=dict)  # the visit that defines a value
    readers: dict[Value, set[ValueUser]] = field(default_factory=dict)
    # Visits that may propagate in the first round once they are the only users of these values.
    waiting: dict[Node, tuple[int, tuple[Value, ...], Flow]] = field(default_factory=dict)

    def start(self) -> DeadNodes:
        """A mutable copy for one run."""
        readers = {value: set(found) for value, found in self.readers.items()}
        nodes, counts, waiting = dict(self.nodes), dict(self.counts), dict(self.waiting)
        return replace(self, nodes=nodes, counts=counts, readers=readers, waiting=waiting)

    def is_dead(self, visit: int) -> bool:
        """Whether a visit's node has no uses left."""
        return not any(self.counts.get(value) for value in self.nodes[visit].results)

    def erase(self, visit: int, push: Callable[[int], None]) -> Iterator[tuple[int, Flow]]:
        """Erase a node; pushes the definitions of its operands, and returns the visits set free."""
        touched: dict[Value, None] = {}
        for reader, values in reads(self.nodes.pop(visit)):
            for value in values:
                if value in self.readers:
                    self.readers[value].discard(reader)
                    self.counts[value] -= 1
                    touched[value] = None
        for value in touched:
            if len(self.readers[value]) < 2 and value in self.makers:
                push(self.makers[value])
        for reader in {r for value in touched for r in self.readers[value]}:
            if isinstance(reader, Node) and reader in self.waiting:
                index, values, flow = self.waiting[reader]
                if all(self.counts[v] == 1 for v in values):
                    del self.waiting[reader]
                    yield index, flow


def reads(node: Node) -> Iterator[tuple[ValueUser, tuple[Value, ...]]]:
    """The values that a node and its regions use."""
    yield node, node.operands
    for region in node.regions:
        yield from reads_inside(region)


def reads_inside(region: Region) -> Iterator[tuple[ValueUser, tuple[Value, ...]]]:
    """The values that a region's nodes and its terminator use."""
    for node in region.nodes:
        yield from reads(node)
    yield region, region.results


def without_dead(
    module: Module, dead: set[Node]
) -> tuple[Module, dict[Value, Value], dict[Node, Node]]:
    """The module without its dead nodes, and the maps from old to new values and nodes."""
    rebuild = Rebuild(module, (), dead)
    rebuilt = rebuild.module()
    nodes: dict[Node, Node] = {}
    for name, function in module.functions.items():
        _pair(function.body, rebuilt.functions[name].body, dead, nodes)
    return rebuilt, rebuild.became, nodes


def _pair(old: Region, new: Region, dead: set[Node], nodes: dict[Node, Node]) -> None:
    kept = [node for node in old.nodes if node not in dead]
    for before, after in zip(kept, new.nodes, strict=True):
        nodes[before] = after
        for a, b in zip(before.regions, after.regions, strict=True):
            _pair(a, b, dead, nodes)
