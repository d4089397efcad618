"""Predictions: parts that add up, memory that does not fit, utilization, every door."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import weft
from tests.shard.corpus import annotated
from tests.simulate.programs import layers, loop
from weft.capture import normalize
from weft.machine import machine
from weft.partition import PolicyMemory, partition
from weft.partition.strategy.policies import Policy
from weft.partition.strategy.search import Search
from weft.predict import predict
from weft.predict.prediction import extrapolated
from weft.shard import shard


def test_parts_add_up_and_the_rates_bound_the_step():
    for module in (layers(3), loop(20)):
        for name in ("8xh100", "tpu-v5p", "host"):
            found = predict(module, machine(name))
            assert math.isclose(sum(found.parts.values()), found.seconds, rel_tol=1e-6)
            assert 0 < found.mfu <= 1 and found.fits
            assert found.timeline.seconds == found.seconds


def test_flops_are_those_of_a_device():
    found = predict(layers(2), machine("8xh100"))
    assert found.flops == 2 * 2 * 4096**3 / 8
    assert found.devices == 8 and found.tokens is None


def test_a_program_that_does_not_fit_is_predicted_and_said():
    found = predict(layers(2), machine("8xh100").with_memory(1 << 20))
    assert not found.fits and "it does not fit" in str(found)
    assert found.as_json()["fits"] is False


def test_the_program_is_optimized_for_the_machine():
    slow = predict(layers(3), machine("8xh100"), level=1)
    fast = predict(layers(3), machine("8xh100"))
    assert fast.seconds <= slow.seconds
    split = predict(layers(3, mesh="x=16"), machine("2x(8xh100)"))
    assert any("infiniband" in e.track for e in split.timeline.collectives())


def test_compiled_programs_predict_themselves():
    compiled = weft.compile(layers(2, rows=64, width=64))
    found = compiled.predict("8xh100")
    assert found.machine.name == "8xh100" and found.seconds > 0
    assert found.headline().startswith("main on 8xh100 (x=8): ")
    assert compiled.predict().machine.kind == "cpu"


def test_a_mesh_larger_than_the_machine_is_refused():
    with pytest.raises(weft.WeftError, match="the mesh has 16 devices, but 8xh100 has 8"):
        predict(layers(2, mesh="x=16"), machine("8xh100"))


def test_parts_of_extrapolated_layers_are_not_negative() -> None:
    """What one more layer hides is not subtracted from all of them."""
    module = weft.parse("examples/sharded_mlp.mlir")
    two = predict(module, machine("8xh100"))
    parts = dict.fromkeys(two.parts, 0.0) | {"products": 1e-6, "collectives exposed": 3e-6}
    less = parts | {"products": 5e-6, "collectives exposed": 1e-6}
    one = replace(two, seconds=4e-6, parts=parts)
    grown = extrapolated(one, replace(two, seconds=6e-6, parts=less), 3)
    assert min(grown.parts.values()) == 0.0
    assert sum(grown.parts.values()) == pytest.approx(grown.seconds)


def test_a_policy_is_searched_once_for_equal_layers(monkeypatch) -> None:
    """The program with two layers follows the policy that was chosen for one."""
    runs: list[Policy] = []
    run = Search.run
    monkeypatch.setattr(
        Search, "run", lambda self, policy: runs.append(policy) or run(self, policy)
    )
    memory = PolicyMemory()
    for kept in (1, 4):
        module = shard(normalize(annotated(f"training {kept}", "2x4", "zero"), shard))
        partition(module, policy=memory)
        if kept == 1:
            searched = len(runs)
    assert searched > 1 and len(runs) == searched + 1
    chosen, followed = runs[-1], memory.choice
    assert followed is not None and chosen.result_weight == followed.result_weight
    assert bool(chosen.overrides) == (followed.override is not None)
