"""Batch normalization over split batches, with global sums."""

from __future__ import annotations

import math

import numpy as np

from weft.ir.dense import Dense
from weft.ir.module import Node, Value
from weft.ir.op import Op
from weft.ir.types import F32, F64, DType, TensorType
from weft.ops.batch_norm import BatchNormGrad, BatchNormTraining
from weft.ops.elementwise.convert import Convert
from weft.ops.elementwise.pointwise import Add, Divide, Multiply, Subtract
from weft.ops.elementwise.transcendental import Sqrt
from weft.ops.reduce import Reduce
from weft.ops.shape import BroadcastInDim, Constant
from weft.partition.context import Context
from weft.partition.site import tensor
from weft.partition.structural.stand_in import GlobalNodes, add_region, stand_in


def training(context: Context, node: Node) -> None:
    """The op itself if only features are split, else its decomposition."""
    op = node.op
    assert isinstance(op, BatchNormTraining)
    if not _is_spread(context, node.operands[:1], op.feature_index):
        context.compute(node)
        return
    sums = _Sums(node, op.feature_index)
    x, scale, offset = (sums.wide(v) for v in node.operands)
    # Two passes: E[x^2] - E[x]^2 cancels badly where the mean is large against the deviation.
    mean = sums.mean(x)
    centered = sums.each(Subtract(), x, mean)
    variance = sums.mean(sums.add(Multiply(), centered, centered))
    deviation = sums.deviation(variance, op.epsilon)
    normal = sums.each(Divide(), centered, deviation)
    made = sums.each(Add(), sums.each(Multiply(), normal, scale), offset)
    stand_in(context, node, sums.nodes, tuple(sums.narrow(v) for v in (made, mean, variance)))


def gradient(context: Context, node: Node) -> None:
    """The op itself if only features are split, else its decomposition."""
    op = node.op
    assert isinstance(op, BatchNormGrad)
    full = (node.operands[0], node.operands[4])
    if not _is_spread(context, full, op.feature_index):
        context.compute(node)
        return
    sums = _Sums(node, op.feature_index)
    x, scale, mean, variance, grad = (sums.wide(v) for v in node.operands)
    spread = sums.raised(variance, op.epsilon)
    deviation = sums.add(Sqrt(), spread)
    centered = sums.each(Subtract(), x, mean)
    grad_offset = sums.total(grad)
    along = sums.total(sums.add(Multiply(), grad, centered))
    grad_scale = sums.add(Divide(), along, deviation)
    # scale / deviation * (grad - (grad_offset + along * centered / spread) / count)
    part = sums.each(Multiply(), centered, sums.add(Divide(), along, spread))
    both = sums.each(Add(), part, grad_offset)
    rest = sums.add(Subtract(), grad, sums.add(Divide(), both, sums.count(tensor(both.type))))
    made = sums.each(Multiply(), rest, sums.add(Divide(), scale, deviation))
    results = tuple(sums.narrow(v) for v in (made, grad_scale, grad_offset))
    stand_in(context, node, sums.nodes, results)


def _is_spread(context: Context, values: tuple[Value, ...], feature: int) -> bool:
    """Whether reduced dims are split."""
    return any(
        axes
        for value in values
        for dim, axes in enumerate(context.requested_split(value))
        if dim != feature
    )


class _Sums(GlobalNodes):
    """The parts of a batch normalization, in the accumulation type."""

    def __init__(self, node: Node, feature: int) -> None:
        super().__init__(node.loc)
        self.full = tensor(node.operands[0].type)
        self.feature = feature
        self.dtype: DType = F64 if self.full.dtype is F64 else F32
        self.others = tuple(d for d in range(self.full.rank) if d != feature)

    def wide(self, value: Value) -> Value:
        """The value in the wide type."""
        return self.typed(value, self.dtype)

    def narrow(self, value: Value) -> Value:
        """The value in the type of the operands."""
        return self.typed(value, self.full.dtype)

    def typed(self, value: Value, dtype: DType) -> Value:
        type = tensor(value.type)
        return value if type.dtype is dtype else self.add(Convert(type.with_dtype(dtype)), value)

    def splat(self, number: float, type: TensorType) -> Value:
        scalar = np.asarray(number, type.dtype.numpy)
        return self.add(Constant(Dense(scalar, type)))

    def total(self, value: Value) -> Value:
        """The sum over all but the features."""
        type = tensor(value.type)
        zero = self.splat(0, type.with_shape(()))
        out = type.with_shape((type.sizes[self.feature],))
        return self.add(
            Reduce(self.others, (out,)), value, zero, regions=(add_region(type, self.loc),)
        )

    def mean(self, value: Value) -> Value:
        """The mean over all but the features."""
        total = self.total(value)
        return self.add(Divide(), total, self.count(tensor(total.type)))

    def count(self, type: TensorType) -> Value:
        """The number of elements per feature."""
        return self.splat(math.prod(self.full.sizes[d] for d in self.others), type)

    def raised(self, variance: Value, epsilon: float) -> Value:
        return self.add(Add(), variance, self.splat(epsilon, tensor(variance.type)))

    def deviation(self, variance: Value, epsilon: float) -> Value:
        return self.add(Sqrt(), self.raised(variance, epsilon))

    def each(self, op: Op, full: Value, flat: Value) -> Value:
        """An elementwise op of a tensor and a broadcast per-feature vector."""
        spread = self.add(BroadcastInDim((self.feature,), tensor(full.type)), flat)
        return self.add(op, full, spread)
