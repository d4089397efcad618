"""Partial sums: making values unreduced, and linear ops on unreduced values."""

from __future__ import annotations

import numpy as np

from weft.ir.module import Node, Value
from weft.ir.op import Op
from weft.ir.op import rule as rule_of
from weft.ir.types import TensorType
from weft.mesh import Mesh
from weft.mesh.algebra import Axes, DimAxes, total_size
from weft.ops.elementwise.convert import Convert
from weft.ops.elementwise.pointwise import Add, Divide, Multiply, Negate, Select, Subtract
from weft.ops.shape import BroadcastInDim, Reshape, Reverse, Transpose
from weft.ops.slicing import Concatenate, DynamicSlice, DynamicUpdateSlice, Slice
from weft.partition.builder import Builder
from weft.partition.context import Context
from weft.partition.piece import Partial, Piece, local_type, split_of
from weft.partition.strategy.factors import project, split_by_factors

# Linear ops, and the operands that they are jointly linear in: all of them if none is listed. A
# product is linear in either one.
_LINEAR: dict[type[Op], tuple[int, ...]] = {
    Add: (0, 1),
    BroadcastInDim: (0,),
    Concatenate: (),
    Convert: (0,),
    Divide: (0,),
    DynamicSlice: (0,),
    DynamicUpdateSlice: (0, 1),
    Multiply: (0, 1),
    Negate: (0,),
    Reshape: (0,),
    Reverse: (0,),
    Select: (1, 2),
    Slice: (0,),
    Subtract: (0, 1),
    Transpose: (0,),
}


def unreduced_of(placed: Piece) -> Axes:
    """The axes that a value is unreduced over."""
    return placed.partial.axes if placed.partial else ()


def still_unreduced(placed: Piece, unreduced: Axes) -> Axes:
    """The axes, if the value is unreduced over them already."""
    return unreduced if unreduced == unreduced_of(placed) else ()


def before_unreduced(piece: Piece, split: DimAxes, unreduced: Axes, mesh: Mesh) -> DimAxes:
    """The split of a value before it is made unreduced over axes.

    Dims that are split by these axes stay so: their shards are summands already.
    """
    if piece.partial is not None or not unreduced:
        return split
    dims = list(split)
    for dim, (given, wanted) in enumerate(zip(piece.split, split, strict=True)):
        pieces = (*wanted, *[axis for axis in given if axis in unreduced])
        if given == pieces and piece.type.sizes[dim] % total_size(pieces, mesh) == 0:
            dims[dim] = pieces
    return tuple(dims)


def made_unreduced(builder: Builder, piece: Piece, split: DimAxes, unreduced: Axes) -> Piece:
    """The value made unreduced over axes: one device along them has it, the others zeros.

    Along axes that split a dim, each device has its shard, padded with zeros.
    """
    if not unreduced or piece.partial is not None:
        return piece
    value, pieces = piece.value, piece.split
    for dim, (given, wanted) in enumerate(zip(pieces, split, strict=True)):
        axes = given[len(wanted) :]
        if axes:
            value = _zero_padded_shard(builder, value, dim, axes)
    spread = {axis for axes in pieces for axis in axes}
    if rest := tuple(axis for axis in unreduced if axis not in spread):
        value = builder.only_first(value, rest, 0)
    return piece.moved(value, split, Partial(unreduced, "add"))


def _zero_padded_shard(builder: Builder, piece: Value, dim: int, axes: Axes) -> Value:
    """A dim of global size with the device's shard at its offset, zeros elsewhere."""
    assert isinstance(piece.type, TensorType)
    sizes = list(piece.type.sizes)
    start = builder.scaled(builder.index(axes), sizes[dim])
    sizes[dim] *= total_size(axes, builder.mesh)
    zero = builder.constant(np.asarray(0, np.int32))
    starts = [start if d == dim else zero for d in range(len(sizes))]
    zeros = builder.splat(0, piece.type.with_shape(tuple(sizes)))
    return builder.emit(DynamicUpdateSlice(), zeros, piece, *starts)


def keeps_unreduced(context: Context, node: Node) -> bool:
    """Whether a linear op of partial sums stays a partial sum; if so, it is emitted."""
    if type(node.op) not in _LINEAR:
        return False
    (result,) = node.results
    sharding = context.program.sharding(result)
    if sharding is None or not sharding.unreduced or not isinstance(result.type, TensorType):
        return False
    partial = Partial(sharding.unreduced, "add")
    are_partial = [context.first(value).partial == partial for value in node.operands]
    carriers = _carriers(node.op, are_partial)
    split = split_of(sharding, result.type.rank)
    sources = _sources(node, split, context.mesh)
    if carriers is None or sources is None:
        return False
    operands = [
        context.fetch(value, source, partial.axes if carries else ())
        for value, source, carries in zip(node.operands, sources, carriers, strict=True)
    ]
    type_ = local_type(result.type, split, context.mesh)
    op = node.op.local(tuple(p.value.type for p in operands), (type_,))
    made = Node(op, tuple(p.value for p in operands), (type_,), (), node.attrs, node.loc)
    (value,) = context.builder.add(made)
    context.define(result, Piece(value, result.type, split, partial), context.wanted(result))
    return True


def _carriers(op: Op, are_partial: list[bool]) -> list[bool] | None:
    """The operands that the op is linear in; None if it is not linear in the partial ones.

    One that is not a partial sum is counted once: one device has it, the others zeros.
    """
    together = _LINEAR[type(op)]
    carriers = [not together or n in together for n in range(len(are_partial))]
    if isinstance(op, Multiply):
        carriers = are_partial
    elsewhere = any(o and not c for o, c in zip(are_partial, carriers, strict=True))
    if not any(are_partial) or elsewhere or (isinstance(op, Multiply) and all(are_partial)):
        return None
    return carriers


def _sources(node: Node, split: DimAxes, mesh: Mesh) -> list[DimAxes] | None:
    """The operand splits that give the result this split without communication."""
    rule = rule_of(node.op, node.operand_types, node.bodies)
    axes_of = project(split, rule.results[0], rule, mesh)
    by_factor = tuple([axes_of.get(n, ()) for n in range(len(rule.factors))])
    # A sliced dim, or one that an operand lacks, cannot be computed shard by shard.
    cut = [f.role != "pass" or f.needs_offset for f in rule.factors]
    if any(axes and is_cut for axes, is_cut in zip(by_factor, cut, strict=True)):
        return None
    if split_by_factors(by_factor, rule.results[0], rule, mesh) != split:
        return None
    sources = [split_by_factors(by_factor, dims, rule, mesh) for dims in rule.operands]
    return None if None in sources else [s for s in sources if s is not None]
