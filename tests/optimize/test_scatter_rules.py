"""Scatters with one update for each row become selects, with the same results."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft


def zeros(x, t):
    return jnp.zeros((5, 7)).at[jnp.arange(5), t].add(x)


def rows(x, t):
    """One index for each row, with batching dims."""
    return jax.vmap(lambda x, t: jnp.full((7,), 2.0).at[t].set(x))(x, t)


def gradient(x, t):
    spread = jnp.outer(x, jnp.arange(7.0))
    return jax.grad(lambda s: -jnp.take_along_axis(s, t[:, None], 1).sum())(spread)


def one(x, t):
    return jnp.zeros((7, 5)).at[t[0]].set(x)


def many(x, t):
    return jnp.zeros((7,)).at[t].add(x)


def scatters(function, *arguments) -> int:
    compiled = weft.compile(function, *arguments, target="numpy")
    return compiled.text("optimized").count('"stablehlo.scatter"(')


X = np.array([1.5, -2, 3, -0.0, 4], "f")


@pytest.mark.parametrize("t", [[0, 6, 3, 3, 2], [0, -1, 9, 3, -8]], ids=["inside", "outside"])
@pytest.mark.parametrize(("function", "left"), [(rows, 0), (gradient, 0), (one, 0), (many, 1)])
def test_one_update_for_each_row(function, left, t):
    places = np.array(t, "i")
    assert scatters(function, X, places) == left
    made = weft.compile(function, X, places)(X, places)
    np.testing.assert_array_equal(made, jax.jit(function)(X, places))


def test_several_updates_of_a_row_are_kept():
    places = np.array([0, 6, 3, 3, 2], "i")
    made = weft.compile(zeros, X, places)(X, places)
    np.testing.assert_array_equal(made, jax.jit(zeros)(X, places))


def test_narrow_indices_are_kept():
    def function(x, t):
        return jnp.zeros((300,)).at[t[0]].set(x[0])

    places = np.array([200], "B")
    made = weft.compile(function, X, places)(X, places)
    np.testing.assert_array_equal(made, jax.jit(function)(X, places))
