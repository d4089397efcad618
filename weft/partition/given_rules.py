"""Rules that users give to custom calls and composites, as partitioning reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from weft.ir.module import Node
from weft.ir.rule import Rule

if TYPE_CHECKING:
    from weft.partition.localize import Localizer


class RuleFinder(Protocol):
    """Whoever knows the rules that users give."""

    def find(self, node: Node) -> Rule | None:
        """The rule of a node, if a user gives it one."""
        ...


def summing(rule: Rule) -> Rule:
    """The rule, its reductions sums: that is what Shardy makes of the factors users so mark."""
    factors = tuple(
        replace(f, combine="add") if f.role == "reduction" and f.combine is None else f
        for f in rule.factors
    )
    return rule if factors == rule.factors else Rule(factors, rule.operands, rule.results)


def whole_values(localizer: Localizer, node: Node) -> bool:
    """Whether no operand of a node is split, nor any result asked to be."""
    splits = [localizer.asked(v) for v in node.operands]
    wanted = [localizer.wanted(v) for v in node.results]
    return not any(axes for split in (*splits, *wanted) for axes in split or ())
