"""Transposes of a ragged dot's operands vanish, on any mesh, forward and backward, as in JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft
from weft import Mesh, P

RANDOM = np.random.default_rng(0)
ROWS = RANDOM.integers(-3, 4, (24, 6)).astype("f")
WEIGHTS = RANDOM.integers(-3, 4, (4, 10, 6)).astype("f")
SIZES = np.array([5, 0, 13, 4], "i")


def experts(rows, weights, sizes):
    """Weights as Hugging Face keeps them: [experts, out, in]."""
    return jax.lax.ragged_dot(rows, weights.transpose(0, 2, 1), sizes)


def slopes(rows, weights, sizes):
    return jax.grad(lambda r, w: (experts(r, w, sizes) ** 2).sum(), (0, 1))(rows, weights)


@pytest.mark.parametrize("function", [experts, slopes])
@pytest.mark.parametrize("ways", [{}, {"data": 2, "expert": 2}])
def test_transposes_vanish(function, ways):
    how = {}
    if ways:
        how = {"mesh": Mesh(**ways), "in_shardings": (P("data"), P("expert"), P())}
    compiled = weft.compile(function, ROWS, WEIGHTS, SIZES, **how)
    if not ways and function is experts:
        assert "stablehlo.transpose" not in compiled.text("optimized")
    made = compiled(ROWS, WEIGHTS, SIZES)
    expected = jax.jit(function)(ROWS, WEIGHTS, SIZES)
    for mine, theirs in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_transpose_that_reorders_the_result_stays():
    def function(rows, weights, sizes):
        numbers = jax.lax.RaggedDotDimensionNumbers((((2,), (1,)), ((), ())), (1,), (0,))
        turned = rows.transpose(1, 0, 2)
        return jax.lax.ragged_dot_general(turned, weights, sizes, numbers)

    rows = jnp.asarray(RANDOM.integers(-3, 4, (5, 3, 6)).astype("f"))
    weights = jnp.asarray(RANDOM.integers(-3, 4, (2, 6, 4)).astype("f"))
    sizes = jnp.asarray([[2, 1], [0, 5], [4, 0]], jnp.int32)
    compiled = weft.compile(function, rows, weights, sizes)
    assert "stablehlo.transpose" in compiled.text("optimized")
    np.testing.assert_array_equal(compiled(rows, weights, sizes), function(rows, weights, sizes))
