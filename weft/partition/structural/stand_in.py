"""Ops that are rewritten into simpler ones before partitioning."""

from __future__ import annotations

from collections.abc import Callable

from weft.ir.location import Location
from weft.ir.module import Node, Region, Value, apply
from weft.ir.op import Op
from weft.ir.types import TensorType
from weft.ops.combiners import combiner
from weft.ops.dynamic import (
    DynamicBroadcastInDim,
    DynamicConv,
    DynamicGather,
    DynamicIota,
    DynamicPad,
    DynamicReshape,
    RealDynamicSlice,
)
from weft.ops.index import Gather, GatherDims, TorchIndexSelect, gather_windows
from weft.ops.shape import BroadcastInDim, Iota, Reshape
from weft.ops.slicing import Pad, Slice
from weft.partition.context import Context


class GlobalNodes:
    """Nodes of the global program, in order, at one location."""

    def __init__(self, loc: Location) -> None:
        self.nodes: list[Node] = []
        self.loc = loc

    def add(self, op: Op, *operands: Value, regions: tuple[Region, ...] = ()) -> Value:
        """Apply an op with one result."""
        self.nodes.append(apply(op, *operands, regions=regions, loc=self.loc))
        return self.nodes[-1].results[0]


def add_region(type: TensorType, loc: Location) -> Region:
    """The region that adds two scalars of a type."""
    region = combiner("add", type)
    for node in region.nodes:
        node.loc = loc
    return region


def stand_in(context: Context, node: Node, nodes: list[Node], results: tuple[Value, ...]) -> None:
    """Partition nodes that replace another one, with its result shardings."""
    context.program.stands_for.update(zip(results, node.results, strict=True))
    for each in nodes:
        context.builder.loc = each.loc
        context.node(each)
    for old, new in zip(node.results, results, strict=True):
        context.entries[old] = context.entries[new]


def one_op(make: Callable[[Node], Op | None], count: int = 1) -> Callable[[Context, Node], None]:
    """A handler that replaces an op by another on its first operands, if possible."""

    def partition(context: Context, node: Node) -> None:
        is_static = all(isinstance(t, TensorType) and t.is_static for t in node.types)
        op = make(node) if is_static else None
        if op is None:
            context.compute(node)
            return
        made = apply(op, *node.operands[:count], loc=node.loc)
        stand_in(context, node, [made], made.results)

    return partition


def known_numbers(value: Value) -> tuple[int, ...] | None:
    """The integers of a constant, in row-major order; None for other values."""
    held = getattr(value.node.op, "value", None) if value.node is not None else None
    return None if held is None else tuple(int(n) for n in held.array.reshape(-1))


def _reshape(node: Node) -> Op | None:
    return Reshape(_out(node))


def _broadcast(node: Node) -> Op | None:
    assert isinstance(node.op, DynamicBroadcastInDim)
    return BroadcastInDim(node.op.broadcast_dimensions, _out(node))


def _iota(node: Node) -> Op | None:
    assert isinstance(node.op, DynamicIota)
    return Iota(node.op.iota_dimension, _out(node))


def _pad(node: Node) -> Op | None:
    low, high, between = (known_numbers(v) for v in node.operands[2:])
    if low is None or high is None or between is None:
        return None
    return Pad(low, high, between)


def _slice(node: Node) -> Op | None:
    starts, ends, steps = (known_numbers(v) for v in node.operands[1:])
    if starts is None or ends is None or steps is None:
        return None
    return Slice(starts, ends, steps)


def _conv(node: Node) -> Op | None:
    assert isinstance(node.op, DynamicConv)
    given = known_numbers(node.operands[2])
    if given is None:
        return None
    return node.op.fixed(tuple(zip(given[0::2], given[1::2], strict=True)))


def _gather(node: Node) -> Op | None:
    """A static gather: window sizes are those of the result, and 1 in dims that it lacks."""
    op, operand, out = node.op, node.operands[0].type, _out(node)
    assert isinstance(op, DynamicGather) and isinstance(operand, TensorType)
    windows = gather_windows(op.dimension_numbers)
    sizes = [min(1, size) for size in operand.sizes]  # an empty dim has no window of size 1
    for dim, offset in zip(windows.operand_dims(operand.rank), windows.window, strict=True):
        sizes[dim] = out.sizes[offset]
    return Gather(op.dimension_numbers, tuple(sizes), bool(op.indices_are_sorted))


def _index_select(node: Node) -> Op | None:
    op, (operand, index) = node.op, (v.type for v in node.operands)
    assert isinstance(op, TorchIndexSelect)
    assert isinstance(operand, TensorType) and isinstance(index, TensorType)
    dim = op.dim % operand.rank
    batch = op.batch_dims % index.rank if op.batch_dims < 0 else op.batch_dims
    added = index.rank - batch
    rank = operand.rank - 1 + added
    offsets = tuple(d for d in range(rank) if d >= batch and not dim <= d < dim + added)
    shared = tuple(range(batch))
    dims = GatherDims(offsets, (dim,), shared, shared, (dim,), index.rank)
    sizes = [min(1, n) if d == dim or d < batch else n for d, n in enumerate(operand.sizes)]
    return Gather(dims, tuple(sizes))


def _out(node: Node) -> TensorType:
    (type,) = node.types
    assert isinstance(type, TensorType)
    return type


STAND_INS: dict[type[Op], Callable[[Context, Node], None]] = {
    DynamicReshape: one_op(_reshape),
    DynamicBroadcastInDim: one_op(_broadcast),
    DynamicIota: one_op(_iota, 0),
    DynamicPad: one_op(_pad, 2),
    RealDynamicSlice: one_op(_slice),
    DynamicConv: one_op(_conv, 2),
    DynamicGather: one_op(_gather, 2),
    TorchIndexSelect: one_op(_index_select, 2),
}
