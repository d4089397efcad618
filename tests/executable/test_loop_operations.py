"""The operations of loops: of all their rounds, in one kernel or in several launches."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import weft
from weft.executable.loop_operations import operations


def counted(rounds: int, loops: int, size: int) -> float:
    def function(x):
        for _ in range(loops):
            x = lax.fori_loop(0, rounds, lambda _, x: x * 2 + jnp.flip(x), x)
        return x

    compiled = weft.compile(function, np.ones(size, "f"), target="llvm")
    return operations(compiled.program.executable.tiled.block)


@pytest.mark.parametrize("size", [64, 1 << 16])
def test_they_grow_with_rounds_and_loops(size: int):
    once = counted(5, 1, size)
    assert 5 * 2 * size < once < 5 * 8 * size
    assert counted(10, 1, size) == counted(5, 2, size) == 2 * once
    assert counted(5, 0, size) == 0


def test_they_are_unknown_where_rounds_are():
    compiled = weft.compile(
        lambda x: lax.while_loop(lambda x: x[0] < 9, lambda x: x * 2, x),
        np.ones(1 << 20, "f"),
        target="llvm",
    )
    assert operations(compiled.program.executable.tiled.block) == math.inf
