"""Explicit reshards that Shardy inserts after propagation: at dots and concatenations.

A dot whose result is split by the axes that it reduces over, and its operands differently, gets
the result sharding that its operands imply, and a reshard after it. The operands and the result of
a concatenation get one common sharding.
"""

from __future__ import annotations

import math

from weft.ir.rule import Rule
from weft.ir.types import TensorType, Types
from weft.mesh import Axis, Mesh, Sharding
from weft.mesh.algebra import (
    Axes,
    append_merged,
    is_list_prefix,
    is_strict_prefix,
    overlaps,
    prefix_without,
    size_of,
    total_size,
)
from weft.shard.closing import GivenShardings, closed
from weft.shard.propagation.projection import TensorFactors, assemble, factor_sizes, project

# Shardy's preference among factors, by their role.
_PRECEDENCE = {"pass": 3, "reduction": 2, "permutation": 1, "whole": 0}


def dot_result(
    rule: Rule, shardings: GivenShardings, types: Types, name: str | Mesh, mesh: Mesh
) -> Sharding | None:
    """The sharding of a dot's result before a reshard; None if it needs none."""
    sizes = factor_sizes(rule)
    dims = rule.operands + rule.results
    lhs, rhs, out = (project(s, d, sizes, mesh) for s, d in zip(shardings, dims, strict=True))
    found = _contradicted(rule, lhs, rhs, out, [_elements(t) for t in types])
    if found is None:
        return None
    factor, axes = found
    out.factors[factor] = out.factors[factor]._replace(axes=axes)
    return closed(assemble(out, dims[2], sizes, name, mesh))


def _contradicted(
    rule: Rule, lhs: TensorFactors, rhs: TensorFactors, out: TensorFactors, elements: list[int]
) -> tuple[int, Axes] | None:
    """The factor that the operands split one way, and the result by the reduction's axes."""
    axis_of_factor: tuple[int, Axes] | None = None
    reduced: Axes = ()
    seen: list[Axis] = []
    for factor, described in enumerate(rule.factors):
        left, right = lhs.factors.get(factor), rhs.factors.get(factor)
        entry = left or right
        assert entry is not None
        if left and right:
            if left.axes != right.axes:
                return None
            if described.role == "reduction":
                reduced += left.axes
                continue
        else:
            if any(overlaps(a, b) for a in entry.axes for b in seen):
                return None
            seen.extend(entry.axes)
        if out.factors[factor].axes != entry.axes:
            largest = max(n for n, side in zip(elements, (left, right), strict=False) if side)
            # As Shardy: only one factor may contradict, and only if resharding the result is not
            # the larger transfer.
            if not entry.axes or axis_of_factor is not None or elements[2] > largest:
                return None
            axis_of_factor = factor, entry.axes
    if axis_of_factor is None:
        return None
    own = out.factors[axis_of_factor[0]].axes
    return axis_of_factor if own and own == reduced else None


def _elements(type: object) -> int:
    return type.size if isinstance(type, TensorType) and type.is_static else 0


# Common shardings


def consistent_shardings(
    rule: Rule,
    shardings: GivenShardings,
    held: GivenShardings,
    types: Types,
    name: str | Mesh,
    mesh: Mesh,
) -> tuple[Sharding | None, ...]:
    """The new sharding of each operand and result; None where it has it already."""
    sizes = factor_sizes(rule)
    dims = rule.operands + rule.results
    tensors = [project(s, d, sizes, mesh) for s, d in zip(shardings, dims, strict=True)]
    common = _common_axes(rule, tensors, [_elements(t) for t in types], mesh)
    tensors = [project(s, d, sizes, mesh) for s, d in zip(held, dims, strict=True)]
    targets: list[Sharding | None] = []
    for tensor, where in zip(tensors, dims, strict=True):
        changed = False
        for factor, entry in tensor.factors.items():
            if entry.axes != common[factor] or entry.overflow:
                tensor.factors[factor] = entry._replace(axes=common[factor], overflow=())
                changed = True
        targets.append(closed(assemble(tensor, where, sizes, name, mesh)) if changed else None)
    return tuple(targets)


def _common_axes(
    rule: Rule, tensors: list[TensorFactors], elements: list[int], mesh: Mesh
) -> list[Axes]:
    """The common axes of each factor; those of whole factors are moved to others if they fit."""
    common = _by_majority(rule, tensors, elements, mesh)
    shared = [t for t in tensors if t.factors]
    for factor, described in enumerate(rule.factors):
        if described.role == "whole":
            axes, common[factor] = common[factor], ()
            if all(factor in t.factors for t in shared):
                _distribute(axes, rule, shared, common, mesh)
    return common


class _Candidate:
    """A factor with candidate axes, and its scores."""

    __slots__ = ("axes", "factor", "largest", "pieces", "role", "total")

    def __init__(self, factor: int, axes: Axes, role: int, mesh: Mesh) -> None:
        self.factor = factor
        self.axes = axes
        self.role = role
        self.total = 0  # total elements of the tensors that are split this way
        self.largest = 0  # elements of the largest shard of a tensor with this factor
        self.pieces = total_size(axes, mesh)

    def rank(self) -> tuple[object, ...]:
        axes = [(a.name, a.before, a.size or 0) for a in self.axes]
        # Shardy's order of preference; factor and axes break ties, so that the choice is
        # deterministic.
        return (self.total, self.role, self.largest, self.pieces, self.factor, len(axes), axes)


def _by_majority(
    rule: Rule, tensors: list[TensorFactors], elements: list[int], mesh: Mesh
) -> list[Axes]:
    """Pick the best candidate greedily; contradicting ones are cut or dropped."""
    by_factor: list[Axes] = [()] * len(rule.factors)
    candidates = _candidates(rule, tensors, elements, mesh)
    while candidates:
        _update_largest(candidates, tensors, elements, by_factor, mesh)
        best = max(candidates, key=_Candidate.rank)
        factor, axes = best.factor, best.axes
        by_factor[factor] = axes
        candidates = [c for c in candidates if _still_open(c, factor, axes, by_factor, mesh)]
    return by_factor


def _candidates(
    rule: Rule, tensors: list[TensorFactors], elements: list[int], mesh: Mesh
) -> list[_Candidate]:
    """Every prefix of the axes of a factor in some tensor."""
    candidates: dict[tuple[int, Axes], _Candidate] = {}
    for tensor in tensors:
        for factor, entry in tensor.factors.items():
            role = _PRECEDENCE[rule.factors[factor].role]
            for end in range(len(entry.axes), 0, -1):
                axes = entry.axes[:end]
                if (factor, axes) not in candidates:
                    candidates[factor, axes] = _Candidate(factor, axes, role, mesh)
    for candidate in candidates.values():
        for tensor, count in zip(tensors, elements, strict=True):
            held = tensor.factors.get(candidate.factor)
            if held is not None and is_list_prefix(candidate.axes, held.axes):
                candidate.total += count
    return list(candidates.values())


def _still_open(
    candidate: _Candidate, factor: int, axes: Axes, open_axes: list[Axes], mesh: Mesh
) -> bool:
    """The rest of a candidate after a choice, cut where it overlaps the chosen axes."""
    if candidate.factor == factor:
        if not is_strict_prefix(axes, candidate.axes):
            return False
        candidate.pieces = total_size(candidate.axes, mesh) // total_size(axes, mesh)
        return True
    cut = _without_overlap(candidate.axes, axes)
    if cut == candidate.axes:
        candidate.pieces = total_size(cut, mesh)
        return True
    held = open_axes[candidate.factor]
    if cut == held:
        return False
    candidate.axes = cut
    candidate.pieces = total_size(cut, mesh) // total_size(held, mesh)
    return True


def _without_overlap(axes: Axes, others: Axes) -> Axes:
    for n, axis in enumerate(axes):
        kept = prefix_without(axis, others)
        if kept != axis:
            return axes[:n] if kept is None else (*axes[:n], kept)
    return axes


def _update_largest(
    candidates: list[_Candidate],
    tensors: list[TensorFactors],
    elements: list[int],
    axes: list[Axes],
    mesh: Mesh,
) -> None:
    local = [
        count // math.prod(total_size(axes[f], mesh) for f in tensor.factors)
        for tensor, count in zip(tensors, elements, strict=True)
    ]
    for candidate in candidates:
        candidate.largest = max(
            n for n, t in zip(local, tensors, strict=True) if candidate.factor in t.factors
        )


def _distribute(
    axes: Axes, rule: Rule, tensors: list[TensorFactors], common: list[Axes], mesh: Mesh
) -> None:
    """Append axes to the factors that all tensors have, as far as they divide evenly."""
    waiting = list(axes)
    for factor, described in enumerate(rule.factors):
        if described.role != "pass" or not all(factor in t.factors for t in tensors):
            continue
        done = total_size(common[factor], mesh)
        if described.size == 0 or described.size % done:
            continue
        room = described.size // done
        held = list(common[factor])
        while waiting and room % size_of(waiting[0], mesh) == 0:
            axis = waiting.pop(0)
            append_merged(held, axis, mesh)
            room //= size_of(axis, mesh)
        common[factor] = tuple(held)
