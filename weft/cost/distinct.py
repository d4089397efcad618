"""Bytes sent per device if equal computations were merged, across calls too (value numbering)."""

from __future__ import annotations

from collections.abc import Hashable

from weft.cost.sent import SentCounter, total_sent
from weft.ir.module import Module, Node, Region
from weft.ops.control import Call

ValueNumbers = tuple[int, ...]


def distinct_sent(module: Module, func: str = "main") -> float:
    """The bytes that a function's collectives send, those of equal values counted once."""
    return _Numbering(module).run(func)


class _Numbering:
    """Global value numbering: values that are computed alike have the same number."""

    def __init__(self, module: Module) -> None:
        self.module, self.counter = module, SentCounter(module)
        self.known: dict[Hashable, ValueNumbers] = {}
        self.active: set[str] = set()
        self.count = 0
        self.sent = 0.0

    def run(self, func: str) -> float:
        """The bytes that a function sends if all its arguments differ."""
        self.function(func, self.fresh(len(self.module.function(func).body.args)))
        return self.sent

    def fresh(self, count: int) -> ValueNumbers:
        """Unused value numbers."""
        self.count += count
        return tuple(range(self.count - count, self.count))

    def function(self, name: str, args: ValueNumbers) -> ValueNumbers:
        """The value numbers of a function's results."""
        body = self.module.function(name).body
        if name in self.active:  # recursion counts once
            return self.fresh(len(body.results))
        self.active.add(name)
        numbers = dict(zip(body.args, args, strict=True))
        for node in body.nodes:
            operands = tuple([numbers[v] for v in node.operands])
            numbers.update(zip(node.results, self.node(node, operands), strict=True))
        self.active.remove(name)
        return tuple([numbers[v] for v in body.results])

    def node(self, node: Node, operands: ValueNumbers) -> ValueNumbers:
        """The value numbers of a node's results; its bytes are added if no equal node was met."""
        if isinstance(node.op, Call):
            key: Hashable = (node.op.callee, operands)
            if key not in self.known:
                self.known[key] = self.function(node.op.callee, operands)
            return self.known[key]
        # Equal ops on equal numbers are one computation: `cse` merges them later.
        key = (node.op, operands, node.types, tuple([_kinds(region) for region in node.regions]))
        if key not in self.known:
            self.sent += total_sent(self.counter.totals.node(node))
            self.known[key] = self.fresh(len(node.results))
        return self.known[key]


def _kinds(region: Region) -> Hashable:
    """An equality key for a region: its op if it is one op on its arguments, else its identity."""
    if len(region.nodes) == 1 and region.nodes[0].operands == region.args:
        return region.nodes[0].op
    return id(region)
