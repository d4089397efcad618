"""Contractions inside of a kernel: dots and convolutions, their operands and sums."""

from __future__ import annotations

import math
from collections.abc import Callable

from weft.ir.module import Node, tensor_of
from weft.ir.op import Op
from weft.ir.types import F32, DType, TensorType
from weft.kernels import kernel as k
from weft.ops.contract import Dot, DotDims, DotGeneral, allows_tf32
from weft.ops.convolution import Convolution
from weft.ops.elementwise.convert import Convert
from weft.ops.elementwise.pointwise import Multiply
from weft.tile.drafts.draft import Definition, Draft, Terms
from weft.tile.drafts.index import ZERO, At, Expr, factor, factors_of, plus, times
from weft.tile.drafts.lookup import bounded_select, same_as
from weft.tile.drafts.pulls import Pull


def contraction(pull: Pull) -> Definition:
    """A contraction; an all_reduce that follows is fused into it."""
    node, draft, lead = pull.node, pull.draft, pull.lead
    dims, (lhs, rhs) = dot_dims(node), node.operands[:2]
    batch = len(dims.lhs_batching_dimensions)
    own = pull.at[lead:]
    left, right = _sides(own, dims, tensor_of(lhs).rank, tensor_of(rhs).rank, batch)
    over: set[int] = set()
    for a, b in zip(dims.lhs_contracting_dimensions, dims.rhs_contracting_dimensions, strict=True):
        left[a] = right[b] = _summed(draft, tensor_of(lhs).sizes[a])
        over |= factors_of([left[a]])
    a, b = pull.operand(0, left), pull.operand(1, right)
    # Reading operands through views may have split the summed factors: `spelled` has their parts.
    met = factors_of((*draft.at(a), *draft.at(b)))
    return product(pull, a, b, {*draft.spelled(tuple(over))}, met)


def is_outer(node: Node) -> bool:
    """Whether a dot has no contracting dims: a map, whose zeros keep their signs."""
    return isinstance(node.op, DotGeneral) and not dot_dims(node).lhs_contracting_dimensions


def outer(pull: Pull) -> Definition:
    """An outer product, rounded once."""
    draft, dims, (lhs, rhs) = pull.draft, dot_dims(pull.node), pull.node.operands[:2]
    batch, dtype = len(dims.lhs_batching_dimensions), pull.dtype
    own = pull.at[pull.lead :]
    sides = _sides(own, dims, tensor_of(lhs).rank, tensor_of(rhs).rank, batch)
    given, held = tensor_of(lhs).dtype, k.held_in(dtype)
    found = [_converted(draft, pull.operand(n, at), given, held) for n, at in enumerate(sides)]
    made = Definition(tuple(found), lambda numbers, terms: k.Apply(Multiply(), numbers, held))
    return same_as(_converted(draft, draft.anonymous(made), held, dtype))


def _converted(draft: Draft, instance: int, given: DType, dtype: DType) -> int:
    """A converted instance."""
    if given is dtype:
        return instance
    op = Convert(TensorType((), dtype))
    return draft.anonymous(
        Definition((instance,), lambda numbers, terms: k.Apply(op, numbers, dtype))
    )


def convolution(pull: Pull) -> Definition:
    """A contraction over a window; padding adds nothing."""
    op, node, draft, lead = pull.node.op, pull.node, pull.draft, pull.lead
    assert isinstance(op, Convolution)
    dims, (lhs, rhs) = op.dimension_numbers, node.operands
    window, own = op.window(tensor_of(rhs)), pull.at[lead:]
    left: list[Expr] = [ZERO] * tensor_of(lhs).rank
    right: list[Expr] = [ZERO] * tensor_of(rhs).rank
    left[dims.input_batch_dimension] = own[dims.output_batch_dimension]
    right[dims.kernel_output_feature_dimension] = own[dims.output_feature_dimension]
    features = tensor_of(lhs).sizes[dims.input_feature_dimension]
    depth = _summed(draft, features)
    left[dims.input_feature_dimension] = right[dims.kernel_input_feature_dimension] = depth
    over = factors_of([depth])
    for n, size in enumerate(window.sizes):
        inside = _summed(draft, size)
        over |= factors_of([inside])
        place = times(own[dims.output_spatial_dimensions[n]], window.strides[n])
        place = plus(place, times(inside, window.window_dilations[n], -window.padding[n][0]))
        left[dims.input_spatial_dimensions[n]] = place
        is_reversed = op.window_reversal is not None and op.window_reversal[n]
        tap = times(inside, -1, size - 1) if is_reversed else inside
        right[dims.kernel_spatial_dimensions[n]] = tap
    bounds = draft.inside(left, tensor_of(lhs).sizes)
    a, b = pull.operand(0, left, bounds), pull.operand(1, right)
    met = factors_of((*draft.at(a), *draft.at(b), *(e for e, _, _ in draft.bounds(a))))
    if bounds:
        dtype = tensor_of(lhs).dtype
        nothing = draft.anonymous(Definition((), lambda numbers, terms: k.Fill(0, dtype)))
        # The load, too, not only the select of zeros around it, is part of the packing.
        draft.upstream.add(a)
        a = draft.anonymous(bounded_select(bounds, a, nothing, dtype))
    return product(pull, a, b, {*draft.spelled(tuple(over))}, met)


def _summed(draft: Draft, size: int) -> Expr:
    """The index along a contracted dim."""
    return factor(draft.new(size)) if size > 1 else ZERO


def is_plain_convolution(node: Node) -> bool:
    """Whether a convolution has no groups and no base dilation."""
    op = node.op
    if not isinstance(op, Convolution) or op.feature_group_count * op.batch_group_count > 1:
        return False
    return all(n == 1 for n in op.lhs_dilation or ())


def product(pull: Pull, a: int, b: int, over: set[int], met: set[int]) -> Definition:
    """The contraction of two instances, which depend on the factors in `met`.

    Along a factor that neither depends on, all products are equal.
    """
    draft, dtype = pull.draft, pull.dtype
    draft.upstream |= {a, b}
    if draft.summed is not None:  # the following sum over devices
        over = over | set(draft.rows)
    listed = tuple(sorted(over & met))
    times_over = math.prod(draft.sizes[f] for f in over - met)
    held = k.held_in(dtype)

    # A repeated sum is multiplied in the accumulator's type, and rounded once.
    total = dtype if times_over == 1 else held
    tf32 = dtype is F32 and allows_tf32(pull.node.op)

    def make(numbers: tuple[int, ...], terms: Terms) -> k.Step:
        return k.Contract(numbers[0], numbers[1], terms.factors(listed), total, held, tf32)

    definition = Definition((a, b), make)
    if times_over == 1:
        return definition
    count = Definition((), lambda numbers, terms: k.Fill(times_over, held))
    args = (draft.anonymous(definition), draft.anonymous(count))
    definition = Definition(args, lambda numbers, terms: k.Apply(Multiply(), numbers, held))
    if held is dtype:
        return definition
    to, all_of_them = Convert(TensorType((), dtype)), draft.anonymous(definition)
    return Definition((all_of_them,), lambda numbers, terms: k.Apply(to, numbers, dtype))


def _sides(
    own: At, dims: DotDims, left_rank: int, right_rank: int, batch: int
) -> tuple[list[Expr], list[Expr]]:
    left: list[Expr] = [ZERO] * left_rank
    right: list[Expr] = [ZERO] * right_rank
    for n in range(batch):
        left[dims.lhs_batching_dimensions[n]] = own[n]
        right[dims.rhs_batching_dimensions[n]] = own[n]
    free_left, free_right = dims.lhs_free(left_rank), dims.rhs_free(right_rank)
    for n, dim in enumerate(free_left):
        left[dim] = own[batch + n]
    for n, dim in enumerate(free_right):
        right[dim] = own[batch + len(free_left) + n]
    return left, right


def dot_dims(node: Node) -> DotDims:
    """The dimension numbers of a contraction, as in dot_general."""
    if isinstance(node.op, Dot):
        return node.op.dims(tensor_of(node.operands[0]).rank)
    assert isinstance(node.op, DotGeneral)
    return node.op.dot_dimension_numbers


PRODUCTS: dict[type[Op], Callable[[Pull], Definition]] = {
    DotGeneral: contraction,
    Dot: contraction,
    Convolution: convolution,
}
