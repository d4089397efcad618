"""What one run of a program does on one device, counted under the names that XLA gives it.

Operands are counted by their number, as XLA does: `bytes accessed1{}` are the bytes that ops read
of their second operand, `utilization1{}` how often there was one.
"""

from __future__ import annotations

from collections import Counter

from weft.cost.trips import trips
from weft.ir.module import Module, Node, Region
from weft.ir.work import Work, moved
from weft.ops.control import Call, Case, Composite, If, While
from weft.ops.shape import Constant


def counted(module: Module, func: str = "main") -> dict[str, float]:
    """The counts by name; a loop whose rounds the text does not tell counts once."""
    counts = _Counts(module).function(func)
    for name in ("flops", "transcendentals", "bytes accessed"):
        counts.setdefault(name, 0)
    return dict(sorted(counts.items()))


class _Counts:
    """Walks the functions of one module, each once."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.known: dict[str, Counter[str]] = {}

    def function(self, name: str) -> Counter[str]:
        if name not in self.known:
            self.known[name] = Counter()  # one that calls itself counts once
            self.known[name] = self.region(self.module.function(name).body)
        return self.known[name]

    def region(self, region: Region) -> Counter[str]:
        found: Counter[str] = Counter()
        for node in region.nodes:
            found.update(self.node(node))
        return found

    def node(self, node: Node) -> Counter[str]:
        op = node.op
        match op:
            case Constant():
                return Counter()
            case While():
                rounds = trips(node)
                inside = self.region(node.regions[0]) + self.region(node.regions[1])
                times = 1 if rounds is None else rounds
                return Counter({name: count * times for name, count in inside.items()})
            case If() | Case():
                return max(map(self.region, node.regions), key=lambda c: c["bytes accessed"])
            case Call():
                return self.function(op.callee)
            case Composite():
                return self.function(op.decomposition)
        return _of_op(node)


def _of_op(node: Node) -> Counter[str]:
    work = node.op.work(node.operand_types, node.types, tuple(map(_inside, node.regions)))
    found: Counter[str] = Counter()
    found["flops"], found["transcendentals"] = work.flops, work.transcendentals
    found["bytes accessed"] = work.bytes
    found["bytes accessedout{}"] = moved(*node.types)
    for n, type in enumerate(node.operand_types):
        found[f"bytes accessed{n}{{}}"] += moved(type)
        found[f"utilization{n}{{}}"] += 1
    return found


def _inside(region: Region) -> Work:
    total = Work()
    for node in region.nodes:
        total += node.op.work(node.operand_types, node.types, tuple(map(_inside, node.regions)))
    return total
