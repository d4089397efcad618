"""The order of kernels: what the update of weights reads does not live until the end."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("llvmlite")

import weft  # noqa: E402
from tests.tolerance import assert_close  # noqa: E402

LAYERS = 6
ROWS, WIDTH = 256, 16


def step(weights: Any, moments: Any, x: Any, *, recomputed: bool) -> Any:
    """One step with momentum, all of whose updates are written after the backward pass."""

    def layer(w: Any, x: Any) -> Any:
        return x + jax.numpy.tanh(x @ w["up"] + w["bias"]) @ w["down"]

    def loss(weights: Any) -> Any:
        y = x
        for w in weights:
            y = (jax.checkpoint(layer) if recomputed else layer)(w, y)
        return (y**2).mean()

    slopes = jax.grad(loss)(weights)
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, slopes)
    return jax.tree.map(lambda w, m: w - 0.1 * m, weights, moments), moments


def test_recomputation_saves_memory_where_updates_are_fused() -> None:
    random = np.random.default_rng(0)
    shapes = {"up": (WIDTH, 8 * WIDTH), "bias": (8 * WIDTH,), "down": (8 * WIDTH, WIDTH)}
    weights = [
        {name: random.standard_normal(shape, "f") * 0.1 for name, shape in shapes.items()}
        for _ in range(LAYERS)
    ]
    moments = jax.tree.map(np.zeros_like, weights)
    x = random.standard_normal((ROWS, WIDTH), "f")
    made, temporaries = [], []
    for recomputed in (False, True):
        compiled = weft.compile(partial(step, recomputed=recomputed), weights, moments, x)
        made.append([np.asarray(leaf) for leaf in jax.tree.leaves(compiled(weights, moments, x))])
        temporaries.append(compiled.memory().temporaries)
    for plain, again in zip(*made, strict=True):
        assert_close(again, plain, ROWS)
    wide = ROWS * 8 * WIDTH * 4
    assert temporaries[0] > LAYERS * wide
    assert temporaries[1] < LAYERS * wide / 2
