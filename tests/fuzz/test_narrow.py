"""Random programs of narrow types: everywhere the bits that one device in numpy gives."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jax")

import jax

from tests.fuzz.narrow import check, difference, program, reference

WAYS = [
    (level, target, on_mesh)
    for level in (0, 1, 2)
    for target in ("llvm", "numpy")
    for on_mesh in (True, False)
]


def run(seed: int, *, beside_jax: bool) -> None:
    """One program in one way; beside JAX's CPU, too, whose sums of one element keep signs of 0."""
    sample = program(seed)
    if not sample.is_exact:
        return
    level, target, on_mesh = WAYS[seed % len(WAYS)]
    told = f"seed {seed}, level {level}, {target}, {sample.mesh if on_mesh else 'one device'}"
    found = check(sample, level, target, on_mesh=on_mesh)
    assert found is None, f"{told}: {found}\n{sample.told} {sample.in_shardings}"
    if beside_jax:
        theirs = jax.jit(sample.function)(*sample.arguments)
        for mine, wanted in zip(reference(sample.function, sample.arguments), theirs, strict=True):
            found = difference(mine, np.asarray(wanted), signs=False)
            assert found is None, f"{told}: the reference beside JAX: {found}\n{sample.told}"


def test_narrow_types() -> None:
    for seed in range(10):
        run(seed, beside_jax=seed % 6 == 0)


@pytest.mark.long
@pytest.mark.parametrize("first", range(1000, 3000, 100))
def test_narrow_types_for_long(first: int) -> None:
    for seed in range(first, first + 100):
        run(seed, beside_jax=seed % 4 == 0)
