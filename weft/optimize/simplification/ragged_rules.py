"""Rules on ragged dots: transposes of their operands are other dims."""

from __future__ import annotations

from dataclasses import replace

from weft.ir.module import Node, Value, apply
from weft.ir.op import Op
from weft.ir.rebuild import NodeRule, Rewritten
from weft.ops.ragged import RaggedDims, RaggedDot
from weft.ops.shape import Transpose


def ragged_transpose(node: Node) -> Rewritten:
    """ragged_dot(transpose(x), y) -> ragged_dot(x, y), when the dims of the result stay."""
    op, (lhs, rhs, sizes) = node.op, node.operands
    assert isinstance(op, RaggedDot)
    dims = op.ragged_dot_dimension_numbers
    left, right = _source(lhs), _source(rhs)
    if left is not None:
        dims, lhs = _turned_left(dims, *left, unchanged=lhs)
    if right is not None:
        dims, rhs = _turned_right(dims, *right, unchanged=rhs)
    if (lhs, rhs) == (node.operands[0], node.operands[1]):
        return None
    made = op.replace(ragged_dot_dimension_numbers=dims)
    return apply(made, lhs, rhs, sizes, loc=node.loc)


def _source(value: Value) -> tuple[tuple[int, ...], Value] | None:
    """The permutation of a transpose, and its operand."""
    node = value.node
    if node is None or not isinstance(node.op, Transpose) or node.attrs:
        return None
    return node.op.permutation, node.operands[0]


def _turned_left(
    dims: RaggedDims, order: tuple[int, ...], source: Value, *, unchanged: Value
) -> tuple[RaggedDims, Value]:
    # Free dims appear in the result in the operand's order: reordered ones would permute the
    # result.
    if not _rises(order, dims.dot.lhs_free(len(order))):
        return dims, unchanged
    turned = replace(
        dims,
        lhs_batching_dimensions=_through(order, dims.lhs_batching_dimensions),
        lhs_contracting_dimensions=_through(order, dims.lhs_contracting_dimensions),
        lhs_ragged_dimensions=_through(order, dims.lhs_ragged_dimensions),
    )
    return turned, source


def _turned_right(
    dims: RaggedDims, order: tuple[int, ...], source: Value, *, unchanged: Value
) -> tuple[RaggedDims, Value]:
    if not _rises(order, dims.rhs_free(len(order))):
        return dims, unchanged
    turned = replace(
        dims,
        rhs_batching_dimensions=_through(order, dims.rhs_batching_dimensions),
        rhs_contracting_dimensions=_through(order, dims.rhs_contracting_dimensions),
        rhs_group_dimensions=_through(order, dims.rhs_group_dimensions),
    )
    return turned, source


def _rises(order: tuple[int, ...], dims: list[int]) -> bool:
    """Whether dims that only one operand has stay in order: the result has them so."""
    places = _through(order, tuple(dims))
    return places == tuple(sorted(places))


def _through(order: tuple[int, ...], dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple([order[d] for d in dims])


RULES: dict[type[Op], tuple[NodeRule, ...]] = {RaggedDot: (ragged_transpose,)}
