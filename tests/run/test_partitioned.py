"""Partitioned programs give in lockstep what the evaluator gives on as many devices."""

from __future__ import annotations

import numpy as np
import pytest

from tests.partition.corpus import corpus_program
from tests.partition.differential import LENGTH, Checked
from tests.partition.fuzz import triple
from tests.run.stacks import run_often
from tests.shard.corpus import PROGRAMS
from tests.tolerance import assert_close
from weft.array.stacked import Stacked, stack
from weft.pipeline import local_program

SAMPLE = [
    (name, "2x4", list(program.annotations)[number % len(program.annotations)])
    for number, (name, program) in enumerate(PROGRAMS.items())
    if "2x4" in program.meshes
]
SLOW = {"scan", "training 4"}  # for the evaluator
QUICK = [key for key in SAMPLE if key[0] not in SLOW]


def check(checked: Checked) -> None:
    """Run a partitioned program in lockstep, and compare every device's results."""
    program = local_program(checked.local)
    order = program.world.devices()
    given = []
    for n, pieces in enumerate(checked.stacked):
        full = stack(pieces[order], program.sub_axes)
        window = tuple(slice(0, size) for size in program.stack_dims.shape(program.masks[n]))
        given.append(Stacked(full.data[window], program.sub_axes))
    made = run_often(program, given, LENGTH)
    for n, (stacked, theirs) in enumerate(zip(made, checked.results, strict=True)):
        ours = np.empty_like(theirs)
        ours[order] = stacked.pieces()
        assert_close(ours, theirs, LENGTH, f"result {n}")


def label(key: tuple[str, str, str]) -> str:
    return "-".join(key).replace(" ", "_")


@pytest.mark.parametrize("key", QUICK, ids=label)
def test_the_corpus(key):
    check(corpus_program(*key).check())


@pytest.mark.long
@pytest.mark.parametrize("key", [key for key in SAMPLE if key[0] in SLOW], ids=label)
def test_the_corpus_long(key):
    check(corpus_program(*key).check())


@pytest.mark.parametrize("seed", [*range(24), 328, 378])
def test_random_programs(seed):
    check(triple(seed).check())


@pytest.mark.long
@pytest.mark.parametrize("seed", range(30, 500))
def test_random_programs_long(seed):
    check(triple(seed).check())
