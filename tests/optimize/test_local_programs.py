"""Passes on random local programs: every device gets what it got before, bit for bit or nearly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.optimize.local_programs import local_program
from tests.tolerance import assert_close
from weft.evaluate import evaluate
from weft.ir.module import Module
from weft.ir.types import Array
from weft.ir.verify import verify
from weft.optimize import (
    canonicalize_collectives,
    combine_collectives,
    cse,
    drop_dead,
    fold_constants,
    hoist_gather,
    optimize,
    rematerialize_gather,
    simplify,
)
from weft.optimize.collectives.rematerialize_gather import peaks

Pass = Callable[[Module], Module]


def combine_few(module: Module) -> Module:
    """Combine so little that sets are closed all the time."""
    return combine_collectives(module, combine_bytes=96, combine_ops=3)


def hoist_little(module: Module) -> Module:
    """Hoist what fits into very little memory."""
    return hoist_gather(module, most_bytes=64)


def gather_again(module: Module) -> Module:
    """Cut every life that can be cut."""
    return rematerialize_gather(module, limit=0)


PASSES: tuple[Pass, ...] = (
    cse,
    drop_dead,
    fold_constants,
    simplify,
    canonicalize_collectives,
    combine_collectives,
    combine_few,
    hoist_gather,
    hoist_little,
)
ALL = (*PASSES, gather_again)
each_pass = pytest.mark.parametrize("run", ALL, ids=lambda run: run.__name__)
seeds = st.integers(0, 100_000)
steps = st.integers(4, 24)


def same(a: tuple[Array, ...], b: tuple[Array, ...], length: int = 1) -> None:
    for x, y in zip(a, b, strict=True):
        assert_close(x, y, length)


@each_pass
@settings(max_examples=40)
@given(seeds, steps)
def test_every_device_gets_the_same(run: Pass, seed: int, count: int):
    """Whole numbers wrap around, so that sums in another order are exactly the same."""
    program = local_program(seed, count)
    text = program.module.text(locations=True)
    after = verify(run(program.module))
    assert program.module.text(locations=True) == text, "a pass must not change its input"
    arrays = program.arrays(seed)
    devices = program.mesh.size
    same(
        evaluate(after, *arrays, devices=devices),
        evaluate(program.module, *arrays, devices=devices),
    )


@each_pass
@settings(max_examples=15)
@given(seeds, st.integers(4, 16), st.sampled_from(("f32", "f64")))
def test_floats_and_what_is_no_number(run: Pass, seed: int, count: int, dtype: str):
    program = local_program(seed, count, dtype)
    after = verify(run(program.module))
    arrays = program.arrays(seed, special=True)
    devices = program.mesh.size
    found = evaluate(after, *arrays, devices=devices)
    same(found, evaluate(program.module, *arrays, devices=devices), 16)


@pytest.mark.parametrize("run", (cse, drop_dead, fold_constants, simplify, hoist_gather))
@settings(max_examples=20)
@given(seeds, st.integers(4, 16))
def test_the_sign_of_zero_stays(run: Pass, seed: int, count: int):
    program = local_program(seed, count, "f32")
    arrays = program.arrays(seed, special=True)
    devices = program.mesh.size
    before = evaluate(program.module, *arrays, devices=devices)
    for x, y in zip(evaluate(run(program.module), *arrays, devices=devices), before, strict=True):
        np.testing.assert_array_equal(x, y)
        where = ~np.isnan(y)
        np.testing.assert_array_equal(np.signbit(x)[where], np.signbit(y)[where])


@pytest.mark.parametrize("run", PASSES, ids=lambda run: run.__name__)
@settings(max_examples=20)
@given(seeds, steps)
def test_a_second_run_changes_nothing(run: Pass, seed: int, count: int):
    after = run(local_program(seed, count).module)
    assert run(after) is after


@each_pass
@settings(max_examples=10)
@given(seeds, steps)
def test_every_node_knows_its_line(run: Pass, seed: int, count: int):
    after = run(local_program(seed, count).module)
    for function in after.functions.values():
        for node in function.body.nodes:
            assert node.loc.known, f"{node!r} has no location"


@each_pass
@settings(max_examples=10)
@given(seeds, steps)
def test_tables_follow(run: Pass, seed: int, count: int):
    module = local_program(seed, count).module
    results = module.function("main").body.results
    after = run(replace(module, tables={"notes": {v: n for n, v in enumerate(results)}}))
    notes = after.tables["notes"]
    for value in after.function("main").body.results:
        assert value in notes


@settings(max_examples=25)
@given(seeds, st.integers(10, 30), st.sampled_from((1, 2)))
def test_levels(seed: int, count: int, level: int):
    program = local_program(seed, count)
    arrays, devices = program.arrays(seed), program.mesh.size
    after = optimize(program.module, level=level)  # type: ignore[arg-type]
    same(
        evaluate(after, *arrays, devices=devices),
        evaluate(program.module, *arrays, devices=devices),
    )


@settings(max_examples=40)
@given(seeds, steps)
def test_gathering_again_takes_less_memory(seed: int, count: int):
    module = cse(local_program(seed, count).module)
    most = peaks(module)["main"]
    assert rematerialize_gather(module, limit=most) is module
    after = rematerialize_gather(module, limit=most // 2)
    assert peaks(after)["main"] <= most
    assert cse(after) is after, "what is gathered again is not merged again"
