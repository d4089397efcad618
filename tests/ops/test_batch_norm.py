"""Batch normalization: the specification's examples, gradients, rules and refusals."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tolerance import assert_close
from weft.capture import parse
from weft.errors import WeftError
from weft.ir.op import Op, infer, rule
from weft.ir.types import DTYPES, tensor
from weft.ops.batch_norm import BatchNormGrad, BatchNormInference, BatchNormTraining

OPERAND = np.array([[[1.0, 2.0], [3.0, 4.0]], [[3.0, 4.0], [1.0, 2.0]]])
ONES = np.ones(2)


def test_inference():
    op = BatchNormInference(0.0, 2)
    made = op.reference(OPERAND, ONES, ONES, np.array([2.0, 3.0]), ONES)
    np.testing.assert_array_equal(made, OPERAND - np.array([2.0, 3.0]) + 1)


def test_training():
    made, mean, variance = BatchNormTraining(0.0, 2).reference(OPERAND, ONES, ONES)
    np.testing.assert_array_equal(mean, [2.0, 3.0])
    np.testing.assert_array_equal(variance, [1.0, 1.0])
    np.testing.assert_array_equal(made, [[[0, 0], [2, 2]], [[2, 2], [0, 0]]])


def test_gradients_are_those_of_training():
    random = np.random.default_rng(0)
    operand, output = random.normal(size=(2, 3, 4, 3)).astype(np.float32)[..., 0], None
    scale, offset = (random.normal(size=4).astype(np.float32) for _ in range(2))
    output = random.normal(size=operand.shape).astype(np.float32)
    epsilon = 0.5

    def train(x: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
        mean, variance = x.mean((0, 1)), x.var((0, 1))
        return (x - mean) / jnp.sqrt(variance + epsilon) * a + b

    _, pull = jax.vjp(train, operand, scale, offset)
    mean, variance = operand.mean((0, 1)), operand.var((0, 1))
    ours = BatchNormGrad(epsilon, 2).reference(operand, scale, mean, variance, output)
    for made, expected in zip(ours, pull(output), strict=True):
        assert_close(made, np.asarray(expected), 100)


def test_narrow_floats_are_rounded_once():
    held = DTYPES["bf16"].numpy
    ones = np.full((1000, 1), 1.0078125).astype(held)
    _, mean, variance = BatchNormTraining(0.0, 1).reference(ones, ones[0], ones[0])
    assert mean[0] == ones[0, 0] and variance[0] == 0
    assert mean.dtype == held


def test_an_empty_batch_has_no_mean():
    made, mean, _ = BatchNormTraining(0.0, 1).reference(np.zeros((0, 2)), ONES, ONES)
    assert made.shape == (0, 2) and np.isnan(mean).all()


def test_epsilon_is_written_as_mlir_reads_it():
    line = (
        '"stablehlo.batch_norm_inference"(%a, %b, %b, %b, %b) '
        "{{epsilon = {} : f32, feature_index = 1 : i64}} : (tensor<8x6xf32>, tensor<6xf32>, "
        "tensor<6xf32>, tensor<6xf32>, tensor<6xf32>) -> tensor<8x6xf32>"
    )
    for epsilon in ("1.0e-05", "0.01", "0.0", "0x7F800000"):
        text = (
            "func.func @main(%a: tensor<8x6xf32>, %b: tensor<6xf32>) -> tensor<8x6xf32> {\n"
            f"%0 = {line.format(epsilon)}\n return %0 : tensor<8x6xf32>\n}}"
        )
        module = parse(text)
        assert parse(module.text()).text() == module.text()


def test_rules_keep_what_is_summed_whole():
    types = (tensor(4, 8, 6), tensor(8), tensor(8))
    assert str(rule(BatchNormTraining(0.0, 1), types)) == (
        "([i, j, k], [j], [j])->([i, j, k], [j], [j]) {i=4, j=8, k=6} need_replication={i, k}"
    )
    flat = (tensor(8),) * 4
    assert str(rule(BatchNormInference(0.0, 1), (types[0], *flat))) == (
        "([i, j, k], [j], [j], [j], [j])->([i, j, k]) {i=4, j=8, k=6}"
    )


def test_refusals():
    def refusal(op: Op, *types: object) -> str:
        with pytest.raises(WeftError) as caught:
            infer(op, types)
        return caught.value.message.removeprefix("stablehlo.batch_norm_training: ")

    op, full, flat = BatchNormTraining(0.0, 1), tensor(4, 8), tensor(8)
    assert infer(op, (full, flat, flat)) == (full, flat, flat)
    assert refusal(op, full, tensor(4), flat) == (
        "operand 0 is tensor<4x8xf32>, but operand 1 is tensor<4xf32>"
    )
    assert refusal(BatchNormTraining(0.0, 2), full, flat, flat) == (
        "feature_index is 2, but operand 0 is tensor<4x8xf32>"
    )
    assert refusal(BatchNormTraining(-1.0, 1), full, flat, flat) == "epsilon is -1.0"
    whole = tensor(4, 8, dtype="i32")
    assert refusal(op, whole, flat, flat) == "operand 0 is tensor<4x8xi32>"
