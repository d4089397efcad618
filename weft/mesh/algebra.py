"""The algebra of axes and sub-axes: prefixes, overlaps and merging.

An axis of size n that is split into parts a, b, c (major to minor) has the sub-axes (1)a, (a)b and
(ab)c; two of them may stand side by side only if one refines the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from weft.mesh.axes import Axis, Mesh

Axes = tuple[Axis, ...]
DimAxes = tuple[Axes, ...]  # for each dim of a tensor the axes that split it, major first


def size_of(axis: Axis, mesh: Mesh) -> int:
    """The number of devices along an axis or sub-axis."""
    return mesh.axis_sizes[axis.name] if axis.size is None else axis.size


def total_size(axes: Iterable[Axis], mesh: Mesh) -> int:
    """The number of shards along these axes."""
    return math.prod(size_of(axis, mesh) for axis in axes)


def part(name: str, before: int, size: int, mesh: Mesh) -> Axis:
    """The sub-axis that starts after `before` devices; the axis itself if it is whole."""
    whole = before == 1 and size == mesh.axis_sizes[name]
    return Axis(name) if whole else Axis(name, before, size)


def is_prefix(axis: Axis, other: Axis) -> bool:
    """Whether an axis is the major part of another, or the other itself."""
    if axis == other:
        return True
    # Only the major part counts: a minor part of an axis is a strided set of devices.
    if axis.name != other.name or axis.size is None or axis.before != other.before:
        return False
    return other.size is None or axis.size < other.size


def contains(axis: Axis, other: Axis) -> bool:
    """Whether a sub-axis lies within an axis."""
    if axis.name != other.name:
        return False
    if axis.size is None or other.size is None:
        return axis.size is None
    return axis.before <= other.before and axis.before * axis.size >= other.before * other.size


def overlaps(axis: Axis, other: Axis) -> bool:
    """Whether two sub-axes have a part in common."""
    if axis.name != other.name:
        return False
    if axis.size is None or other.size is None:
        return True
    return axis.before < other.before * other.size and other.before < axis.before * axis.size


def _can_coexist(axis: Axis, other: Axis) -> bool:
    """Whether some factorization of the axis has both sub-axes as unions of its parts."""
    if axis.name != other.name or axis.size is None or other.size is None:
        return True
    # The four ends must form a divisor chain; disjoint ones need only that the second starts at a
    # multiple of the first's end.
    low, high = sorted((axis.before, other.before))
    near, far = sorted((axis.before * axis.size, other.before * other.size))
    if near > high:
        return high % low == 0 and near % high == 0 and far % near == 0
    return high % near == 0


def prefix_without(axis: Axis, others: Iterable[Axis]) -> Axis | None:
    """The largest major part of an axis that overlaps none of the others."""
    for other in others:
        if axis.name != other.name:
            continue
        if not _can_coexist(axis, other):
            return None
        if not overlaps(axis, other):
            continue
        # The overlap begins where the axis does: it has no major part without it.
        if axis.before >= other.before:
            return None
        # Only what lies before the other one is left.
        axis = Axis(axis.name, axis.before, other.before // axis.before)
    return axis


def append_merged(axes: list[Axis], axis: Axis, mesh: Mesh) -> None:
    """Append an axis; merge it into the last one if it continues it."""
    if axes and axes[-1].name == axis.name and axes[-1].size is not None and axis.size is not None:
        last = axes[-1]
        assert last.size is not None
        # It begins where the last one ends: (1)2 and (2)4 are (1)8.
        if last.before * last.size == axis.before:
            axes[-1] = part(axis.name, last.before, last.size * axis.size, mesh)
            return
    axes.append(axis)


def extend_merged(axes: list[Axis], more: Sequence[Axis], mesh: Mesh) -> None:
    """Append axes; merge the first into the last one there if it continues it."""
    if more:
        # The others are merged already: only the first can continue what is there.
        append_merged(axes, more[0], mesh)
        axes += more[1:]


def take_front(axes: list[Axis], size: int, mesh: Mesh) -> Axis:
    """Take the major part of that size off the first axis of a list."""
    axis, whole = axes[0], size_of(axes[0], mesh)
    if size == whole:
        return axes.pop(0)
    axes[0] = part(axis.name, axis.before * size, whole // size, mesh)
    return part(axis.name, axis.before, size, mesh)


def take_common(axes: list[Axis], room: int, mesh: Mesh) -> tuple[list[Axis], int]:
    """Take the axes that divide a size off the front of a list; returns them and the size's rest.

    An axis that divides it in part is cut, and its minor part stays in the list.
    """
    common_axes: list[Axis] = []
    while axes:
        size = size_of(axes[0], mesh)
        common = math.gcd(room, size)
        # Axes behind this one are more minor: none of them can be taken before it.
        if common == 1 < size:
            break
        common_axes.append(take_front(axes, common, mesh))
        room //= common
    return common_axes, room


def merged(axes: Iterable[Axis], mesh: Mesh) -> Axes:
    """The list with neighbouring parts of one axis merged."""
    result: list[Axis] = []
    for axis in axes:
        append_merged(result, axis, mesh)
    return tuple(result)


def merged_axes(axes: Iterable[Axis], mesh: Mesh) -> Axes:
    """The list without axes of size 1, neighbouring parts of one axis merged."""
    return merged([axis for axis in axes if size_of(axis, mesh) > 1], mesh)


def cut(axis: Axis, places: Iterable[int], mesh: Mesh) -> Axes:
    """The parts of an axis between these cuts; the whole axis if they do not divide each other."""
    end = axis.before * size_of(axis, mesh)
    inside = {place for place in places if axis.before < place < end}
    pairs = list(pairwise(sorted({axis.before, *inside, end})))
    # Sub-axes are factors of the axis: each cut must divide the next.
    if not inside or any(high % low for low, high in pairs):
        pairs = [(axis.before, end)]
    return tuple([part(axis.name, low, high // low, mesh) for low, high in pairs])


def is_strict_prefix(axes: Sequence[Axis], others: Sequence[Axis]) -> bool:
    """Whether a list of axes is a proper prefix of another; its last axis may be a part."""
    return is_list_prefix(axes, others) and tuple(axes) != tuple(others)


def is_list_prefix(axes: Sequence[Axis], others: Sequence[Axis]) -> bool:
    """Whether a list of axes is a prefix of another; its last axis may be a part."""
    if not axes:
        return True
    if len(axes) > len(others):
        return False
    last = len(axes) - 1
    return tuple(axes[:last]) == tuple(others[:last]) and is_prefix(axes[last], others[last])


def in_mesh_order(axes: Iterable[Axis], mesh: Mesh) -> Axes:
    """Axes sorted in mesh order, sub-axes from major to minor."""
    order = {name: n for n, (name, _) in enumerate(mesh.axes)}
    return tuple(sorted(axes, key=lambda a: (order[a.name], a.before, a.size or 0)))


def difference(axes: Axes, others: Axes, mesh: Mesh) -> Axes:
    """The parts of axes that overlap none of the others."""
    left = list(axes)
    for other in others:
        rest: list[Axis] = []
        for axis in left:
            rest.extend(_cut(axis, other, mesh) if overlaps(axis, other) else [axis])
        left = rest
    return tuple(left)


def _cut(axis: Axis, other: Axis, mesh: Mesh) -> list[Axis]:
    end = axis.before * size_of(axis, mesh)
    after = other.before * size_of(other, mesh)
    parts = []
    if other.before > axis.before:
        parts.append(part(axis.name, axis.before, other.before // axis.before, mesh))
    if end > after:
        parts.append(part(axis.name, after, end // after, mesh))
    return parts


def merged_in_order(axes: Iterable[Axis], mesh: Mesh) -> Axes:
    """Axes in the order of the mesh, neighbours merged."""
    return merged(in_mesh_order(axes, mesh), mesh)
