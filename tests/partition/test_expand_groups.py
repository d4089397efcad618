"""Expanded groups: plain StableHLO, with lists of devices, that means the same."""

from __future__ import annotations

import numpy as np
import pytest

from tests.oracles.test_xla_local import ALONG, MESHES, every_op
from weft.capture import parse
from weft.evaluate import evaluate
from weft.ir.verify import verify
from weft.mesh import Mesh, MeshAxes
from weft.partition.expand_groups import expand_groups


@pytest.mark.parametrize("mesh", MESHES, ids=["in order", "permuted"])
@pytest.mark.parametrize("along", ALONG, ids=lambda a: "+".join(map(str, a.axes)))
def test_it_means_the_same(mesh: Mesh, along: MeshAxes):
    module = every_op(mesh, along)
    plain = verify(expand_groups(module))
    stacks = np.arange(2 * 8 * 32, dtype=np.float32).reshape(2, 8, 4, 8)
    for one, other in zip(
        evaluate(module, *stacks, devices=8), evaluate(plain, *stacks, devices=8), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_nothing_of_ours_is_left():
    plain = expand_groups(every_op(MESHES[0], ALONG[0]))
    text = plain.text()
    assert "weft." not in text
    assert "mesh" not in text
    assert "[[0, 1, 2, 3], [4, 5, 6, 7]]" in text
    assert parse(text).text() == text
