"""The ragged dot: a dot with a ragged row, contracting or batch dim, in groups of unequal size."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np

from weft.ir.attrs import struct
from weft.ir.check import dims_in_range, one_of, require, tensor_type
from weft.ir.op import Op, op
from weft.ir.rule import Role, Rule, RuleBuilder
from weft.ir.types import Array, Shape, TensorType, Type, Types
from weft.ir.work import Work
from weft.ops.combiners import in_dtype
from weft.ops.contract import (
    DotDims,
    check_precision,
    dot,
    dot_work,
    expect_shape,
    precisions,
)
from weft.records import dataclass

Mode = Literal["free", "contracting", "batch"]
ChloPrecision = Annotated[tuple[str, ...], precisions("chlo")]


@dataclass(frozen=True, slots=True)
class RaggedDims:
    """The dims of a dot, its ragged dim, and the group dim of rhs."""

    lhs_batching_dimensions: tuple[int, ...] = ()
    rhs_batching_dimensions: tuple[int, ...] = ()
    lhs_contracting_dimensions: tuple[int, ...] = ()
    rhs_contracting_dimensions: tuple[int, ...] = ()
    lhs_ragged_dimensions: tuple[int, ...] = ()
    rhs_group_dimensions: tuple[int, ...] = ()

    @property
    def dot(self) -> DotDims:
        """The dims of the dot, without the groups."""
        return DotDims(
            self.lhs_batching_dimensions,
            self.rhs_batching_dimensions,
            self.lhs_contracting_dimensions,
            self.rhs_contracting_dimensions,
        )

    @property
    def ragged(self) -> int:
        """The ragged dim of the left operand."""
        return self.lhs_ragged_dimensions[0]

    @property
    def mode(self) -> Mode:
        """The kind of the ragged dim."""
        if self.ragged in self.lhs_batching_dimensions:
            return "batch"
        return "contracting" if self.ragged in self.lhs_contracting_dimensions else "free"

    def prefix(self, rank: int) -> tuple[int, ...]:
        """The dims of the left operand along which group sizes may differ."""
        batch = self.lhs_batching_dimensions
        match self.mode:
            case "batch":
                return batch[: batch.index(self.ragged)]
            case "contracting":
                summed = self.lhs_contracting_dimensions
                return batch + summed[: summed.index(self.ragged)]
            case "free":
                free = self.dot.lhs_free(rank)
                return (*batch, *free[: free.index(self.ragged)])

    def rhs_free(self, rank: int) -> list[int]:
        """The dims that only the right operand and the result have."""
        return [d for d in self.dot.rhs_free(rank) if d not in self.rhs_group_dimensions]


RaggedDimensionNumbers = Annotated[RaggedDims, struct("chlo.ragged_dot")(RaggedDims)]


@op("chlo.ragged_dot")
class RaggedDot(Op):
    """A dot in which dim m, k or b of lhs[b, m, k] is ragged, in groups of `group_sizes`.

    - m: out[b, m, n] = lhs[b, m] @ rhs[g, b] for the group g that row m is in; zero if in none;
    - k: out[g, b, m, n] = the part of the sum over k that is in group g;
    - b: out[b, m, n] = lhs[b] @ rhs[b]; the groups do not matter.
    """

    ragged_dot_dimension_numbers: RaggedDimensionNumbers
    out: TensorType
    precision_config: ChloPrecision | None = None

    def infer(self, lhs: Type, rhs: Type, group_sizes: Type) -> Type:
        left, right = tensor_type(self.name, 0, lhs), tensor_type(self.name, 1, rhs)
        groups = one_of(self.name, 2, group_sizes, "int uint")
        dims = self.ragged_dot_dimension_numbers
        dims.dot.check(self.name, left, right)
        check_precision(self.name, self.precision_config)
        require(
            len(dims.lhs_ragged_dimensions) == 1,
            f"{self.name}: {len(dims.lhs_ragged_dimensions)} lhs_ragged_dimensions",
            "name exactly one",
        )
        dims_in_range(self.name, "lhs_ragged_dimensions", dims.lhs_ragged_dimensions, left.rank)
        self.check_groups(left, right, groups)
        shape: Shape = (
            *(left.shape[d] for d in dims.lhs_batching_dimensions),
            *(left.shape[d] for d in dims.dot.lhs_free(left.rank)),
            *(right.shape[d] for d in dims.rhs_free(right.rank)),
        )
        if dims.mode == "contracting":
            shape = (groups.shape[-1], *shape)
        return expect_shape(self.name, self.out, shape)

    def check_groups(self, lhs: TensorType, rhs: TensorType, groups: TensorType) -> None:
        """Refuse group sizes or group dims that do not fit the ragged dim."""
        dims = self.ragged_dot_dimension_numbers
        prefix = tuple(lhs.shape[d] for d in dims.prefix(lhs.rank))
        require(
            groups.rank == 1 or (groups.rank > 1 and groups.shape[:-1] == prefix),
            f"{self.name}: operand 2 is {groups}",
            f"group_sizes must have the dims {[*prefix]} and one for the groups, or only that one",
        )
        where = dims.rhs_group_dimensions
        require(
            len(where) == (1 if dims.mode == "free" else 0),
            f"{self.name}: {len(where)} rhs_group_dimensions",
            "name one if the ragged dim is neither batch nor contracting, else none",
        )
        used = dims.rhs_batching_dimensions + dims.rhs_contracting_dimensions + where
        dims_in_range(self.name, "the rhs batching, contracting and group dims", used, rhs.rank)
        if where:
            require(
                rhs.shape[where[0]] == groups.shape[-1],
                f"{self.name}: operand 1 dim {where[0]} is {rhs.shape[where[0]]}, "
                f"but operand 2 has {groups.shape[-1]} groups",
                "give one part of rhs for each group",
            )

    def rule(self, lhs: TensorType, rhs: TensorType, group_sizes: TensorType) -> Rule:
        """Shardy has no rule for CHLO's op; this is its rule for the XLA op that it lowers to."""
        dims = self.ragged_dot_dimension_numbers
        builder = RuleBuilder((lhs, rhs, group_sizes), (self.out,))
        prefix = dims.prefix(lhs.rank) if group_sizes.rank > 1 else ()
        shift = 1 if dims.mode == "contracting" else 0

        def add(a: int | None, b: int | None, result: int | None, size: int, summed: bool) -> None:
            role: Role = "reduction" if summed else "pass"
            if a == dims.ragged:
                role = "whole"
            place = prefix.index(a) if a is not None and a in prefix else None
            combine = in_dtype("add", self.out.dtype) if role == "reduction" else None
            builder.factor((a, b, place), (result,), size, role, combine=combine)

        pairs: list[tuple[int | None, int | None]] = [*dims.dot.batch]
        pairs += [(a, None) for a in dims.dot.lhs_free(lhs.rank)]
        pairs += [(None, b) for b in dims.rhs_free(rhs.rank)]
        for position, (a, b) in enumerate(pairs, shift):
            add(a, b, position, self.out.bounds[position], False)
        for a, b in dims.dot.contract:
            add(a, b, None, lhs.bounds[a], True)
        group = dims.rhs_group_dimensions[0] if dims.rhs_group_dimensions else None
        places = (None, group, group_sizes.rank - 1)
        result = 0 if dims.mode == "contracting" else None
        return builder.factor(places, (result,), group_sizes.bounds[-1], "whole").build()

    def reference(self, lhs: Array, rhs: Array, group_sizes: Array) -> Array:
        dims, out = self.ragged_dot_dimension_numbers, self.out.dtype
        if dims.mode == "batch":
            return dot(lhs, rhs, dims.dot, out)
        result = np.zeros(self.out.sizes, out.numpy)
        ends = np.cumsum(group_sizes.astype(np.int64), -1)
        for group in range(group_sizes.shape[-1]):
            end = ends[..., group]
            span = (ends[..., group - 1] if group else end * 0, end)
            if dims.mode == "contracting":
                result[group] = self.partial_sum(lhs, rhs, span)
            else:
                rows, product = self.product_of_group(lhs, rhs, group, span)
                result = np.where(rows, product, result)
        return result

    def partial_sum(self, lhs: Array, rhs: Array, span: tuple[Array, Array]) -> Array:
        """The part of the sum that is in the group from one end of `span` to the other."""
        dims = self.ragged_dot_dimension_numbers
        prefix = dims.prefix(lhs.ndim)
        there = dict((*dims.dot.batch, *dims.dot.contract))
        left = members(lhs.shape, dims.ragged, prefix, span)
        right = members(rhs.shape, there[dims.ragged], tuple(there[d] for d in prefix), span)
        # Both sides: an infinity outside of the group, times 0, would be NaN.
        return dot(
            np.where(left, lhs, np.zeros((), lhs.dtype)),
            np.where(right, rhs, np.zeros((), rhs.dtype)),
            dims.dot,
            self.out.dtype,
        )

    def product_of_group(
        self, lhs: Array, rhs: Array, group: int, span: tuple[Array, Array]
    ) -> tuple[Array, Array]:
        """All rows times the group's part of rhs, and the mask of rows in the group."""
        dims = self.ragged_dot_dimension_numbers
        (where,) = dims.rhs_group_dimensions
        lower = [d - (d > where) for d in range(rhs.ndim)]
        inner = DotDims(
            dims.lhs_batching_dimensions,
            tuple(lower[d] for d in dims.rhs_batching_dimensions),
            dims.lhs_contracting_dimensions,
            tuple(lower[d] for d in dims.rhs_contracting_dimensions),
        )
        rows = members(lhs.shape, dims.ragged, dims.prefix(lhs.ndim), span)
        kept = (*dims.lhs_batching_dimensions, *dims.dot.lhs_free(lhs.ndim))
        rows = rows.transpose(*kept, *dims.lhs_contracting_dimensions)
        rows = rows.reshape(*rows.shape[: len(kept)], *[1] * (self.out.rank - len(kept)))
        return rows, dot(lhs, np.take(rhs, group, axis=where), inner, self.out.dtype)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        lhs, out = operands[0], results[0]
        assert isinstance(lhs, TensorType) and isinstance(out, TensorType)
        dims = self.ragged_dot_dimension_numbers
        summed = math.prod(lhs.bounds[d] for d in dims.lhs_contracting_dimensions)
        # Each k is in one group at most: the sums of all groups cost as much as one dot.
        groups = out.bounds[0] if dims.mode == "contracting" else 1
        return dot_work(out.size // max(groups, 1) * summed, operands, results)


def members(
    shape: tuple[int, ...], ragged: int, prefix: tuple[int, ...], span: tuple[Array, Array]
) -> Array:
    """The mask of elements in a group, whose span depends on the prefix dims."""
    rank = len(shape)
    position = np.arange(shape[ragged]).reshape([-1 if d == ragged else 1 for d in range(rank)])
    start, end = (
        # Spans have the prefix dims in their own order; the operand's order may be another.
        bound.transpose(np.argsort(prefix)).reshape(
            [shape[d] if d in prefix else 1 for d in range(rank)]
        )
        if bound.ndim
        else bound
        for bound in span
    )
    return np.asarray((start <= position) & (position < end))


OPS: tuple[type[Op], ...] = (RaggedDot,)
