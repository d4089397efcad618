"""Projection between splits of dims and axes of factors."""

from __future__ import annotations

from weft.ir.module import Node
from weft.ir.rule import Dims, Rule
from weft.mesh import Axis, Mesh
from weft.mesh.algebra import (
    Axes,
    DimAxes,
    extend_merged,
    merged,
    take_common,
    total_size,
)

FactorAxes = tuple[Axes, ...]  # for each factor of a rule the axes that split it


def project(split: DimAxes, dims: Dims, rule: Rule, mesh: Mesh) -> dict[int, Axes]:
    """The axes of each factor of a tensor, as far as its dims decompose."""
    by_factor: dict[int, Axes] = {}
    for axes, factors in zip(split, dims, strict=True):
        if len(factors) == 1:
            if axes:
                by_factor[factors[0]] = axes
        elif axes:
            _take_apart(axes, factors, rule, mesh, by_factor)
    return by_factor


def _take_apart(
    axes: Axes, factors: tuple[int, ...], rule: Rule, mesh: Mesh, by_factor: dict[int, Axes]
) -> None:
    rest = list(axes)
    for factor in factors:
        taken, room = take_common(rest, rule.factors[factor].size, mesh)
        if taken:
            by_factor[factor] = merged(taken, mesh)
        if room > 1:
            return  # after a partly split factor no more minor one can be split


def split_by_factors(by_factor: FactorAxes, dims: Dims, rule: Rule, mesh: Mesh) -> DimAxes | None:
    """The split of a tensor by the chosen factor axes; None if impossible."""
    by_dim: list[Axes] = []
    for factors in dims:
        if len(factors) == 1:
            by_dim.append(by_factor[factors[0]])
            continue
        axes: list[Axis] = []
        is_full = True
        for factor in factors:
            size, pieces = rule.factors[factor].size, total_size(by_factor[factor], mesh)
            # A minor factor can be split only where all more major ones are split up completely:
            # otherwise its pieces would be strided, and a sharding is contiguous.
            if by_factor[factor] and (not is_full or size % pieces):
                return None
            is_full &= size == pieces
            extend_merged(axes, by_factor[factor], mesh)
        by_dim.append(tuple(axes))
    return tuple(by_dim)


def plain_factors(node: Node, rule: Rule) -> frozenset[int]:
    """The factors with independent shards, or with a plain combiner."""
    in_results = {f for dims in rule.results for factors in dims for f in factors}
    return frozenset(
        n
        for n, f in enumerate(rule.factors)
        if not f.needs_offset
        and ((f.role == "pass" and n in in_results) or (f.role == "reduction" and f.combine))
    )


def every_factor(node: Node, rule: Rule) -> frozenset[int]:
    """All of them."""
    return frozenset(range(len(rule.factors)))


def compact(rule: Rule) -> Rule:
    """The rule without factors that no tensor has."""
    used = sorted({f for dims in (*rule.operands, *rule.results) for fs in dims for f in fs})
    numbers = {f: n for n, f in enumerate(used)}

    def renumbered(dims: Dims) -> Dims:
        return tuple([tuple([numbers[f] for f in factors]) for factors in dims])

    operands, results = (
        tuple([renumbered(dims) for dims in side]) for side in (rule.operands, rule.results)
    )
    return Rule(tuple([rule.factors[f] for f in used]), operands, results)
