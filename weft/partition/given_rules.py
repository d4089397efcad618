"""Rules that users give to custom calls and composites, as partitioning reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from weft.ir.module import Node
from weft.ir.rule import Rule


class RuleFinder(Protocol):
    """Whoever knows the rules that users give."""

    def find(self, node: Node) -> Rule | None:
        """The rule of a node, if a user gives it one."""
        ...


def summing(rule: Rule) -> Rule:
    """The rule, its reductions sums: that is what Shardy makes of the factors users so mark."""
    factors = tuple(
        replace(f, combine="sum") if f.role == "reduction" and f.combine is None else f
        for f in rule.factors
    )
    return rule if factors == rule.factors else Rule(factors, rule.operands, rule.results)
