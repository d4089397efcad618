"""Which device holds which piece."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.mesh import Mesh, parse_sharding
from weft.mesh.pieces import copies, counts, local_shape, pieces

SHARDINGS = [
    '{"x"}, {"y"}',
    '{}, {"y", "x"}',
    '{"x", "y"}, {}',
    '{"y":(2)2}, {"y":(1)2, "x"}',
    "{}, {}",
]


@pytest.mark.parametrize("dims", SHARDINGS)
@given(shape=st.tuples(st.integers(0, 17), st.integers(0, 17)))
def test_the_pieces_make_up_the_tensor(dims, shape):
    mesh = Mesh(x=2, y=4)
    sharding = parse_sharding(f"<@mesh, [{dims}]>")
    whole = np.arange(shape[0] * shape[1]).reshape(shape)
    seen = np.zeros(shape, int)
    for piece in pieces(shape, sharding, mesh):
        part = tuple(slice(a, b) for a, b in piece.bounds)
        seen[part] += 1
        local = np.add(whole[part].shape, piece.padding)
        assert tuple(local) == local_shape(shape, sharding, mesh)
    assert np.all(seen == copies(sharding, mesh))


def test_the_order_is_that_of_jax():
    mesh = Mesh(x=2, y=4)
    found = pieces((8,), parse_sharding('<@mesh, [{"y", "x"}]>'), mesh)
    assert [str(p) for p in found] == [
        *("[0:1]", "[2:3]", "[4:5]", "[6:7]"),
        *("[1:2]", "[3:4]", "[5:6]", "[7:8]"),
    ]
    assert counts(parse_sharding('<@mesh, [{"y", "x"}]>'), mesh) == (8,)


def test_no_sharding_is_the_whole():
    assert local_shape((3, 4), None, Mesh(x=2)) == (3, 4)
