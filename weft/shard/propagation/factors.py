"""Propagation of axes along the factors of one op: Shardy's basic and aggressive strategies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

from weft.ir.rule import Rule
from weft.mesh import Axis, Mesh, Sharding
from weft.mesh.algebra import (
    Axes,
    contains,
    is_list_prefix,
    is_prefix,
    is_strict_prefix,
    part,
    prefix_without,
    size_of,
    total_size,
)
from weft.records import dataclass
from weft.shard.propagation.projection import (
    FactorSharding,
    TensorFactors,
    assemble,
    factor_sizes,
    project,
)

FactorDirection = Literal[0, 1, 2, 3]  # none, forward, backward, both
NONE, FORWARD, BACKWARD, BOTH = 0, 1, 2, 3
Strategy = Literal["basic", "aggressive"]


@dataclass(slots=True)
class Projection:
    """The factor shardings of every operand and result of one op."""

    rule: Rule
    mesh: Mesh
    operands: list[TensorFactors]
    results: list[TensorFactors]

    @property
    def tensors(self) -> list[TensorFactors]:
        """Operands, then results."""
        return self.operands + self.results


def spread(
    rule: Rule,
    shardings: Sequence[Sharding | None],
    directions: Sequence[int],
    strategy: Strategy,
    elementwise: bool,
    name: str | Mesh,
    mesh: Mesh,
) -> tuple[Sharding | None, ...]:
    """The new sharding of each operand and result; None where nothing changes."""
    sizes = factor_sizes(rule)
    count = len(rule.operands)
    dims = rule.operands + rule.results
    tensors = [project(s, d, sizes, mesh) for s, d in zip(shardings, dims, strict=True)]
    projection = Projection(rule, mesh, tensors[:count], tensors[count:])
    if strategy == "basic":
        changed = _basic(projection, directions)
    else:
        changed = _aggressive(projection, directions, elementwise)
    updates: list[Sharding | None] = []
    for n, (tensor, old) in enumerate(zip(tensors, shardings, strict=True)):
        new = assemble(tensor, dims[n], sizes, name, mesh) if changed[n] else None
        if new is not None and (new == old or (old is None and not _has_axes(new))):
            new = None  # the new axes would give strided shards, and were not assembled
        updates.append(new)
    return tuple(updates)


def _has_axes(sharding: Sharding) -> bool:
    return bool(sharding.replicated or sharding.unreduced or any(d.axes for d in sharding.dims))


# Compatible axes


def compatible_major_axes(projection: Projection, factor: int, direction: int) -> Axes:
    """The longest list of axes along a factor that is compatible with all tensors."""
    if direction == NONE:
        return ()
    first, second = projection.operands, projection.results
    if direction == BACKWARD:
        first, second = second, first
    axes: Axes = ()
    can_expand = True
    for tensor in first:
        entry = tensor.factors.get(factor)
        if entry is not None and entry.axes:  # a tensor without axes is compatible
            axes, can_expand = _agree(axes, entry.axes, can_expand)
    # In one direction, the target tensors may contradict but not contribute.
    can_expand = can_expand and direction == BOTH
    for tensor in second:
        entry = tensor.factors.get(factor)
        if entry is not None and entry.axes:
            axes, can_expand = _agree(axes, entry.axes, can_expand)
    return axes


def _agree(old: Axes, new: Axes, can_expand: bool) -> tuple[Axes, bool]:
    """The common prefix of two lists of axes, and whether it may still grow."""
    if old == new:
        return old, can_expand
    if not old:
        return (new if can_expand else ()), can_expand
    agreed: list[Axis] = []
    for n, (before, after) in enumerate(zip(old, new, strict=False)):
        if before == after:
            agreed.append(after)
        # One axis is the major part of the other: the longer one continues it, unless the shorter
        # list goes on with another axis, which contradicts.
        elif is_prefix(after, before):
            if n + 1 < len(new):
                return (*agreed, after), False
            agreed.append(before)
        elif is_prefix(before, after):
            if not can_expand or n + 1 < len(old):
                return (*agreed, before), False
            agreed.append(after)
        else:
            return tuple(agreed), False
    shared = min(len(old), len(new))
    agreed.extend(old[shared:])
    if can_expand:
        agreed.extend(new[shared:])
    return tuple(agreed), can_expand


# Conflicts


def without_conflict_across(
    axis: Axis, factors: dict[int, FactorSharding], factor: int
) -> Axis | None:
    """The major part of an axis that splits no other factor of the tensor."""
    current: Axis | None = axis
    for other, entry in factors.items():
        if other != factor and current is not None and (entry.axes or entry.overflow):
            current = prefix_without(current, entry.overflow + entry.axes)
    return current


def without_conflict_within(
    axis: Axis, tensor: TensorFactors, entry: FactorSharding, done: int, size: int, mesh: Mesh
) -> Axis | None:
    """The major part of an axis that fits this tensor's factor after `done` shards."""
    current: Axis | None = axis
    if tensor.replicated or tensor.unreduced:
        current = prefix_without(axis, tensor.replicated + tensor.unreduced)
    if current is None:
        return None
    if entry.axes and any(contains(held, current) for held in entry.axes):
        return current
    if not entry.is_closed and not entry.overflow:
        # Only the minor-most factor of a dim may be split unevenly: padding goes to the dim's end.
        if entry.is_minor_most:
            return current
        if size % done == 0:
            whole = size_of(current, mesh)
            common = math.gcd(size // done, whole)
            if common == whole:
                return current
            if common != 1:
                return part(current.name, current.before, common, mesh)
    if entry.axes and is_prefix(entry.axes[-1], current):
        return entry.axes[-1]
    return None


def truncate(axes: Axes, remove: Callable[[Axis, int], Axis | None], mesh: Mesh) -> Axes:
    """Cut a list of axes at the first conflict, keeping its compatible major part."""
    done = 1
    for n, axis in enumerate(axes):
        prefix = remove(axis, done)
        if prefix is None:
            return axes[:n]
        if prefix != axis:
            return (*axes[:n], prefix)
        if n + 1 < len(axes):
            done *= size_of(prefix, mesh)
    return axes


# The strategies


def _basic(projection: Projection, directions: Sequence[int]) -> list[bool]:
    """Each factor separately, with axes that are compatible with every tensor."""
    tensors = projection.tensors
    changed = [False] * len(tensors)
    for factor, described in enumerate(projection.rule.factors):
        axes = compatible_major_axes(projection, factor, directions[factor])

        def suits_all(
            axis: Axis, done: int, f: int = factor, size: int = described.size
        ) -> Axis | None:
            current: Axis | None = axis
            for tensor in tensors:
                if current is None:
                    return None
                current = without_conflict_across(current, tensor.factors, f)
                entry = tensor.factors.get(f)
                if current is not None and entry is not None:
                    current = without_conflict_within(
                        current, tensor, entry, done, size, projection.mesh
                    )
            return current

        axes = truncate(axes, suits_all, projection.mesh)
        for n, tensor in enumerate(tensors):
            changed[n] |= _expand(tensor, factor, axes)
    return changed


def _aggressive(projection: Projection, directions: Sequence[int], elementwise: bool) -> list[bool]:
    """All factors at once; each tensor takes the axes that fit, larger sources first."""
    tensors = projection.tensors
    changed = [False] * len(tensors)
    split = [f for tensor in tensors for f, entry in tensor.factors.items() if entry.axes]
    wanted: dict[int, Axes] = {}
    for factor in dict.fromkeys(split):
        if axes := compatible_major_axes(projection, factor, directions[factor]):
            wanted[factor] = axes
    if not _can_grow(tensors, wanted):
        return changed
    # Results before operands: an elementwise op's operands must not get axes that its results lack.
    order = _order_of_preference(projection, wanted, elementwise)
    first_result = len(projection.operands)
    for n, tensor in enumerate(projection.results, first_result):
        for factor in order:
            if axes := _propagated(projection, tensor, factor, wanted[factor]):
                changed[n] |= _expand(tensor, factor, axes)
    for n, tensor in enumerate(projection.operands):
        for factor in order:
            axes = _propagated(projection, tensor, factor, wanted[factor])
            if not axes:
                continue
            if elementwise:
                axes = _no_further_than_results(projection, factor, axes)
            changed[n] |= _expand(tensor, factor, axes)
    return changed


def _can_grow(tensors: list[TensorFactors], wanted: dict[int, Axes]) -> bool:
    """Whether the wanted axes, or a prefix of them, extend some tensor's axes."""
    for factor, axes in wanted.items():
        for tensor in tensors:
            entry = tensor.factors.get(factor)
            if entry is not None and (not entry.axes or is_strict_prefix(entry.axes, axes)):
                return True
    return False


def _order_of_preference(
    projection: Projection, wanted: dict[int, Axes], elementwise: bool
) -> list[int]:
    """Factors by larger source tensor, then (elementwise) more shards, then source, then index."""
    if len(wanted) == 1:
        return list(wanted)
    sizes = factor_sizes(projection.rule)
    source = dict.fromkeys(wanted, (-1, -1))  # size and index of the source tensor
    for index, tensor in enumerate(projection.tensors):
        elements = math.prod([sizes[f] for f in tensor.factors])
        for factor, axes in wanted.items():
            entry = tensor.factors.get(factor)
            if entry is None or elements <= source[factor][0]:
                continue
            if is_list_prefix(axes, entry.axes):
                source[factor] = (elements, index)
    pieces = {f: total_size(a, projection.mesh) if elementwise else 0 for f, a in wanted.items()}
    return sorted(wanted, key=lambda f: (-source[f][0], -pieces[f], source[f][1], f))


def _propagated(projection: Projection, tensor: TensorFactors, factor: int, wanted: Axes) -> Axes:
    """The axes that a tensor can take along a factor; empty if it gains none."""
    entry = tensor.factors.get(factor)
    if entry is None or not is_strict_prefix(entry.axes, wanted):
        return ()
    mesh = projection.mesh
    size = projection.rule.factors[factor].size
    axes = truncate(
        wanted,
        lambda axis, done: without_conflict_within(axis, tensor, entry, done, size, mesh),
        mesh,
    )
    if not is_strict_prefix(entry.axes, axes):
        return ()
    return truncate(
        axes, lambda axis, _: without_conflict_across(axis, tensor.factors, factor), mesh
    )


def _no_further_than_results(projection: Projection, factor: int, axes: Axes) -> Axes:
    """Limit an elementwise op's operand to axes that its results have."""
    for result in projection.results:
        entry = result.factors.get(factor)
        if entry is not None and is_strict_prefix(entry.axes, axes):
            axes = entry.axes
    return axes


def _expand(tensor: TensorFactors, factor: int, axes: Axes) -> bool:
    """Set the axes of a tensor's factor, if they extend its current ones."""
    entry = tensor.factors.get(factor)
    if entry is None or not is_strict_prefix(entry.axes, axes):
        return False
    tensor.factors[factor] = entry._replace(axes=axes)
    return True
