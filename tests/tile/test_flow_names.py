"""Names of flows are digests of their content."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import weft


@pytest.mark.parametrize("op", ["sort", "scatter", "reduce"])
def test_a_flow_has_the_same_name_in_every_process(op: str):
    """Its kernels may have regions: workers compare names, and the cache finds kernels by them."""
    bodies = {
        "sort": lambda x: jnp.sort(x * 1.5),
        "scatter": lambda x: x.at[jnp.array([1, 2])].add(x[:2]),
        "reduce": lambda x: lax.reduce(x, np.float32(0), lambda a, b: 2 * a + b, (0,)) + x,
    }
    x = np.arange(8, dtype=np.float32)

    def loop(x: Any) -> Any:
        return lax.fori_loop(0, 5, lambda _, x: bodies[op](x), x)

    first, again = (weft.compile(loop, x).text("tiled") for _ in range(2))
    assert first == again and "kernel while_" in first
