"""Loops that read slices of split values: with an unknown trip count, and of values that vary."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import weft
from tests.tolerance import assert_close
from weft import Mesh, P


def until(weights: Any, x: Any) -> Any:
    """The trip count depends on data."""

    def body(carried: Any) -> Any:
        i, x = carried
        return i + 1, jnp.tanh(x @ lax.dynamic_index_in_dim(weights, i, keepdims=False))

    return lax.while_loop(lambda c: (c[0] < 5) & (c[1].sum() < 1e9), body, (0, x))[1]


def changing(weights: Any, x: Any) -> Any:
    """The weights of a round are not those of the one before."""

    def body(i: Any, carried: Any) -> Any:
        weights, x = carried
        y = jnp.tanh(x @ lax.dynamic_index_in_dim(weights, i, keepdims=False))
        return jnp.ones_like(weights) * i, y

    return lax.fori_loop(0, 5, body, (weights, x))


@pytest.mark.parametrize("function", [until, changing])
@pytest.mark.parametrize("split", [P("a"), P(None, "a")])
def test_slices_of_split_values(function: Any, split: P) -> None:
    rng = np.random.default_rng(0)
    weights, x = (rng.standard_normal(shape).astype("f") for shape in ((8, 4, 4), (2, 4)))
    how = {"mesh": Mesh(a=4), "in_shardings": (split, P())}
    made = weft.compile(function, weights, x, **how)(weights, x)
    expected = jax.jit(function)(weights, x)
    for one, other in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
        assert_close(np.asarray(one), np.asarray(other), 20)
