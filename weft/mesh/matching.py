"""Recovering mesh axes from explicit device groups."""

from __future__ import annotations

from functools import lru_cache

from weft.mesh.algebra import Axes, merged, part
from weft.mesh.axes import Axis, Mesh
from weft.mesh.groups import Lists


@lru_cache(maxsize=4096)
def matching_axes(lists: Lists, mesh: Mesh, *, ordered: bool = True) -> Axes | None:
    """The axes, major first, whose groups are these lists; None if no axes match.

    Groups may be in any order; so may the devices of a group unless `ordered`.
    """
    if not lists or len({len(group) for group in lists}) != 1:
        return None
    ids = mesh.device_ids or tuple(range(mesh.size))
    if sorted(d for group in lists for d in group) != sorted(ids):
        return None
    if not ordered:
        places = {device: n for n, device in enumerate(ids)}
        lists = tuple(tuple(sorted(group, key=places.__getitem__)) for group in lists)
    # The first group suggests the axes; all groups must agree with them.
    axes = _axes_of(lists[0], mesh)
    if axes is None or set(mesh.groups(axes)) != set(lists):
        return None
    return axes


def _axes_of(group: tuple[int, ...], mesh: Mesh) -> Axes | None:
    """The axes of one group's devices, found from the minor one up."""
    factors = _prime_sub_axes(mesh)
    coordinates = [_coordinates(mesh.position(device), factors, mesh) for device in group]
    axes: list[Axis] = []
    step = 1
    while step < len(group):
        # Along the axes found so far lie `step` devices: the next one differs from the first in a
        # single digit, that of the next axis up.
        moved = [
            n
            for n, (a, b) in enumerate(zip(coordinates[0], coordinates[step], strict=True))
            if a != b
        ]
        if len(moved) != 1:
            return None
        name, before, size = factors[moved[0]]
        axes.append(part(name, before, size, mesh))
        step *= size
    if step != len(group) or len(set(axes)) != len(axes):
        return None
    return merged(reversed(axes), mesh)


def _prime_sub_axes(mesh: Mesh) -> list[tuple[str, int, int]]:
    """Every axis in sub-axes of prime size, major first: its name, pre-size and size."""
    sub_axes = []
    for name, size in mesh.axes:
        before, factor = 1, 2
        while size > 1:
            if size % factor:
                factor += 1
                continue
            sub_axes.append((name, before, factor))
            before, size = before * factor, size // factor
    return sub_axes


def _coordinates(
    position: tuple[int, ...], factors: list[tuple[str, int, int]], mesh: Mesh
) -> tuple[int, ...]:
    places = dict(zip([name for name, _ in mesh.axes], position, strict=True))
    sizes = mesh.axis_sizes
    return tuple([places[n] // (sizes[n] // (before * size)) % size for n, before, size in factors])
