"""Kernels beside their nodes: the kernel that differs is found, and the first step in it."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.shard.corpus import annotated
from weft.cli.arrays import random_arguments
from weft.compare import CheckCounts, KernelDifference, compare_kernels
from weft.emit.llvm import texts
from weft.emit.llvm.math import pointwise
from weft.emit.llvm.math.pointwise_kinds import Emit
from weft.ops.elementwise.transcendental import Tanh

CHAIN = """
func.func @main(%x: tensor<4x8xf16>, %y: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  %big = stablehlo.constant dense<65504.0> : tensor<4x8xf16>
  %0 = stablehlo.multiply %x, %big : tensor<4x8xf16>
  %1 = stablehlo.multiply %0, %x : tensor<4x8xf16>
  %2 = stablehlo.convert %1 : (tensor<4x8xf16>) -> tensor<4x8xf32>
  %3 = stablehlo.tanh %y : tensor<4x8xf32>
  %4 = stablehlo.add %3, %y : tensor<4x8xf32>
  return %2, %4 : tensor<4x8xf32>, tensor<4x8xf32>
}
"""


@pytest.fixture
def chain(monkeypatch):
    monkeypatch.setattr(texts, "TEXTS", {})
    arrays = [np.full((4, 8), 2, np.float16), np.ones((4, 8), np.float32)]
    return lambda: compare_kernels(weft.compile(CHAIN).program.local, arrays)


def test_nothing_differs(chain):
    assert chain() == CheckCounts(launches=2, values=2)


def test_a_value_that_is_not_rounded_is_found(chain, monkeypatch):
    monkeypatch.setattr(pointwise, "in_type", lambda v, held, dtype: held)
    found = chain()
    assert isinstance(found, KernelDifference)
    assert found.step is not None and found.step.name == "%3" and "stablehlo.convert" in found.node
    assert "convert" in found.kernel and "-->" in found.located()


def test_the_first_step_that_differs_is_named(chain, monkeypatch):
    monkeypatch.setitem(pointwise.EMIT, Tanh, Emit(lambda v, op, args, given, made: args[0]))
    found = chain()
    assert isinstance(found, KernelDifference)
    assert found.result.name == "%5" and found.step is not None and found.step.name == "%4"
    assert "stablehlo.tanh" in found.located()


CORPUS = {"mlp": "tensor", "loops": "both", "sorts": "both", "experts": "experts"}
LONG = {"scan": "tensor", "embedding": "vocabulary", "convolutional": "batch", "windowed": "heads"}
LONG |= {"forward 1": "tensor", "training 1": "tensor", "reshapes": "all", "calls": "three"}


@pytest.mark.parametrize(
    "name", [*CORPUS, *[pytest.param(n, marks=pytest.mark.long) for n in LONG]]
)
def test_nothing_differs_in_the_corpus(name):
    made = weft.compile(annotated(name, "2x4", (CORPUS | LONG)[name]))
    module = made.program.stage("captured")
    arrays = random_arguments(module.function("main").arg_types, 0)
    found = compare_kernels(made.program.local, arrays)
    assert isinstance(found, CheckCounts), found.located()
    assert found.values >= found.launches > 0 and not found.skipped


def test_excess_precision_is_told_apart():
    """x * x - y is one instruction by default, which leaves what rounding would take away."""
    x = np.float32(1 + np.arange(64) / 1000)
    made = weft.compile(
        "func.func @main(%x: tensor<64xf32>, %y: tensor<64xf32>) -> tensor<64xf32> {\n"
        "  %0 = stablehlo.multiply %x, %x : tensor<64xf32>\n"
        "  %1 = stablehlo.subtract %0, %y : tensor<64xf32>\n"
        "  %2 = stablehlo.sign %1 : tensor<64xf32>\n"
        "  return %2 : tensor<64xf32>\n}"
    )
    assert compare_kernels(made.program.local, [x, x * x]) == CheckCounts(1, 1, excess=1)


def test_numpy_has_no_kernels():
    made = weft.compile(CHAIN, target="numpy")
    arrays = [np.ones((4, 8), np.float16), np.ones((4, 8), np.float32)]
    assert compare_kernels(made.program.local, arrays) == CheckCounts()
