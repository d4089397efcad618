"""Small views beside launches are copied by launches, too."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

import weft


def test_elements_of_another_width():
    """Bytes of words, and bits that are NaNs as floats."""

    def program(x: Any) -> Any:
        parts = lax.bitcast_convert_type(x, jnp.uint8)
        return parts, parts.reshape(-1) ^ 5, lax.bitcast_convert_type(jnp.sort(x), jnp.float16)

    x = np.arange(0x7D01_7F80, 0x7D01_7F8C, dtype=np.uint32)
    compiled = weft.compile(program, x)
    assert "\n  host" not in compiled.text("tiled")
    plain = weft.compile(program, x, target="numpy")
    for made, expected in zip(compiled(x), plain(x), strict=True):
        assert np.asarray(made).tobytes() == np.asarray(expected).tobytes()
