"""Strategies of nodes: the rules that may split them, and the splits of their operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from weft.ir.module import Node
from weft.ir.op import rule as rule_of
from weft.ir.rule import Rule
from weft.ir.types import TensorType
from weft.mesh import Mesh
from weft.mesh.algebra import DimAxes
from weft.partition.partitioners import PARTITIONERS
from weft.partition.piece import Partial, replicated
from weft.partition.program import GlobalValue, Interner, NodeStrategy
from weft.partition.strategy.choose import ShardingProblem, Version, unreduced_axes
from weft.partition.strategy.factors import FactorAxes, plain_factors, split_by_factors
from weft.partition.unreduced import unreduced_of


def own_rules(node: Node, splits: tuple[DimAxes, ...]) -> tuple[Rule, ...]:
    """The rules of a node's op, as it may be partitioned."""
    way = PARTITIONERS.get(type(node.op))
    if way is not None and way.rules is not None:
        return way.rules(node, splits)
    if way is not None and way.rule is not None:
        return (way.rule(node),)
    return (rule_of(node.op, node.operand_types, node.bodies),)


def sent_bytes(node: Node, rule: Rule, mesh: Mesh) -> Callable[[FactorAxes], float] | None:
    """The bytes that an op itself sends, where it does, by the axes chosen."""
    way = PARTITIONERS.get(type(node.op))
    count = None if way is None else way.sent
    return count and (lambda chosen: count(node, rule, chosen, mesh))


def free_factors(node: Node, rule: Rule) -> frozenset[int]:
    """The factors of a node that may be split."""
    way = PARTITIONERS.get(type(node.op))
    return (way.free if way is not None else plain_factors)(node, rule)


def versions_of(entry: GlobalValue) -> tuple[Version, ...]:
    """The available shardings of a value; one that can be rematerialized counts as replicated."""
    found = [(p.split, unreduced_of(p)) for p in entry.versions]
    if entry.again is not None:
        found.append((replicated(len(found[0][0])), ()))
    return tuple(found)


def make_strategy(
    problem: ShardingProblem, by_factor: FactorAxes, numbers: Interner
) -> NodeStrategy:
    """The strategy of a node whose factors are split by these axes."""
    rule, mesh = problem.rule, problem.mesh
    operands = [
        numbers.canonical(split_by_factors(by_factor, dims, rule, mesh)) for dims in rule.operands
    ]
    results = [
        numbers.canonical(split_by_factors(by_factor, dims, rule, mesh)) for dims in rule.results
    ]
    assert None not in operands and None not in results, f"no tensor can be split by {by_factor}"
    axes = unreduced_axes(rule, by_factor)
    combine = next((f.combine for f in rule.factors if f.role == "reduction" and f.combine), None)
    partial = Partial(axes, combine) if axes and combine else None
    masks = []
    for n, (dims, type) in enumerate(zip(rule.operands, problem.operands, strict=True)):
        # The padding of a split reduction would be combined with its elements.
        spoiled = tuple(
            d
            for d, factors in enumerate(dims)
            if isinstance(type, TensorType)
            and any(rule.factors[f].role == "reduction" and by_factor[f] for f in factors)
            and any(rule.factors[f].combine for f in factors)
        )
        if spoiled:
            masks.append((n, spoiled))
    splits = (tuple(operands), tuple(results))
    return NodeStrategy(rule, by_factor, *splits, partial, tuple(masks), problem.wanted)  # type: ignore[arg-type]


def summing(rule: Rule) -> Rule:
    """The rule with every reduction of unspecified kind as a sum, as in Shardy."""
    factors = tuple(
        replace(f, combine="add") if f.role == "reduction" and f.combine is None else f
        for f in rule.factors
    )
    return rule if factors == rule.factors else Rule(factors, rule.operands, rule.results)
