"""What a device sends if whatever is computed twice were computed once, in calls as well."""

from __future__ import annotations

from collections.abc import Hashable

from weft.cost.sent import SentCounter, total_sent
from weft.ir.module import Module, Node, Region
from weft.ops.control import Call

ValueNumbers = tuple[int, ...]


def distinct_sent(module: Module, func: str = "main") -> float:
    """The bytes of a function's collectives, those of equal values counted once."""
    return _Numbering(module).run(func)


class _Numbering:
    """A number for every value: the same for those that are computed alike."""

    def __init__(self, module: Module) -> None:
        self.module, self.counter = module, SentCounter(module)
        self.known: dict[Hashable, ValueNumbers] = {}
        self.active: set[str] = set()
        self.count = 0
        self.sent = 0.0

    def run(self, func: str) -> float:
        """The bytes of a function on arguments that all differ."""
        self.function(func, self.fresh(len(self.module.function(func).body.args)))
        return self.sent

    def fresh(self, count: int) -> ValueNumbers:
        """Numbers that no value has yet."""
        self.count += count
        return tuple(range(self.count - count, self.count))

    def function(self, name: str, args: ValueNumbers) -> ValueNumbers:
        """The numbers of a function's results."""
        body = self.module.function(name).body
        if name in self.active:  # one that calls itself counts once
            return self.fresh(len(body.results))
        self.active.add(name)
        numbers = dict(zip(body.args, args, strict=True))
        for node in body.nodes:
            given = tuple([numbers[v] for v in node.operands])
            numbers.update(zip(node.results, self.node(node, given), strict=True))
        self.active.remove(name)
        return tuple([numbers[v] for v in body.results])

    def node(self, node: Node, given: ValueNumbers) -> ValueNumbers:
        """The numbers of a node's results; what it sends is added if there is none like it."""
        if isinstance(node.op, Call):
            key: Hashable = (node.op.callee, given)
            if key not in self.known:
                self.known[key] = self.function(node.op.callee, given)
            return self.known[key]
        key = (node.op, given, node.types, tuple([_kinds(region) for region in node.regions]))
        if key not in self.known:
            self.sent += total_sent(self.counter.totals.node(node))
            self.known[key] = self.fresh(len(node.results))
        return self.known[key]


def _kinds(region: Region) -> Hashable:
    """What a region does, if it is one op on its arguments; else what none else is equal to."""
    if len(region.nodes) == 1 and region.nodes[0].operands == region.args:
        return region.nodes[0].op
    return id(region)
