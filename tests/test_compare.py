"""Sharded beside unsharded: the first value that differs is named, and none where all is right."""

from __future__ import annotations

import numpy as np
import pytest

from tests.shard.corpus import annotated
from weft.capture import parse
from weft.cli.arrays import random_arguments
from weft.compare import Difference, compare_every_op, difference, errors
from weft.compare import values as compare
from weft.ops.elementwise.transcendental import Tanh
from weft.shard import shard

PROGRAM = """
sdy.mesh @mesh = <["data"=2, "model"=4]>
func.func @main(
    %x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>},
    %w: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>}) -> tensor<8xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<8x16xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
  %1 = stablehlo.tanh %0 : tensor<8x8xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [1]
      : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
  return %2 : tensor<8xf32>
}
"""


@pytest.fixture
def program():
    module = shard(parse(PROGRAM))
    return module, random_arguments(module.function("main").arg_types, 0)


def test_nothing_differs(program):
    module, arrays = program
    found = compare_every_op(module, arrays)
    assert found == 3  # the product, its tanh and the sum


@pytest.mark.parametrize("name", ["mlp", "loops", "calls", "mapped", "sorts", "scan"])
def test_nothing_differs_in_the_corpus(name):
    annotation = {"mlp": "tensor", "scan": "tensor"}.get(name, "both")
    module = shard(annotated(name, "2x4", annotation))
    arrays = random_arguments(module.function("main").arg_types, 0)
    found = compare_every_op(module, arrays)
    assert isinstance(found, int), found.located()
    assert found > 0


def test_the_first_value_that_differs_is_named(program, monkeypatch):
    module, arrays = program
    honest = compare.evaluate

    def lies(given, *values, watch):
        def see(node, results):
            wrong = isinstance(node.op, Tanh)
            watch(node, tuple(r + 1 for r in results) if wrong else results)

        return honest(given, *values, watch=see)

    monkeypatch.setattr(compare, "evaluate", lies)
    found = compare_every_op(module, arrays)
    assert isinstance(found, Difference)
    assert found.name == "%1" and found.relative > 0.5
    assert "tensor<8x8xf32>" in found.located() and "-->" in found.located()


def test_intermediates_are_remembered(program, tmp_path, monkeypatch):
    module, arrays = program
    first = compare_every_op(module, arrays, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1

    def never(*_, **__):
        raise AssertionError("the reference runs once")

    monkeypatch.setattr(compare, "evaluate", never)
    assert compare_every_op(module, arrays, tmp_path) == first


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0])
def test_equal_special_values_do_not_differ(value):
    array = np.array([value, 1.0], np.float32)
    assert difference("x", array, array).relative == 0.0


def test_nan_where_there_should_be_none():
    found = difference("x", np.array([np.nan], np.float32), np.array([1.0], np.float32))
    assert found.relative == np.inf and not found.is_close


def test_integers_must_be_equal():
    (found,) = errors([np.array([1, 2], np.int32)], [np.array([1, 3], np.int32)])
    assert not found.is_close


def test_complex_numbers_may_be_off_as_much_as_their_parts():
    value = np.array([1 + 2j, -3], np.complex64)
    assert difference("x", value * np.float32(1 + 1e-6), value).is_close
    wide = value.astype(np.complex128)
    assert not difference("x", wide * (1 + 1e-6), wide).is_close


@pytest.mark.parametrize("size", [1, 5])
def test_values_that_do_not_vary_have_no_correlation(size):
    ones = np.ones(size, np.float32)
    near = difference("result 0", ones * np.float32(1.0000001), ones)
    assert near.is_close and "correlation" not in str(near)
    assert "correlation 1.000000" in str(difference("result 0", ones, ones))
