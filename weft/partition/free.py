"""Which factors of an op may be split."""

from __future__ import annotations

from weft.ir.module import Node
from weft.ir.rule import Rule


def plain_factors(node: Node, rule: Rule) -> frozenset[int]:
    """The factors whose pieces are independent, or plainly combined."""
    return frozenset(
        n
        for n, f in enumerate(rule.factors)
        if not f.aided and (f.role == "pass" or (f.role == "reduction" and f.combine))
    )


def every_factor(node: Node, rule: Rule) -> frozenset[int]:
    """All of them."""
    return frozenset(range(len(rule.factors)))
