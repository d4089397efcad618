"""Between dims and factors: the axes that split each factor, and what they ask of tensors."""

from __future__ import annotations

import math

from weft.ir.rule import Dims, Rule
from weft.mesh import Axis, Mesh
from weft.mesh.algebra import (
    Axes,
    DimAxes,
    append_merged,
    extend_merged,
    size_of,
    take_front,
    total_size,
)

FactorAxes = tuple[Axes, ...]  # for each factor of a rule the axes that split it


def project(split: DimAxes, dims: Dims, rule: Rule, mesh: Mesh) -> dict[int, Axes]:
    """The axes of each factor of a tensor, as far as its dims can be taken apart."""
    found: dict[int, Axes] = {}
    for axes, factors in zip(split, dims, strict=True):
        if len(factors) == 1:
            if axes:
                found[factors[0]] = axes
        elif axes:
            _take_apart(axes, factors, rule, mesh, found)
    return found


def _take_apart(
    axes: Axes, factors: tuple[int, ...], rule: Rule, mesh: Mesh, found: dict[int, Axes]
) -> None:
    rest = list(axes)
    for factor in factors:
        room = rule.factors[factor].size
        taken: list[Axis] = []
        while rest and room > 1:
            common = math.gcd(room, size_of(rest[0], mesh))
            if common == 1:
                break
            append_merged(taken, take_front(rest, common, mesh), mesh)
            room //= common
        if taken:
            found[factor] = tuple(taken)
        if room > 1:
            return  # a factor that is split in part ends what the dim can be split by


def asked(chosen: FactorAxes, dims: Dims, rule: Rule, mesh: Mesh) -> DimAxes | None:
    """The split that a tensor must have; None if its dims cannot be split so."""
    made: list[Axes] = []
    for factors in dims:
        if len(factors) == 1:
            made.append(chosen[factors[0]])
            continue
        axes: list[Axis] = []
        is_full = True
        for factor in factors:
            size, pieces = rule.factors[factor].size, total_size(chosen[factor], mesh)
            if chosen[factor] and (not is_full or size % pieces):
                return None
            is_full &= size == pieces
            extend_merged(axes, chosen[factor], mesh)
        made.append(tuple(axes))
    return tuple(made)
