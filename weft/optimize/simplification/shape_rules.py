"""Rules on data movement: chains become one op, and identities vanish."""

from __future__ import annotations

import numpy as np

from weft.ir.dense import Dense
from weft.ir.module import Node, Value, apply, tensor_of
from weft.ir.op import Op
from weft.ir.rebuild import NodeRule, Rewritten
from weft.ir.types import TensorType
from weft.ops.combiners import COMBINERS
from weft.ops.control import GetTupleElement, Tuple, While
from weft.ops.reduce import Reduce
from weft.ops.shape import BroadcastInDim, Constant, GetDimensionSize, Reshape, Reverse, Transpose
from weft.ops.slicing import Concatenate, DynamicSlice, DynamicUpdateSlice, Pad, Slice
from weft.optimize.collectives.facts import plain_combiner
from weft.optimize.simplification.splats import splat_of


def _inner(node: Node, kind: type[Op]) -> Node | None:
    """The defining node of the first operand, if it is of that op."""
    found = node.operands[0].node
    return found if found is not None and isinstance(found.op, kind) else None


def transpose_chain(node: Node) -> Rewritten:
    """transpose(transpose(x)) -> one; transpose(x) -> x, when every dim stays."""
    assert isinstance(node.op, Transpose)
    order = node.op.permutation
    if order == tuple(range(len(order))):
        return node.operands
    if (inner := _inner(node, Transpose)) is not None:
        assert isinstance(inner.op, Transpose)
        both = tuple(inner.op.permutation[d] for d in order)
        return apply(Transpose(both), *inner.operands, loc=node.loc)
    if (inner := _inner(node, BroadcastInDim)) is not None:
        assert isinstance(inner.op, BroadcastInDim)
        places = tuple(order.index(d) for d in inner.op.broadcast_dimensions)
        if places == tuple(sorted(places)):
            made = BroadcastInDim(places, tensor_of(node.results[0]))
            return apply(made, *inner.operands, loc=node.loc)
    return None


def reshape_chain(node: Node) -> Rewritten:
    """reshape(reshape(x)) -> one; reshape(x) -> x, when of one shape; also for scalars."""
    (x,), (out,) = node.operands, node.types
    if x.type is out:
        return (x,)
    if (inner := _inner(node, Reshape)) is not None:
        return apply(node.op, *inner.operands, loc=node.loc)
    if (inner := _inner(node, BroadcastInDim)) is not None and not tensor_of(
        inner.operands[0]
    ).rank:
        assert isinstance(out, TensorType)
        return apply(BroadcastInDim((), out), *inner.operands, loc=node.loc)
    return None


def broadcast_chain(node: Node) -> Rewritten:
    """broadcast(broadcast(x)) -> one; broadcast(x) -> x, when of its own shape."""
    assert isinstance(node.op, BroadcastInDim)
    (x,), (out,), places = node.operands, node.types, node.op.broadcast_dimensions
    assert isinstance(out, TensorType)
    if x.type is out and places == tuple(range(out.rank)):
        return (x,)
    if (inner := _inner(node, BroadcastInDim)) is not None:
        assert isinstance(inner.op, BroadcastInDim)
        both = tuple(places[d] for d in inner.op.broadcast_dimensions)
        return apply(BroadcastInDim(both, out), *inner.operands, loc=node.loc)
    if (inner := _inner(node, Reshape)) is not None:
        added = _added_dims(tensor_of(inner.operands[0]), tensor_of(x))
        if added is not None:
            both = tuple(places[d] for d in added)
            return apply(BroadcastInDim(both, out), *inner.operands, loc=node.loc)
    return None


def _added_dims(before: TensorType, after: TensorType) -> tuple[int, ...] | None:
    """The new positions of dims in a reshape that only adds dims of size 1."""
    # With a size 1 already there it is ambiguous which of the ones were added.
    if not (before.is_static and after.is_static) or 1 in before.shape:
        return None
    kept = tuple(d for d, size in enumerate(after.sizes) if size != 1)
    return kept if tuple(after.sizes[d] for d in kept) == before.sizes else None


def slice_chain(node: Node) -> Rewritten:
    """slice(slice(x)) -> one; slice(x) -> x, when all of it."""
    (x,), (out,) = node.operands, node.types
    if x.type is out:
        return (x,)
    inner = _inner(node, Slice)
    if inner is None:
        return None
    assert isinstance(node.op, Slice) and isinstance(inner.op, Slice)
    starts, limits, strides = [], [], []
    for (start, limit, stride), begin, step in zip(
        zip(node.op.start_indices, node.op.limit_indices, node.op.strides, strict=True),
        inner.op.start_indices,
        inner.op.strides,
        strict=True,
    ):
        # The elements that are left, rounded up.
        count = -((start - limit) // stride)
        starts.append(begin + start * step)
        strides.append(stride * step)
        # Just behind the last element taken, not `limit * step`: that could lie beyond the operand.
        limits.append(starts[-1] + (count - 1) * strides[-1] + 1 if count else starts[-1])
    made = Slice(tuple(starts), tuple(limits), tuple(strides))
    return apply(made, *inner.operands, loc=node.loc)


def whole_slice(node: Node) -> Rewritten:
    """dynamic_slice(x) -> x, when all of it; dynamic_update_slice(x, y) -> y, when all of x."""
    if isinstance(node.op, DynamicUpdateSlice):
        update = node.operands[1]
        return (update,) if update.type is node.types[0] else None
    return node.operands[:1] if node.operands[0].type is node.types[0] else None


def known_slice(node: Node) -> Rewritten:
    """dynamic_slice(x, starts) -> slice(x), when the starts are known; they are clamped."""
    assert isinstance(node.op, DynamicSlice)
    known = [s for value in node.operands[1:] if (s := splat_of(value)) is not None]
    type = tensor_of(node.operands[0])
    if len(known) < type.rank or not type.is_static:
        return None
    sizes = node.op.slice_sizes
    starts = tuple(
        # dynamic_slice clamps its starts; a slice would be refused.
        min(max(int(start), 0), room - size)
        for start, size, room in zip(known, sizes, type.sizes, strict=True)
    )
    limits = tuple(start + size for start, size in zip(starts, sizes, strict=True))
    return apply(Slice(starts, limits, (1,) * len(sizes)), node.operands[0], loc=node.loc)


def concatenate_one(node: Node) -> Rewritten:
    """concatenate(x) -> x; operands without elements along the dim are left out."""
    assert isinstance(node.op, Concatenate)
    dim = node.op.dimension
    operands = [v for v in node.operands if tensor_of(v).shape[dim] != 0]
    if len(operands) == 1 and operands[0].type is node.types[0]:
        return (operands[0],)
    if not operands or len(operands) == len(node.operands):
        return None
    return apply(node.op, *operands, loc=node.loc)


def pad_nothing(node: Node) -> Rewritten:
    """pad(x) -> x, when nothing is added anywhere."""
    op = node.op
    assert isinstance(op, Pad)
    nothing = not any((*op.edge_padding_low, *op.edge_padding_high, *op.interior_padding))
    return node.operands[:1] if nothing else None


def reduce_nothing(node: Node) -> Rewritten:
    """reduce(x, init) -> init combined with x, when over no dims or dims of size 1."""
    assert isinstance(node.op, Reduce)
    if len(node.operands) != 2:
        return None
    (x, init), (out,) = node.operands, node.types
    operand_type = tensor_of(x)
    combine = plain_combiner(node)
    if combine is None or not isinstance(out, TensorType) or operand_type.dtype is not out.dtype:
        return None
    if not operand_type.is_static or any(operand_type.sizes[d] != 1 for d in node.op.dimensions):
        return None
    if init.type is not out.with_shape(()):
        return None
    first = _rewritten_result(broadcast_chain, apply(BroadcastInDim((), out), init, loc=node.loc))
    second = _rewritten_result(reshape_chain, apply(Reshape(out), x, loc=node.loc))
    return apply(COMBINERS[combine], first, second, loc=node.loc)


def _rewritten_result(rule: NodeRule, node: Node) -> Value:
    """The result of a new node, rewritten by a rule."""
    while True:
        match rule(node):
            case None:
                return node.results[0]
            case Node() as changed:
                node = changed
            case (value,):
                return value
            case other:
                raise AssertionError(f"{node!r} has one result, not {other}")


def reverse_nothing(node: Node) -> Rewritten:
    """reverse(x) -> x, when along dims of size 1 or none."""
    assert isinstance(node.op, Reverse)
    shape = tensor_of(node.operands[0]).shape
    return node.operands if all(shape[d] == 1 for d in node.op.dimensions) else None


def known_size(node: Node) -> Rewritten:
    """get_dimension_size(x) -> a constant, when the size is known."""
    assert isinstance(node.op, GetDimensionSize)
    size = tensor_of(node.operands[0]).shape[node.op.dimension]
    if not isinstance(size, int):
        return None
    return apply(Constant(Dense(np.asarray(size, np.int32))), loc=node.loc)


def element_of_tuple(node: Node) -> Rewritten:
    """get_tuple_element(tuple(x, y)) -> x or y."""
    assert isinstance(node.op, GetTupleElement)
    inner = _inner(node, Tuple)
    return None if inner is None else (inner.operands[node.op.index],)


def loop_never(node: Node) -> Rewritten:
    """while(x) -> x, when the condition never holds."""
    again = splat_of(node.regions[0].results[0])
    return node.operands if again is not None and not again else None


RULES: dict[type[Op], tuple[NodeRule, ...]] = {
    Transpose: (transpose_chain,),
    Reshape: (reshape_chain,),
    BroadcastInDim: (broadcast_chain,),
    Slice: (slice_chain,),
    DynamicSlice: (whole_slice, known_slice),
    DynamicUpdateSlice: (whole_slice,),
    Concatenate: (concatenate_one,),
    Pad: (pad_nothing,),
    Reduce: (reduce_nothing,),
    Reverse: (reverse_nothing,),
    GetDimensionSize: (known_size,),
    GetTupleElement: (element_of_tuple,),
    While: (loop_never,),
}
