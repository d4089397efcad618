"""Random local programs give in lockstep what the evaluator gives, device by device."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tests.run.random_programs import Sample, programs
from tests.run.stacks import run_often
from tests.tolerance import assert_close
from weft.array.stacked import Stacked, stack
from weft.evaluate import evaluate
from weft.ir.verify import verify
from weft.pipeline import local_program

SUMS = 1 << 12  # roundings that a result may sum up


def check(sample: Sample) -> None:
    module, stacks, mesh = sample.module, sample.stacks, sample.mesh
    verify(module)
    expected = evaluate(module, *stacks, devices=mesh.size)
    program = local_program(module)
    order = program.world.devices()
    given = []
    for n, pieces in enumerate(stacks):
        full = stack(pieces[order], program.sub_axes)
        window = tuple(slice(0, size) for size in program.stack_dims.shape(program.masks[n]))
        given.append(Stacked(full.data[window], program.sub_axes))
    made = run_often(program, given, SUMS)
    for number, (stacked, theirs) in enumerate(zip(made, expected, strict=True)):
        ours = np.empty_like(theirs)
        ours[order] = stacked.pieces()
        assert_close(ours, theirs, SUMS, f"result {number}")


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(programs())
def test_lockstep_is_the_evaluator(sample):
    check(sample)


@pytest.mark.long
@settings(max_examples=2000, derandomize=False, suppress_health_check=list(HealthCheck))
@given(programs(16))
def test_lockstep_is_the_evaluator_long(sample):
    check(sample)
