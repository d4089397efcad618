"""The factors of an op that partitioning may split."""

from __future__ import annotations

from weft.ir.module import Node
from weft.ir.rule import Rule


def plain_factors(node: Node, rule: Rule) -> frozenset[int]:
    """The factors with independent shards, or with a plain combiner."""
    made = {f for dims in rule.results for factors in dims for f in factors}
    return frozenset(
        n
        for n, f in enumerate(rule.factors)
        if not f.aided
        and ((f.role == "pass" and n in made) or (f.role == "reduction" and f.combine))
    )


def every_factor(node: Node, rule: Rule) -> frozenset[int]:
    """All factors."""
    return frozenset(range(len(rule.factors)))
