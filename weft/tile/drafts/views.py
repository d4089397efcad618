"""Views: nodes that only remap indices; kernels read through them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from weft.ir.module import Node, Value, tensor_of
from weft.ir.op import Op
from weft.kernels.stacked_node import StackedNode
from weft.ops.control import OptimizationBarrier
from weft.ops.distributed.collective import (
    AllGather,
    AllToAll,
    CollectiveBroadcast,
    CollectivePermute,
)
from weft.ops.distributed.local import AllSlice, PermuteAlongAxes
from weft.ops.shape import Broadcast, BroadcastInDim, Reshape, Reverse, Transpose
from weft.ops.slicing import Slice
from weft.tile.drafts.draft import Draft
from weft.tile.drafts.index import ZERO, At, Expr, Split, plus, reshaped, taken_apart, times

Read: TypeAlias = tuple[Value, At]
View: TypeAlias = Callable[[StackedNode, int, At, Draft, Sequence[int]], "Read | Split | None"]


def sees_through(stacked: StackedNode) -> bool:
    """Whether a node is a view."""
    op = stacked.node.op
    if isinstance(op, CollectivePermute | PermuteAlongAxes):
        return stacked.along is not None and stays(stacked)
    # In lockstep a gather reads another device's piece in the same memory: it moves nothing.
    if op.collective:
        return type(op) in VIEWS and stacked.along is not None
    if isinstance(op, AllSlice):
        return stacked.along is not None and divides(stacked.node)
    return type(op) in VIEWS


def lead_of(at: At, mask: int, lead: int) -> At:
    """The indices along the leading dims of a value with this mask."""
    return tuple([at[d] if mask >> d & 1 else ZERO for d in range(lead)])


def read_through(
    stacked: StackedNode, result: int, at: At, draft: Draft, sizes: Sequence[int]
) -> Read | Split | None:
    """The value and index that a view reads for one of its elements.

    None if the index is not affine; a split if one is needed.
    """
    return VIEWS[type(stacked.node.op)](stacked, result, at, draft, sizes)


def _operand(placed: StackedNode, at: At, own: Sequence[Expr], lead: int, index: int = 0) -> Read:
    return placed.node.operands[index], (*lead_of(at, placed.given[index], lead), *own)


def _transpose(
    stacked: StackedNode, result: int, at: At, draft: Draft, sizes: Sequence[int]
) -> Read:
    lead, op = len(sizes), stacked.node.op
    assert isinstance(op, Transpose)
    own: list[Expr] = [ZERO] * len(op.permutation)
    for target, source in enumerate(op.permutation):
        own[source] = at[lead + target]
    return _operand(stacked, at, own, lead)


def _broadcast_in_dim(
    stacked: StackedNode, result: int, at: At, draft: Draft, sizes: Sequence[int]
) -> Read:
    lead, op = len(sizes), stacked.node.op
    assert isinstance(op, BroadcastInDim)
    shape = tensor_of(stacked.node.operands[0]).sizes
    own = [
        ZERO if size == 1 else at[lead + target]
        for size, target in zip(shape, op.broadcast_dimensions, strict=True)
    ]
    return _operand(stacked, at, own, lead)


def _broadcast(
    stacked: StackedNode, result: int, at: At, draft: Draft, sizes: Sequence[int]
) -> Read:
    op = stacked.node.op
    assert isinstance(op, Broadcast)
    lead = len(sizes)
    return _operand(stacked, at, at[lead + len(op.broadcast_sizes) :], lead)


def _reshape(
    stacked: StackedNode, result: int, at: At, draft: Draft, sizes: Sequence[int]
) -> Read | Split | None:
    lead, node = len(sizes), stacked.node
    shape, to = tensor_of(node.results[0]).sizes, tensor_of(node.operands[0]).sizes
    own = reshaped(at[lead:], shape, to, draft.size)
    return _operand(stacked, at, own, lead) if isinstance(own, tuple) else own


def _slice(stacked: StackedNode, result: int, at: At, draft: Draft, sizes: Sequence[int]) -> Read:
    lead, op = len(sizes), stacked.node.op
    assert isinstance(op, Slice)
    own = [
        times(expr, stride, start)
        for expr, stride, start in zip(at[lead:], op.strides, op.start_indices, strict=True)
    ]
    return _operand(stacked, at, own, lead)


def _reverse(stacked: StackedNode, result: int, at: At, draft: Draft, sizes: Sequence[int]) -> Read:
    lead, op = len(sizes), stacked.node.op
    assert isinstance(op, Reverse)
    shape = tensor_of(stacked.node.operands[0]).sizes
    own = [
        times(expr, -1, size - 1) if dim in op.dimensions else expr
        for dim, (expr, size) in enumerate(zip(at[lead:], shape, strict=True))
    ]
    return _operand(stacked, at, own, lead)


def _same(placed: StackedNode, result: int, at: At, draft: Draft, sizes: Sequence[int]) -> Read:
    lead = len(sizes)
    return _operand(placed, at, at[lead:], lead, result)


def _all_gather(
    stacked: StackedNode, result: int, at: At, draft: Draft, sizes: Sequence[int]
) -> Read | Split | None:
    """The devices' pieces concatenated along a dim: the index determines the device."""
    lead, op = len(sizes), stacked.node.op
    assert isinstance(op, AllGather)
    length = tensor_of(stacked.node.operands[result]).sizes[op.all_gather_dim]
    found = _whose(stacked, at, lead + op.all_gather_dim, length, draft, sizes)
    if not isinstance(found, tuple):
        return found
    return _operand(stacked, found, found[lead:], lead, result)


def _all_to_all(
    stacked: StackedNode, result: int, at: At, draft: Draft, sizes: Sequence[int]
) -> Read | Split | None:
    """The pieces of all devices for this one, concatenated."""
    lead, op = len(sizes), stacked.node.op
    assert isinstance(op, AllToAll) and stacked.along is not None
    split, concat = lead + op.split_dimension, lead + op.concat_dimension
    out_sizes = tensor_of(stacked.node.results[result]).sizes
    length = out_sizes[op.concat_dimension] // op.split_count
    source_at = _whose(stacked, at, concat, length, draft, sizes)
    if not isinstance(source_at, tuple):
        return source_at
    # The sender's piece for this device; of one dim both ways it is as long as what is joined.
    piece = length if split == concat else out_sizes[op.split_dimension]
    mine = index_along(at, stacked.along, sizes)
    own = [
        plus(times(mine, piece), e) if d == split else e
        for d, e in enumerate(source_at[lead:], lead)
    ]
    return _operand(stacked, source_at, own, lead, result)


def _all_slice(
    stacked: StackedNode, result: int, at: At, draft: Draft, sizes: Sequence[int]
) -> Read:
    """The device's own piece along each split dim."""
    lead, node = len(sizes), stacked.node
    assert stacked.along is not None
    axes = iter(stacked.along)
    own: list[Expr] = []
    whole, piece = tensor_of(node.operands[0]).sizes, tensor_of(node.results[0]).sizes
    for expr, size, part in zip(at[lead:], whole, piece, strict=True):
        mine, count = ZERO, 1
        # `along` lists the axes of all split dims one after another: a dim takes as many of them as
        # multiply to the number of its pieces.
        while count * part < size:
            dim = next(axes)
            mine, count = plus(times(mine, sizes[dim]), at[dim]), count * sizes[dim]
        own.append(plus(times(mine, part), expr))
    return _operand(stacked, at, own, lead)


def _first(stacked: StackedNode, result: int, at: At, draft: Draft, sizes: Sequence[int]) -> Read:
    """The value of a group's first device."""
    lead = len(sizes)
    assert stacked.along is not None
    there = tuple([ZERO if d in stacked.along else e for d, e in enumerate(at[:lead])])
    return _operand(stacked, there, at[lead:], lead, result)


def stays(stacked: StackedNode) -> bool:
    """Whether a permute is the identity."""
    if stacked.along is None or min(stacked.sources, default=0) < 0:
        return False
    # Or the operand is equal along the axes: whatever device it comes from.
    moved = sum(1 << d for d in stacked.along)
    still = stacked.sources == tuple(range(len(stacked.sources)))
    return still or not any(mask & moved for mask in stacked.given)


def divides(node: Node) -> bool:
    """Whether the sizes divide evenly, without padding."""
    whole, piece = tensor_of(node.operands[0]).sizes, tensor_of(node.results[0]).sizes
    return all(b and a % b == 0 for a, b in zip(whole, piece, strict=True))


def _whose(
    stacked: StackedNode, at: At, dim: int, length: int, draft: Draft, sizes: Sequence[int]
) -> At | Split | None:
    """Indices into a dim of concatenated device pieces: the device, and the index in its piece."""
    assert stacked.along is not None
    parts = (*(sizes[d] for d in stacked.along), length)
    digits = taken_apart(at[dim], parts, draft.size)
    if not isinstance(digits, tuple):
        return digits
    there = list(at)
    for where, expr in zip(stacked.along, digits, strict=False):
        there[where] = expr
    there[dim] = digits[-1]
    return tuple(there)


def index_along(at: At, dims: Sequence[int], sizes: Sequence[int]) -> Expr:
    """The device's position along leading dims, major first."""
    found = ZERO
    for dim in dims:
        found = plus(times(found, sizes[dim]), at[dim])
    return found


VIEWS: dict[type[Op], View] = {
    Transpose: _transpose,
    BroadcastInDim: _broadcast_in_dim,
    Broadcast: _broadcast,
    Reshape: _reshape,
    Slice: _slice,
    Reverse: _reverse,
    OptimizationBarrier: _same,
    AllGather: _all_gather,
    AllToAll: _all_to_all,
    AllSlice: _all_slice,
    CollectiveBroadcast: _first,
    CollectivePermute: _same,
    PermuteAlongAxes: _same,
}


def is_alias(node: Node) -> bool:
    """Whether a node's result can alias its operand: same elements in the same order."""
    return isinstance(node.op, Reshape | OptimizationBarrier)
