"""Derivatives of random loops: on kernels, and on a mesh, what JAX's own devices give."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emit.random_derivatives import drawn

pytest.importorskip("jax")

import jax

import weft

MESH = weft.Mesh(a=2, b=2)


def check(seed: int) -> None:
    """Compare the results of a program, on one device and, if it can be split, on four."""
    sample = drawn(seed)
    theirs = jax.tree.leaves(jax.jit(sample.function)(*sample.arguments))
    meshes = [None, MESH] if len(sample.arguments[1]) % 4 == 0 else [None]
    for mesh in meshes:
        split = (weft.P("a", "b"), weft.P("b"), weft.P("a"), weft.P(None, "a"), weft.P())
        how = {} if mesh is None else {"mesh": mesh, "in_shardings": split}
        compiled = weft.compile(sample.function, *sample.arguments, **how)
        ours = jax.tree.leaves(compiled(*sample.arguments))
        for number, (mine, wanted) in enumerate(zip(ours, theirs, strict=True)):
            wanted = np.asarray(wanted)
            scale = max(1.0, float(np.abs(wanted).max()))
            told = f"result {number} of seed {seed} on {mesh}: {sample.told}"
            np.testing.assert_allclose(np.asarray(mine), wanted, 1e-3, 3e-4 * scale, err_msg=told)


@pytest.mark.parametrize("seed", range(6))
def test_derivatives(seed: int) -> None:
    check(seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(100, 400, 20))
def test_derivatives_for_long(first: int) -> None:
    for seed in range(first, first + 20):
        check(seed)
