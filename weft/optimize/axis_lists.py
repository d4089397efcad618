"""Lists of axes, major first: what two of them have in common, and what is left of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.mesh import Axis, Mesh
from weft.mesh.algebra import Axes, contains, cut, in_mesh_order, merged, overlaps, size_of


def tidy(axes: Iterable[Axis], mesh: Mesh) -> Axes:
    """The list without axes of size 1, neighbouring parts of one axis as one."""
    return merged([axis for axis in axes if size_of(axis, mesh) > 1], mesh)


def as_set(axes: Iterable[Axis], mesh: Mesh) -> Axes:
    """Axes whose order does not matter, in that of the mesh."""
    return tidy(in_mesh_order(axes, mesh), mesh)


def disjoint(axes: Iterable[Axis], others: Sequence[Axis]) -> bool:
    """Whether two lists have no part of an axis in common."""
    return not any(overlaps(axis, other) for axis in axes for other in others)


def inside(axis: Axis, axes: Iterable[Axis]) -> bool:
    """Whether an axis is a part of one of the list."""
    return any(contains(other, axis) for other in axes)


def refined(axes: Iterable[Axis], others: Sequence[Axis], mesh: Mesh) -> Axes:
    """The list without axes of size 1, cut where the others begin and end, if sizes divide."""
    made: list[Axis] = []
    for axis in axes:
        if size_of(axis, mesh) > 1:
            near = [other for other in others if overlaps(axis, other)]
            ends = [other.before * size_of(other, mesh) for other in near]
            made += cut(axis, [*ends, *(other.before for other in near)], mesh)
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
    return tidy(left, mesh)


def shared_start(axes: Axes, others: Axes, mesh: Mesh) -> tuple[Axes, Axes, Axes]:
    """The longest common beginning of two lists, and what follows it in each."""
    left, right = list(refined(axes, others, mesh)), list(refined(others, axes, mesh))
    count = 0
    while count < min(len(left), len(right)) and left[count] == right[count]:
        count += 1
    return (
        tidy(left[:count], mesh),
        tidy(left[count:], mesh),
        tidy(right[count:], mesh),
    )


def shared_end(axes: Axes, others: Axes, mesh: Mesh) -> tuple[Axes, Axes, Axes]:
    """The longest common end of two lists, and what stands before it in each."""
    left, right = list(refined(axes, others, mesh)), list(refined(others, axes, mesh))
    count = 0
    while count < min(len(left), len(right)) and left[-1 - count] == right[-1 - count]:
        count += 1
    cut_left, cut_right = len(left) - count, len(right) - count
    return (
        tidy(left[cut_left:], mesh),
        tidy(left[:cut_left], mesh),
        tidy(right[:cut_right], mesh),
    )
