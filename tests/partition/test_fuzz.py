"""Random programs on random meshes with random shardings, held against one device."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.partition.fuzz import triple
from tests.partition.fuzz_jax import gradient
from tests.partition.program import Program, shrunk

CHUNK = 100


def check(seeds: range, make: Callable[[int], Program] = triple) -> None:
    """Every program is right; the first that is not is shown, made small."""
    for seed in seeds:
        program = make(seed)
        found = program.wrong()
        if found is not None:
            small = shrunk(program, found)
            pytest.fail(f"seed {seed}: {found}\n{small.file()}{small.wrong()}")


@pytest.mark.parametrize("start", range(0, 600, CHUNK))
def test_random_programs(start: int):
    check(range(start, start + CHUNK))


def test_random_gradients():
    check(range(40), gradient)


@pytest.mark.long
@pytest.mark.parametrize("start", range(1000, 2000, CHUNK))
def test_many_random_gradients(start: int):
    check(range(start, start + CHUNK), gradient)


@pytest.mark.long
@pytest.mark.parametrize("start", range(10_000, 20_000, CHUNK))
def test_many_random_programs(start: int):
    check(range(start, start + CHUNK))


# An argument that must be reduced before it is returned had no location.
WRONG_ONCE = (5139, 20077, 40102)


@pytest.mark.parametrize("seed", WRONG_ONCE)
def test_programs_that_were_wrong_once(seed: int):
    triple(seed).check()
