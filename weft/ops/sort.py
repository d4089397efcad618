"""Sorting ops."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from weft.ir.check import one_of, require, tensor_type
from weft.ir.op import Body, Op, RegionCall, op
from weft.ir.rule import Rule, RuleBuilder
from weft.ir.types import BOOL, I32, Array, TensorType, Type, Types, dtype_of
from weft.ir.work import Work, elements, moved


@op("stablehlo.sort")
class Sort(Op):
    """The inputs, permuted together along one dim into the comparator's order."""

    dimension: int = -1
    is_stable: bool = False  # the reference is stable in any case
    regions = 1

    def infer(self, *inputs: Type, regions: tuple[Body, ...] = ()) -> Types:
        require(len(inputs) > 0, f"{self.name}: has no inputs", "give it at least one")
        types = [tensor_type(self.name, n, t) for n, t in enumerate(inputs)]
        for n, other in enumerate(types):
            require(
                other.shape == types[0].shape,
                f"{self.name}: input 0 is {types[0]}, but input {n} is {other}",
                "inputs that are sorted together have one shape",
            )
        rank = types[0].rank
        require(
            -rank <= self.dimension < rank,
            f"{self.name}: dimension is {self.dimension}, but the inputs have {rank} dims",
            f"use {-rank} to {rank - 1}",
        )
        scalars = [t.with_shape(()) for t in types for _ in range(2)]
        require(
            regions[0].args == tuple(scalars) and regions[0].results == (TensorType((), BOOL),),
            f"{self.name}: the comparator takes {regions[0].args} and gives {regions[0].results}",
            f"it takes {tuple(scalars)}, two scalars for each input, and gives a tensor<i1>",
        )
        return inputs

    def rule(self, *inputs: TensorType, regions: tuple[Body, ...] = ()) -> Rule:
        sizes = inputs[0].bounds
        sorted_dim = self.dimension % len(sizes)
        # As in Shardy: the sorted dim is blocked if no other dim could take its axes.
        alone = all(n == 1 for d, n in enumerate(sizes) if d != sorted_dim)
        builder = RuleBuilder(inputs, inputs)
        for dim, size in enumerate(sizes):
            all_dims = [dim] * len(inputs)
            if dim == sorted_dim:
                builder.factor(all_dims, all_dims, size, "whole", blocked=alone)
            else:
                builder.factor(all_dims, all_dims, size)
        return builder.build()

    def reference(self, *inputs: Array, regions: tuple[RegionCall, ...] = ()) -> tuple[Array, ...]:
        rows = [np.moveaxis(a, self.dimension, -1) for a in inputs]
        flat = [a.reshape(math.prod(a.shape[:-1]), a.shape[-1]) for a in rows]  # [rows, length]
        order = merge_sort(flat, regions[0])
        shape = rows[0].shape
        made = [np.take_along_axis(a, order, 1).reshape(shape) for a in flat]
        return tuple([np.moveaxis(a, -1, self.dimension) for a in made])

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        first = operands[0]
        assert isinstance(first, TensorType)
        length = max(first.bounds[self.dimension], 1)
        compared = elements(first) * math.ceil(math.log2(length))
        body = bodies[0] if bodies else Work()
        return replace(body.times(compared), bytes=moved(*operands, *results))


def merge_sort(rows: list[Array], less: RegionCall) -> Array:
    """The stable order of every row: bottom-up merge sort, all runs of one width at once.

    An element of a left run moves past the elements of the right run that are less than it, counted
    by a binary search; the right run takes the remaining positions. So the result is a permutation
    even for an inconsistent comparator.
    """
    count, length = rows[0].shape
    order = np.broadcast_to(np.arange(length), (count, length)).copy()
    width = 1
    while width < length and count:
        place = np.arange(length)
        is_left = place % (2 * width) < width
        left = place[is_left]
        begin = np.minimum(left - left % width + width, length)  # of the right run
        found = _search(rows, less, order, left, begin, np.minimum(begin + width, length))
        # Found positions rise with a consistent comparator; with another they are made to, so that
        # no position is taken twice.
        target = np.maximum.accumulate(found, 1) - begin + left
        merged = np.full_like(order, -1)
        np.put_along_axis(merged, target, order[:, is_left], 1)
        merged[merged < 0] = order[:, ~is_left].reshape(-1)
        order = merged
        width *= 2
    return order


def _search(
    rows: list[Array], less: RegionCall, order: Array, left: Array, begin: Array, end: Array
) -> Array:
    """For each left element, the first position from `begin` on whose element is not less."""
    shape = (order.shape[0], left.size)
    low, high = np.broadcast_to(begin, shape), np.broadcast_to(end, shape)
    mine = [np.take_along_axis(a, order[:, left], 1) for a in rows]
    while (low < high).any():
        middle = (low + high) // 2
        # Searches that have ended may stand behind the last element: what they read is masked.
        at = np.take_along_axis(order, np.minimum(middle, order.shape[1] - 1), 1)
        other = [np.take_along_axis(a, at, 1) for a in rows]
        pairs = [a for pair in zip(other, mine, strict=True) for a in pair]
        (is_less,) = less.each(*pairs)
        undecided = low < high
        low = np.where(undecided & is_less, middle + 1, low)
        high = np.where(undecided & ~is_less, middle, high)
    return low


@op("chlo.top_k")
class TopK(Op):
    """The k largest elements of each row along the last dim, largest first, and their indices."""

    k: int

    def infer(self, operand: Type) -> Types:
        operand_type = one_of(self.name, 0, operand, "bool int uint float")
        room = operand_type.bounds[-1] if operand_type.rank else 0
        require(
            operand_type.rank > 0 and 0 <= self.k <= room,
            f"{self.name}: k is {self.k}, but the operand is {operand_type}",
            f"its last dim must hold at least k elements; use 0 to {room}",
        )
        values = operand_type.with_shape((*operand_type.shape[:-1], self.k))
        return values, values.with_dtype(I32)

    def rule(self, operand: TensorType) -> Rule:
        values = operand.with_shape((*operand.shape[:-1], self.k))
        builder = RuleBuilder((operand,), (values, values))
        for dim, size in enumerate(operand.bounds[:-1]):
            builder.factor([dim], [dim, dim], size)
        last = operand.rank - 1
        builder.factor([last], [last, last], operand.bounds[-1], "whole", blocked=True)
        return builder.build()

    def reference(self, operand: Array) -> tuple[Array, Array]:
        # ~x reverses the order, and unlike -x does not overflow at the least integer. Of equal
        # elements the first one comes first.
        order = np.argsort(~ordered(operand), axis=-1, kind="stable")[..., : self.k]
        return np.take_along_axis(operand, order, -1), order.astype(np.int32)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(flops=elements(operands[0]), bytes=moved(*operands, *results))


def ordered(array: Array) -> Array:
    """Integers in the order of the elements; for floats IEEE's total order, with -0 below 0."""
    if dtype_of(array.dtype).is_float:
        bits = array.astype(np.float64).view(np.int64)
        # Negative floats have larger bits the smaller they are: all but the sign are flipped.
        return bits ^ ((bits >> 63) & np.iinfo(np.int64).max)
    return array if array.dtype.kind in "iub" else array.astype(np.int64)


OPS: tuple[type[Op], ...] = (Sort, TopK)
