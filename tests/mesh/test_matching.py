"""Lists of devices become axes exactly where they are the groups of axes."""

from __future__ import annotations

import itertools

import pytest

from weft.mesh import Axis, Mesh
from weft.mesh.matching import matching_axes

MESHES = (
    Mesh(a=2, b=4, c=3),
    Mesh((("a", 2), ("b", 4), ("c", 3)), tuple(reversed(range(24)))),
    Mesh(a=1, b=4, c=1),
)
POOL = (Axis("a"), Axis("b"), Axis("c"), Axis("b", 1, 2), Axis("b", 2, 2))


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("count", range(4))
def test_groups_of_axes_are_found(mesh: Mesh, count: int):
    for axes in itertools.permutations(POOL, count):
        if Axis("b") in axes and sum(a.name == "b" for a in axes) > 1:
            continue
        lists = mesh.groups(axes)
        found = matching_axes(lists, mesh)
        assert found is not None and mesh.groups(found) == lists
        shuffled = tuple(group[::-1] for group in reversed(lists))
        alike = matching_axes(shuffled, mesh, ordered=False)
        assert alike is not None
        assert {frozenset(g) for g in mesh.groups(alike)} == {frozenset(g) for g in lists}


@pytest.mark.parametrize(
    "lists",
    [
        (),
        ((0, 1), (2, 3), (4, 5)),  # not everybody
        ((0, 1, 2), (3, 4, 5, 6, 7)),  # groups of two sizes
        ((0, 3), (1, 2), (4, 7), (5, 6)),  # along no axis
        ((1, 0), (3, 2), (5, 4), (7, 6)),  # backwards
        ((0, 1), (2, 3), (4, 6), (5, 7)),  # some along one axis, some along another
        ((0, 2, 1, 3), (4, 5, 6, 7)),  # not all in one order
    ],
)
def test_other_lists_stay_lists(lists: tuple[tuple[int, ...], ...]):
    assert matching_axes(lists, Mesh(x=2, y=4)) is None
