"""Levels: each says what it turns on, the runner verifies and watches, and meaning is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.draw import seeds
from tests.optimize.local_programs import local_program
from tests.tolerance import assert_close
from weft.errors import WeftError
from weft.evaluate import evaluate
from weft.ir.module import Module, Region
from weft.machine import H100, Machine
from weft.optimize import (
    LEVELS,
    PASSES,
    STEPS,
    PassOptions,
    PassRecord,
    fold_constants,
    named,
    optimize,
    run_passes,
    schedule,
    split_async,
    steps,
)


def test_each_level_adds_to_the_one_before():
    assert steps(0) == ()
    for lower, higher in ((0, 1), (1, 2)):
        rest = iter(steps(higher))
        assert all(run in rest for run in steps(lower)), "in the same order"
    assert {*steps(2), fold_constants} == set(PASSES), "simplify folds constants, too"
    assert {level for _, level in STEPS} <= set(LEVELS)


def test_every_pass_is_named_as_its_file_and_says_what_it_does():
    for run in PASSES:
        assert run.__module__.startswith("weft.optimize.")
        assert run.__module__.rpartition(".")[2] == run.__name__
        assert run.__doc__


@pytest.mark.parametrize("level", [0, 1, 2])
@settings(max_examples=15)
@given(seeds, st.integers(1, 16))
def test_meaning_is_kept(level: int, seed: int, steps: int):
    program = local_program(seed, steps)
    after = optimize(program.module, level, machine=H100)
    arrays, count = program.arrays(seed), program.mesh.size
    expected = evaluate(program.module, *arrays, devices=count)
    for one, other in zip(evaluate(after, *arrays, devices=count), expected, strict=True):
        assert_close(one, other)


def test_what_each_level_runs():
    cleanup = "inline_calls cse simplify canonicalize_collectives cse drop_dead"
    assert [run.__name__ for run in steps(0)] == []
    assert [run.__name__ for run in steps(1)] == f"{cleanup} combine_collectives sink_masks".split()
    assert [run.__name__ for run in steps(2)] == (
        "inline_calls cse simplify canonicalize_collectives hoist_gather cse drop_dead "
        "collective_matmul cse combine_collectives sink_masks rematerialize_gather split_async "
        "assign_streams schedule"
    ).split()


def test_level_0_does_nothing():
    module = local_program(0, 10).module
    assert optimize(module, 0) is module


def test_an_unknown_level_is_refused():
    with pytest.raises(WeftError, match="unknown optimization level 3"):
        optimize(local_program(0, 1).module, 3)  # type: ignore[arg-type]


def test_an_unknown_pass_is_refused_with_all_names():
    with pytest.raises(WeftError, match="unknown pass 'scedule'") as caught:
        named(["split_async", "scedule"])
    assert "did you mean schedule?" in caught.value.help
    assert all(run.__name__ in caught.value.help for run in PASSES)


def test_every_step_is_watched():
    module = local_program(3, 12).module
    seen: list[PassRecord] = []
    after = optimize(module, 2, watch=seen.append)
    assert [ran.name for ran in seen] == [run.__name__ for run in steps(2)]
    assert seen[-1].module is after
    assert all(ran.seconds >= 0 and ran.verifying >= 0 for ran in seen)
    assert any(ran.changed for ran in seen)


def test_a_pass_gets_what_its_signature_names():
    asked: list[object] = []

    def look(module: Module, machine: Machine, compute_streams: int, mine: int = 7) -> Module:
        asked.extend((machine, compute_streams, mine))
        return module

    run_passes(local_program(0, 1).module, [look], PassOptions(H100, compute_streams=9))
    assert asked == [H100, 9, 7]


def test_a_wrong_pass_is_found_at_once():
    def break_it(module: Module) -> Module:
        main = module.function("main")
        body = Region(main.body.args, main.body.nodes[1:], main.body.results)
        return module.with_functions({**module.functions, "main": replace(main, body=body)})

    module = local_program(1, 8).module
    with pytest.raises(WeftError, match="after break_it: "):
        run_passes(module, [break_it, split_async, schedule], PassOptions())
