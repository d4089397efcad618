"""Random forms of ops: on kernels what JAX's own devices give."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emit.random_forms import form

pytest.importorskip("jax")

import jax

import weft


def check(seed: int) -> None:
    """Compare the results of a program."""
    sample = form(seed)
    theirs = jax.tree.leaves(jax.jit(sample.function)(*sample.arguments))
    ours = jax.tree.leaves(weft.compile(sample.function, *sample.arguments)(*sample.arguments))
    for mine, wanted in zip(ours, theirs, strict=True):
        wanted = np.asarray(wanted)
        scale = max(1.0, float(np.abs(wanted).max(initial=0)))
        told = f"seed {seed}: {sample.told}"
        np.testing.assert_allclose(np.asarray(mine), wanted, 1e-4, 1e-4 * scale, err_msg=told)


def test_forms() -> None:
    for seed in range(24):
        check(seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(100, 1100, 100))
def test_forms_for_long(first: int) -> None:
    for seed in range(first, first + 100):
        check(seed)
