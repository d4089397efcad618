"""Rows of which one element differs, whatever tells its place."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft

pytest.importorskip("triton")


def hot(x, places):
    return jnp.arange(x.shape[-1], dtype=places.dtype) == places


def two_results(x, k):
    marked = hot(x, k[:, None])
    return jax.nn.softmax(x) - marked, jnp.where(marked, 0.0, x / x.sum(1, keepdims=True))


# Programs, and whether the element is stored apart.
PROGRAMS = {
    "one place": (lambda x, k: jax.nn.softmax(x) - hot(x, k[0]), True),
    "two results": (two_results, True),
    "booleans": (lambda x, k: (jax.nn.softmax(x) > 0.1) | hot(x, k[:, None]), True),
    "the place of the largest": (
        lambda x, k: jax.nn.softmax(x) - hot(x, jnp.argmax(x, 1, keepdims=True)),
        False,
    ),
    "two places": (
        lambda x, k: jax.nn.softmax(x) - hot(x, k[:, None]) - hot(x, k[:, None] + 1),
        False,
    ),
}


@pytest.mark.parametrize("columns", [100, 17001])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_equal_jax(name, columns, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    function, apart = PROGRAMS[name]
    x = np.random.default_rng(0).standard_normal((5, columns)).astype("f")
    places = np.array([3, 0, columns - 1, columns, -1], "i")
    compiled = weft.compile(function, x, places, target="triton", donate_argnums=0)
    if columns == 100:
        assert ("debug_barrier" in compiled.text("emitted")) == apart
    expected = jax.tree.leaves(function(x, places))
    for made, wanted in zip(jax.tree.leaves(compiled(x.copy(), places)), expected, strict=True):
        np.testing.assert_allclose(
            np.asarray(made, "f"), np.asarray(wanted, "f"), rtol=2e-4, atol=2e-5
        )
