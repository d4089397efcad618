"""Equal layers: found, cut out, and extrapolated."""

from __future__ import annotations

import pytest

from tests.simulate.programs import layers, loop
from weft.cost.repeated import repeated_layer_runs
from weft.ir.verify import verify
from weft.machine import machine
from weft.predict import predict


def test_layers_are_cut_out_with_their_arguments():
    found = repeated_layer_runs(layers(12))
    assert found is not None
    sizes = []
    for kept in (1, 2, 5):
        made = verify(found.with_layers(kept)).function("main").body
        sizes.append((len(made.nodes), len(made.args)))
    assert sizes[1][0] - sizes[0][0] == 2 and sizes[1][1] - sizes[0][1] == 1
    assert sizes[2][0] - sizes[1][0] == 6


def test_few_layers_and_loops_are_left_alone():
    assert repeated_layer_runs(layers(3)) is None and repeated_layer_runs(loop(8)) is None


def test_the_extrapolation_is_that_of_the_whole_program():
    module, where = layers(12), machine("8xh100")
    short, whole = predict(module, where), predict(module, where, whole=True)
    assert short.drawn is not None and whole.drawn is None
    assert short.flops == whole.flops
    assert short.seconds == pytest.approx(whole.seconds, rel=0.03)
    assert short.memory.arguments == whole.memory.arguments
    assert short.memory.peak == pytest.approx(whole.memory.peak, rel=0.1)
