"""Gathers that take every element once, in order, are reshapes; others stay."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from weft.capture import capture
from weft.evaluate import evaluate
from weft.ops.index import Gather
from weft.pipeline import compile_module

IN_ORDER = np.arange(12).reshape(3, 4)


@pytest.mark.parametrize(
    ("places", "stays"),
    [
        (IN_ORDER, False),
        (IN_ORDER[:2], True),
        (IN_ORDER[::-1], True),
        (np.minimum(IN_ORDER, 9), True),
        (IN_ORDER + 1, True),
    ],
)
def test_gathers_of_a_vector(places, stays):
    x = np.arange(12, dtype="f") * 2
    module = capture(lambda x: jnp.asarray(x).at[places].get(mode="clip"), (x,)).module
    after = compile_module(module, to="optimized").module
    assert any(isinstance(node.op, Gather) for node in after.nodes()) == stays
    np.testing.assert_array_equal(evaluate(after, x)[0], evaluate(module, x)[0])
