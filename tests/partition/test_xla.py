"""XLA runs our local programs: the text is a program that others can run."""

from __future__ import annotations

import pytest

from tests.oracles.xla_local import evaluated
from tests.partition.corpus import corpus_program
from tests.partition.differential import compare
from tests.partition.fuzz import triple
from tests.partition.program import Program
from tests.partition.split import mesh_of
from tests.partition.test_corpus import ALL, Key, label

SHORT: tuple[Key, ...] = (
    ("mlp", "2x4", "tensor"),
    ("convolutional", "2x2x2", "space"),
    ("experts", "2x4", "experts"),
    ("loops", "2x4", "both"),
    ("mapped", "2x4", "both"),
    ("slices", "2x2x2", "both"),
)
FUZZ = 25


def check(program: Program) -> None:
    """XLA's results on the pieces, put together, are those of one device."""
    found = program.check()
    mesh = mesh_of(found.local.function("main"), found.local.meshes)
    made = evaluated(found.local, found.stacked, mesh.size)
    compare(found.local, made, found.expected, program.length)


@pytest.mark.parametrize("key", SHORT, ids=label)
def test_corpus(key: Key):
    check(corpus_program(*key))


def test_random_programs():
    for seed in range(FUZZ):
        check(triple(seed))


@pytest.mark.long
@pytest.mark.parametrize("key", ALL, ids=label)
def test_whole_corpus(key: Key):
    check(corpus_program(*key))


@pytest.mark.long
@pytest.mark.parametrize("start", range(1000, 2000, 50))
def test_many_random_programs(start: int):
    for seed in range(start, start + 50):
        check(triple(seed))
