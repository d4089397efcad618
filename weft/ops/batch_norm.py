"""Batch normalization, for inference and for training, and its gradient."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np

from weft.ir.attrs import FLOAT32
from weft.ir.check import one_of, require
from weft.ir.op import Op, op
from weft.ir.rule import Role, Rule, RuleBuilder
from weft.ir.types import Array, TensorType, Type, Types
from weft.ir.work import Work, elements, moved

Epsilon = Annotated[float, FLOAT32]


def check_batch_norm(
    name: str, feature: int, epsilon: float, full: dict[int, Type], flat: dict[int, Type]
) -> tuple[TensorType, TensorType]:
    """The checked types of full operands and per-feature operands, by operand number."""
    types = {n: one_of(name, n, t, "float") for n, t in sorted((full | flat).items())}
    operand = types[0]
    require(
        0 <= feature < operand.rank,
        f"{name}: feature_index is {feature}, but operand 0 is {operand}",
        f"use a dim from 0 to {operand.rank - 1}",
    )
    require(epsilon >= 0 or np.isnan(epsilon), f"{name}: epsilon is {epsilon}", "give 0 or more")
    values = operand.with_shape((operand.shape[feature],))
    for index, type in types.items():
        expected = operand if index in full else values
        require(
            type is expected,
            f"{name}: operand 0 is {operand}, but operand {index} is {type}",
            f"operand {index} must be {expected}",
        )
    return operand, values


def batch_norm_rule(
    feature: int, operands: tuple[TensorType, ...], results: Types, *, others_pass: bool
) -> Rule:
    """Shardy has no rule. Features are independent; the other dims pass where nothing is summed."""
    builder = RuleBuilder(operands, results)
    for dim, size in enumerate(operands[0].bounds):
        flat = 0 if dim == feature else None
        places = [
            [
                dim if t.shape == operands[0].shape else flat
                for t in side
                if isinstance(t, TensorType)
            ]
            for side in (operands, results)
        ]
        role: Role = "pass" if dim == feature or others_pass else "whole"
        builder.factor(places[0], places[1], size, role)
    return builder.build()


class Columns:
    """Arrays in float64 with the feature dim last and the other dims flattened."""

    def __init__(self, array: Array, feature: int) -> None:
        moved_last = np.moveaxis(array, feature, -1)
        self.feature = feature
        self.shape = moved_last.shape
        rows = math.prod(self.shape[:-1])
        self.values = moved_last.astype(np.float64).reshape(rows, self.shape[-1])

    def back(self, values: Array, like: Array) -> Array:
        """Values in the shape and type that the array had."""
        return np.moveaxis(values.reshape(self.shape), -1, self.feature).astype(like.dtype)


@op("stablehlo.batch_norm_inference")
class BatchNormInference(Op):
    """out = (operand - mean) / sqrt(variance + epsilon) * scale + offset, for each feature."""

    epsilon: Epsilon
    feature_index: int

    def infer(self, operand: Type, scale: Type, offset: Type, mean: Type, variance: Type) -> Type:
        flat = {1: scale, 2: offset, 3: mean, 4: variance}
        return check_batch_norm(self.name, self.feature_index, self.epsilon, {0: operand}, flat)[0]

    def rule(self, *operands: TensorType) -> Rule:
        return batch_norm_rule(self.feature_index, operands, operands[:1], others_pass=True)

    def reference(
        self, operand: Array, scale: Array, offset: Array, mean: Array, variance: Array
    ) -> Array:
        columns = Columns(operand, self.feature_index)
        with np.errstate(all="ignore"):
            deviation = np.sqrt(variance.astype(np.float64) + self.epsilon)
            normal = (columns.values - mean.astype(np.float64)) / deviation
            made = normal * scale.astype(np.float64) + offset.astype(np.float64)
            return columns.back(made, operand)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(
            flops=4 * elements(operands[0]) + elements(operands[1]),
            transcendentals=elements(operands[1]),
            bytes=moved(*operands, *results),
        )


@op("stablehlo.batch_norm_training")
class BatchNormTraining(Op):
    """The operand normalized by its mean and variance, and both of these, per feature."""

    epsilon: Epsilon
    feature_index: int

    def infer(self, operand: Type, scale: Type, offset: Type) -> Types:
        flat = {1: scale, 2: offset}
        full, values = check_batch_norm(
            self.name, self.feature_index, self.epsilon, {0: operand}, flat
        )
        return full, values, values

    def rule(self, *operands: TensorType) -> Rule:
        results = (operands[0], operands[1], operands[1])
        return batch_norm_rule(self.feature_index, operands, results, others_pass=False)

    def reference(self, operand: Array, scale: Array, offset: Array) -> tuple[Array, Array, Array]:
        columns = Columns(operand, self.feature_index)
        with np.errstate(all="ignore"):
            count = np.float64(columns.values.shape[0])
            mean = columns.values.sum(0) / count
            # In two passes: the mean of squares less the square of the mean cancels.
            variance = ((columns.values - mean) ** 2).sum(0) / count
            normal = (columns.values - mean) / np.sqrt(variance + self.epsilon)
            made = normal * scale.astype(np.float64) + offset.astype(np.float64)
            back = columns.back(made, operand)
            return back, mean.astype(operand.dtype), variance.astype(operand.dtype)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(
            flops=8 * elements(operands[0]) + 3 * elements(operands[1]),
            transcendentals=elements(operands[1]),
            bytes=moved(*operands, *results),
        )


@op("stablehlo.batch_norm_grad")
class BatchNormGrad(Op):
    """The gradients of batch_norm_training to its operand, scale and offset."""

    epsilon: Epsilon
    feature_index: int

    def infer(
        self, operand: Type, scale: Type, mean: Type, variance: Type, grad_output: Type
    ) -> Types:
        full, values = check_batch_norm(
            self.name,
            self.feature_index,
            self.epsilon,
            {0: operand, 4: grad_output},
            {1: scale, 2: mean, 3: variance},
        )
        return full, values, values

    def rule(self, *operands: TensorType) -> Rule:
        results = (operands[0], operands[1], operands[1])
        return batch_norm_rule(self.feature_index, operands, results, others_pass=False)

    def reference(
        self, operand: Array, scale: Array, mean: Array, variance: Array, grad_output: Array
    ) -> tuple[Array, Array, Array]:
        columns = Columns(operand, self.feature_index)
        grad = Columns(grad_output, self.feature_index).values
        with np.errstate(all="ignore"):
            count = np.float64(grad.shape[0])
            spread = variance.astype(np.float64) + self.epsilon
            centered = columns.values - mean.astype(np.float64)
            deviation = np.sqrt(spread)
            grad_offset = grad.sum(0)
            along = (grad * centered).sum(0)
            grad_scale = (grad * (centered / deviation)).sum(0)
            # scale / deviation * (grad - (grad_offset + along * centered / spread) / count)
            rest = grad * count - grad_offset - along * centered / spread
            made = scale.astype(np.float64) / deviation / count * rest
            back = columns.back(made, operand)
            return back, grad_scale.astype(scale.dtype), grad_offset.astype(scale.dtype)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(
            flops=12 * elements(operands[0]) + 4 * elements(operands[1]),
            transcendentals=elements(operands[1]),
            bytes=moved(*operands, *results),
        )


OPS: tuple[type[Op], ...] = (BatchNormInference, BatchNormTraining, BatchNormGrad)
