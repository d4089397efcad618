"""Which axes are in one process: the minor axes, where processes have consecutive devices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import Unsupported
from weft.mesh import Axis, Mesh
from weft.mesh.axes import inner_axes
from weft.mesh.owners import owned_axes


@given(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=3), st.data())
def test_consecutive_devices_are_along_minor_axes(sizes: list[int], data: st.DataObject):
    mesh = Mesh([(f"a{n}", size) for n, size in enumerate(sizes)])
    count = mesh.size
    for size in sizes[: data.draw(st.integers(0, len(sizes)))]:
        count //= size
    found = owned_axes(mesh, {device: device // count for device in range(mesh.size)})
    assert found == tuple([a for a in inner_axes(mesh, count) if mesh.axis_sizes[a.name] > 1])


@pytest.mark.parametrize(
    ("mesh", "owners", "axes"),
    [
        (Mesh(x=2, y=4), [0, 1, 2, 3] * 2, (Axis("x"),)),
        (Mesh(x=2, y=4), [0, 0, 1, 1, 2, 2, 3, 3], (Axis("y", 2, 2),)),
        (Mesh(x=2, y=4), [0, 1] * 4, (Axis("x"), Axis("y", 1, 2))),
        (Mesh(x=6), [0, 1, 2] * 2, (Axis("x", 1, 2),)),
        (Mesh(x=6), [0, 0, 1, 1, 2, 2], (Axis("x", 3, 2),)),
        (Mesh(x=2, y=2), [0, 1, 2, 3], ()),
        (Mesh((("x", 4),), device_ids=(0, 2, 1, 3)), [0, 0, 1, 1], (Axis("x", 1, 2),)),
    ],
)
def test_other_orders(mesh: Mesh, owners: list[int], axes: tuple[Axis, ...]):
    assert owned_axes(mesh, dict(enumerate(owners))) == axes
    groups = mesh.groups(axes) if axes else [[d] for d in range(mesh.size)]
    assert all(len({owners[d] for d in group}) == 1 for group in groups)


@pytest.mark.parametrize("owners", [[0, 0, 0, 1], [0, 1, 1, 0], [0, 0, 1, 2]])
def test_devices_that_follow_no_axes(owners: list[int]):
    with pytest.raises(Unsupported, match="do not follow the axes"):
        owned_axes(Mesh(x=2, y=2), dict(enumerate(np.array(owners).tolist())))
