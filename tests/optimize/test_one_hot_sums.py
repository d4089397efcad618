"""Sums of a one-hot times something need no loop, and are what the loop gives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft
from weft import P


def hot(t, size=7, dim=1):
    return jax.nn.one_hot(t, size, dtype=jnp.float32, axis=dim)


def loss(x, t):
    return -jnp.take_along_axis(jax.nn.log_softmax(x), t[:, None], 1, mode="clip").mean()


# What is summed, and whether its loop is left.
SUMS = {
    "one": (lambda x, t: hot(t).sum(1), 0),
    "scaled": (lambda x, t: (x[:, :1] * hot(t) / 3).sum(1), 0),
    "minus": (lambda x, t: (-hot(t)).sum(1), 0),
    "masked": (lambda x, t: jnp.where((x[:, :1] > 0), hot(t) * x[:, :1], 0).sum(1), 0),
    "first dim": (lambda x, t: (hot(t, dim=0) * x[:, 0]).sum(0), 0),
    "integers": (lambda x, t: (jax.nn.one_hot(t, 7, dtype=jnp.int32) * t[:, None]).sum(1), 0),
    "narrow": (lambda x, t: jax.nn.one_hot(t, 7, dtype=jnp.bfloat16).sum(1), 0),
    "varies": (lambda x, t: (x * hot(t)).sum(1), 1),
    "no zeros": (lambda x, t: (1 + hot(t)).sum(1), 1),
    "two": (lambda x, t: (hot(t) * hot(t + 1)).sum(1), 1),
    "all": (lambda x, t: hot(t).sum(), 1),
    "from one": (lambda x, t: jax.lax.reduce(hot(t), 1.0, jax.lax.add, (1,)), 1),
    "size 1": (lambda x, t: hot(t, 1).sum(1), 0),
    "loss": (jax.grad(loss), 2),
}
PLACES = np.array([0, 6, 3, -1, 7, -9, 2], "i")


@pytest.mark.parametrize("name", SUMS)
def test_sums_are_those_of_the_loop(name):
    function, left = SUMS[name]
    x = np.random.default_rng(0).standard_normal((7, 7)).astype("f")
    x[1, 0], x[2, 0], x[3, 0] = np.nan, np.inf, -0.0
    x = np.nan_to_num(x) if name == "loss" else x
    compiled = weft.compile(function, x, PLACES, target="numpy")
    assert compiled.text("optimized").count('"stablehlo.reduce"') == left
    whole = weft.compile(function, x, PLACES, target="numpy", level=0)  # not XLA: it drops NaN
    made, expected = (np.asarray(f(x, PLACES)).astype("f") for f in (compiled, whole))
    np.testing.assert_allclose(made, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(np.signbit(made), np.signbit(expected))


@pytest.mark.parametrize("axes", [("m",), (None, "m"), ("d", "m")])
def test_a_sharded_vocabulary(axes):
    x = np.random.default_rng(0).standard_normal((8, 12)).astype("f")
    places = np.arange(8, dtype="i")
    compiled = weft.compile(
        jax.grad(loss), x, places, mesh=weft.Mesh(d=2, m=4), in_shardings=(P(*axes), P())
    )
    expected = jax.grad(loss)(x, places)
    np.testing.assert_allclose(compiled(x, places), expected, rtol=1e-5, atol=1e-7)
