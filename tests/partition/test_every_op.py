"""Every op of the core, alone: on random meshes, with random shardings around it."""

from __future__ import annotations

import pytest

from tests.ops.catalogue import CHECKED
from tests.partition.one_op import Skip, cases
from tests.partition.program import Program, shrunk
from weft.ir.op import Op

# Ops of which no example is a program that can be partitioned, and why.
NONE = {
    "interpreter.print": "it only prints",
    "interpreter.probe": "it writes files",
    "stablehlo.rng": "random numbers without a state: any are right",
}


def check(op: type[Op], count: int, seed: int) -> None:
    """Examples of an op are right, and there are some."""
    made = cases(op, count, seed)
    programs = [p for p in made if isinstance(p, Program)]
    skips = [p for p in made if isinstance(p, Skip)]
    assert bool(programs) == (op.name not in NONE), [str(s) for s in skips]
    for program in programs:
        found = program.wrong()
        if found is not None:
            small = shrunk(program, found)
            pytest.fail(f"{found}\n{small.file()}{small.wrong()}")


@pytest.mark.parametrize("op", CHECKED, ids=lambda op: op.name)
def test_every_op(op: type[Op]):
    check(op, 6, 0)


@pytest.mark.long
@pytest.mark.parametrize("op", CHECKED, ids=lambda op: op.name)
def test_every_op_often(op: type[Op]):
    check(op, 60, 1)
