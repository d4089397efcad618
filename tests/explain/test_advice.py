"""Advice about collectives: planted mistakes are found, and every gain is real."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import weft
from tests.explain.planted import PLANTED, Planted, types
from tests.simulate.programs import layers
from weft import P
from weft.advise import Explained, explain
from weft.capture import capture
from weft.cli.program import captured_program
from weft.ir.module import Module
from weft.machine import machine
from weft.predict import predict

QUICK = ("contracted_head", "gather_in_loop", "transposed_weight", "missing_constraint")
CASES = [
    pytest.param(make, id=make.__name__, marks=() if make.__name__ in QUICK else pytest.mark.long)
    for make in PLANTED
]


def module_of(program: Planted) -> Module:
    return capture(
        program.function,
        program.arguments,
        mesh=program.mesh,
        in_shardings=program.shardings,
        out_shardings=program.results,
    ).module


@pytest.mark.parametrize("make", CASES)
def test_a_planted_mistake_is_named_with_its_line_and_mended(make: Callable[[], Planted]):
    program = make()
    module, where = module_of(program), machine(program.machine)
    found = explain(module, where)
    texts = [advice.text for advice in found.advice]
    assert any(program.fix in text for text in texts), texts
    lines = [row.loc.describe() for row in found.collectives]
    assert any(program.line in line for line in [*lines, *(a.loc.describe() for a in found.advice)])
    # The program as its author mends it is faster by what the advice promised, or more.
    (advice,) = [a for a in found.advice if program.fix in a.text][:1]
    mended = replace(program, mended={}, **program.mended)
    before, after = (predict(module_of(p), where, whole=True) for p in (program, mended))
    assert after.seconds < before.seconds
    if advice is found.advice[0]:
        assert after.seconds <= 1.02 * advice.after
    assert false_advice(found) == 0


def false_advice(found: Explained) -> int:
    """How many pieces of advice do not shorten the step of the whole program."""
    before, wrong = found.prediction.seconds, 0
    for advice in found.advice:
        after = predict(advice.module, found.prediction.machine, whole=True).seconds
        wrong += not after < before
        before = after
    return wrong


def test_every_collective_has_a_line_a_reason_and_a_cost():
    found = explain(layers(3), machine("8xh100"), tries=0)
    assert found.advice == () and found.tried == 0
    assert sum(row.times for row in found.collectives) == 3
    for row in found.collectives:
        assert row.over == "x" and row.bytes > 0 and row.seconds > 0
        assert "contracts dim" in row.reason and "partial sum" in row.reason
    exposed = sum(row.exposed for row in found.collectives)
    assert exposed == pytest.approx(found.prediction.parts["collectives exposed"])
    assert json.loads(json.dumps(found.as_json()))["collectives"][0]["over"] == "x"


def test_equal_layers_count_as_often_as_they_are():
    def model(x, *weights):
        for w in weights:
            x = jnp.tanh(x @ w)
        return x

    shapes = types((4096, 4096), *[(4096, 4096)] * 24)
    shardings = (P(None, None), *[P("x", None)] * 24)
    module = capture(model, tuple(shapes), mesh="x=8", in_shardings=shardings).module
    many = explain(module, machine("8xh100"), tries=0)
    assert sum(row.times for row in many.collectives) == many.prediction.sends == 24


def test_layers_of_different_lines_are_rows_of_their_own():
    few, many = (explain(layers(n), machine("8xh100"), tries=0) for n in (2, 8))
    assert few.prediction.drawn is None and many.prediction.drawn is None
    assert sum(row.times for row in many.collectives) == 8


def test_warnings():
    def step(x, w, b):
        return jnp.tanh(x @ w + b)

    shapes = tuple(types((1024, 512), (512, 6), (6,), dtype=jnp.float32))
    shardings = (P(None, None), P(None, "model"), P(None))
    module = capture(step, shapes, mesh="model=4", in_shardings=shardings).module
    found = explain(module, machine("8xh100"), tries=0)
    kinds = {finding.kind for finding in found.findings}
    assert {"replication", "imbalance"} <= kinds
    text = str(found)
    assert "x is whole on each of 4 devices: 2 MiB" in text
    assert "dim 1 of w has size 6, in 4 pieces of 2" in text


def test_nothing_is_sent_on_one_device():
    module = capture(lambda x: x + 1, tuple(types((8,)))).module
    found = explain(module, machine("h100"))
    assert found.collectives == () and "nothing is sent between devices" in str(found)


def test_advised_programs_compute_the_same():
    def step(x, w):
        return jnp.max(x @ w, -1)

    random = np.random.default_rng(0)
    x, w = (random.standard_normal(s).astype(np.float32) for s in ((16, 32), (32, 64)))
    shardings = (P("data", None), P("model", None))
    compiled = weft.compile(step, x, w, mesh="data=2,model=4", in_shardings=shardings)
    found = compiled.explain("8xh100", tries=16)
    assert found.advice and false_advice(found) == 0
    for advice in found.advice:
        result = weft.compile(advice.module)(x, w)
        np.testing.assert_allclose(np.asarray(result[0]), (x @ w).max(-1), rtol=1e-5)


@pytest.mark.long
def test_no_advice_of_the_examples_is_false(capsys: pytest.CaptureFixture[str]):
    count = wrong = 0
    for name in ("llama.py:loss", "llama.py:train_step", "sharded_mlp.mlir"):
        module = captured_program(f"examples/{name}", "data=2,model=4")
        found = explain(module, machine("8xh100"), tries=24)
        count += len(found.advice)
        wrong += false_advice(found)
    with capsys.disabled():
        print(f"{wrong} of {count} pieces of advice are false")
    assert count and not wrong
