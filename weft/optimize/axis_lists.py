"""Lists of axes, major first: what two of them have in common, and what is left of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from weft.mesh import Axis, Mesh
from weft.mesh.algebra import append_merged, contains, in_mesh_order, overlaps, part, size_of

Axes = tuple[Axis, ...]


def merged(axes: Iterable[Axis], mesh: Mesh) -> Axes:
    """The list without axes of size 1, neighbouring parts of one axis as one."""
    made: list[Axis] = []
    for axis in axes:
        if size_of(axis, mesh) > 1:
            append_merged(made, axis, mesh)
    return tuple(made)


def as_set(axes: Iterable[Axis], mesh: Mesh) -> Axes:
    """Axes whose order does not matter, in that of the mesh."""
    return merged(in_mesh_order(axes, mesh), mesh)


def disjoint(axes: Iterable[Axis], others: Sequence[Axis]) -> bool:
    """Whether two lists have no part of an axis in common."""
    return not any(overlaps(axis, other) for axis in axes for other in others)


def inside(axis: Axis, axes: Iterable[Axis]) -> bool:
    """Whether an axis is a part of one of the list."""
    return any(contains(other, axis) for other in axes)


def refined(axes: Iterable[Axis], others: Sequence[Axis], mesh: Mesh) -> Axes:
    """The list, its axes cut where the others begin and end, as far as the sizes divide."""
    made: list[Axis] = []
    for axis in axes:
        end = axis.before * size_of(axis, mesh)
        cuts = {axis.before, end}
        for other in others:
            if overlaps(axis, other):
                edges = (other.before, other.before * size_of(other, mesh))
                cuts.update(edge for edge in edges if axis.before < edge < end)
        places = sorted(cuts)
        pairs = list(pairwise(places))
        if any(high % low for low, high in pairs):
            pairs = [(axis.before, end)]
        made += [part(axis.name, low, high // low, mesh) for low, high in pairs]
    return tuple(made)


def without(axes: Iterable[Axis], others: Sequence[Axis], mesh: Mesh) -> Axes | None:
    """The axes less the parts that the others take; None if they do not come off cleanly."""
    left = []
    for axis in refined(axes, others, mesh):
        if inside(axis, others):
            continue
        if not disjoint((axis,), others):
            return None
        left.append(axis)
    return merged(left, mesh)


def shared_start(axes: Axes, others: Axes, mesh: Mesh) -> tuple[Axes, Axes, Axes]:
    """The longest common beginning of two lists, and what follows it in each."""
    left, right = list(refined(axes, others, mesh)), list(refined(others, axes, mesh))
    count = 0
    while count < min(len(left), len(right)) and left[count] == right[count]:
        count += 1
    return (
        merged(left[:count], mesh),
        merged(left[count:], mesh),
        merged(right[count:], mesh),
    )


def shared_end(axes: Axes, others: Axes, mesh: Mesh) -> tuple[Axes, Axes, Axes]:
    """The longest common end of two lists, and what stands before it in each."""
    left, right = list(refined(axes, others, mesh)), list(refined(others, axes, mesh))
    count = 0
    while count < min(len(left), len(right)) and left[-1 - count] == right[-1 - count]:
        count += 1
    cut_left, cut_right = len(left) - count, len(right) - count
    return (
        merged(left[cut_left:], mesh),
        merged(left[:cut_left], mesh),
        merged(right[:cut_right], mesh),
    )
