"""Cost analysis of one run of a program on one device, under XLA's names for the counts.

Operands are counted by their number, as XLA does: `bytes accessed1{}` are the bytes that ops read
of their second operand, `utilization1{}` how often there was one.
"""

from __future__ import annotations

from collections import Counter

from weft.cost.totals import Totals, region_work
from weft.ir.module import Module, Node
from weft.ir.work import moved
from weft.ops.shape import Constant


def counts_by_name(module: Module, func: str = "main") -> dict[str, float]:
    """The counts by name; a loop without a static trip count counts once."""
    totals = Totals(module, _of_op, _sum, _times, lambda counts: counts["bytes accessed"])
    counts = Counter(totals.function(func))
    for name in ("flops", "transcendentals", "bytes accessed"):
        counts.setdefault(name, 0)
    return dict(sorted(counts.items()))


def _sum(parts: list[Counter[str]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return total


def _times(counts: Counter[str], trips: int) -> Counter[str]:
    return Counter({name: count * trips for name, count in counts.items()})


def _of_op(node: Node) -> Counter[str]:
    counts: Counter[str] = Counter()
    if isinstance(node.op, Constant):
        return counts
    work = node.op.work(node.operand_types, node.types, tuple(map(region_work, node.regions)))
    counts["flops"], counts["transcendentals"] = work.flops, work.transcendentals
    counts["bytes accessed"] = work.bytes
    counts["bytes accessedout{}"] = moved(*node.types)
    for n, type in enumerate(node.operand_types):
        counts[f"bytes accessed{n}{{}}"] += moved(type)
        counts[f"utilization{n}{{}}"] += 1
    return counts
