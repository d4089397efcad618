"""Dynamic slices and updates along split dims: each device handles its own shard."""

from __future__ import annotations

import numpy as np

from weft.ir.module import Node, Value
from weft.ir.rule import Rule, RuleBuilder
from weft.ir.types import I32, DType, TensorType
from weft.mesh.algebra import Axes, DimAxes
from weft.ops.combiners import in_dtype
from weft.ops.elementwise.convert import Convert
from weft.ops.elementwise.pointwise import Add, And, Clamp, Select, Subtract
from weft.ops.slicing import DynamicSlice, DynamicUpdateSlice, Pad
from weft.partition.builder import Builder
from weft.partition.partitioners.halo import inside, resized, slice_between, starts_at
from weft.partition.piece import Partial, Piece
from weft.partition.site import NodeSite, tensor
from weft.records import dataclass

_SCALAR = TensorType((), I32)


@dataclass(frozen=True, slots=True)
class Overlap:
    """The overlap of a slice with a device's shard along a dim, of one size on all devices."""

    count: int
    at: Value  # its offset in the shard
    shift: Value  # its offset in the slice; out of range without an overlap


def slice_rules(node: Node, splits: tuple[DimAxes, ...]) -> tuple[Rule, ...]:
    """A sliced dim may stay split: devices contribute their part of the slice, or zeros."""
    op = node.op
    assert isinstance(op, DynamicSlice)
    operand, out = tensor(node.operand_types[0]), tensor(node.types[0])
    none = [None] * (len(node.operands) - 1)
    builder = RuleBuilder(tuple(tensor(t) for t in node.operand_types), (out,))
    has_zero = not np.zeros((), np.int32).astype(operand.dtype.numpy).astype(np.complex64)
    for dim, size in enumerate(operand.bounds):
        if size == out.bounds[dim]:
            builder.factor([dim, *none], [dim], size)
        elif has_zero:
            builder.factor([dim, *none], [None], size, "reduction", needs_offset=True)
    return (builder.build(),)


def dynamic_slice(site: NodeSite) -> tuple[Piece, ...]:
    """Each device's part of the slice, a partial sum."""
    op, (operand, *start_pieces) = site.node.op, site.operands
    assert isinstance(op, DynamicSlice)
    if not tensor(site.local_types()[0]).size:
        return site.zeros()
    starts = [p.value for p in start_pieces]
    cut = _cut(operand, op.slice_sizes)
    out = tensor(site.local_types()[0])
    if not cut:
        return site.result_pieces(*site.add(DynamicSlice(out.sizes), (operand.value, *starts)))
    builder, sizes, overlaps = site.builder, list(out.sizes), {}
    unreduced: Axes = ()
    # Clamped to the global operand before they are made relative: StableHLO clamps the start of the
    # whole slice, which a shard's own clamp cannot reproduce.
    for dim in range(out.rank):
        starts[dim] = _clamped(builder, starts[dim], operand.type.sizes[dim] - op.slice_sizes[dim])
    for dim in cut:
        overlaps[dim] = _overlap(site, operand, dim, starts[dim], op.slice_sizes[dim])
        starts[dim], sizes[dim] = overlaps[dim].at, overlaps[dim].count
        unreduced = (*unreduced, *operand.split[dim])
    value = builder.emit(DynamicSlice(tuple(sizes)), operand.value, *starts)
    for dim in cut:
        value = _in_slice(builder, value, dim, overlaps[dim], op.slice_sizes[dim])
    partial = Partial(unreduced, in_dtype("add", out.dtype))
    return (Piece(value, tensor(site.node.types[0]), site.splits[0], partial),)


def update_slice(site: NodeSite) -> tuple[Piece, ...]:
    """Each device writes the part of the update that hits its shard."""
    operand, update, *given = site.operands
    starts, new, builder = [p.value for p in given], update.value, site.builder
    sizes = update.type.sizes
    cut = _cut(operand, sizes)
    if not cut:
        return site.plain()
    if not tensor(operand.value.type).size or not tensor(new.type).size:
        return site.result_pieces(operand.value)
    for dim in range(operand.type.rank):
        starts[dim] = _clamped(builder, starts[dim], operand.type.sizes[dim] - sizes[dim])
    checks: list[tuple[int, Value, int, int]] = []
    for dim in cut:
        overlap = _overlap(site, operand, dim, starts[dim], sizes[dim])
        new = _from_slice(builder, new, dim, overlap)
        checks.append((dim, overlap.shift, 0, sizes[dim]))
        starts[dim] = overlap.at
    result_type = tensor(new.type)
    # Devices that the update misses, or meets in part, write back what was there: the update has
    # one static size on all devices.
    old = builder.emit(DynamicSlice(result_type.sizes), operand.value, *starts)
    mask = inside(builder, result_type, *checks[0])
    for check in checks[1:]:
        mask = builder.emit(And(), mask, inside(builder, result_type, *check))
    new = builder.emit(Select(), mask, new, old)
    return site.result_pieces(*site.add(DynamicUpdateSlice(), (operand.value, new, *starts)))


def _cut(operand: Piece, sizes: tuple[int, ...]) -> list[int]:
    """The dims that are split and sliced."""
    pairs = zip(operand.split, sizes, operand.type.sizes, strict=True)
    return [d for d, (axes, size, room) in enumerate(pairs) if axes and size != room]


def _clamped(builder: Builder, start: Value, high: int) -> Value:
    """A start index in i32, clamped to the operand."""
    operand_type = tensor(start.type)
    # The limit may not be representable in a narrow index type, which then cannot reach it either.
    most = 2 ** (operand_type.dtype.bits - (operand_type.dtype.kind == "int")) - 1
    low = builder.splat(0, operand_type)
    moved = builder.emit(Clamp(), low, start, builder.splat(min(high, most), operand_type))
    return moved if operand_type is _SCALAR else builder.emit(Convert(_SCALAR), moved)


def _number(builder: Builder, number: int) -> Value:
    return builder.constant(np.asarray(number, np.int32))


def _overlap(site: NodeSite, operand: Piece, dim: int, start: Value, size: int) -> Overlap:
    builder, axes = site.builder, operand.split[dim]
    piece = tensor(operand.value.type).sizes[dim]
    count = min(piece, size)
    # `own` is the start relative to the shard; a window of `count` elements there, moved into the
    # shard, begins `shift` elements into the slice, and beyond its ends if they do not overlap.
    own = builder.emit(Subtract(), start, site.start(axes, piece))
    zero, last = _number(builder, 0), _number(builder, piece - count)
    at = builder.emit(Clamp(), zero, own, last)
    shift = builder.emit(Subtract(), at, own)
    low, high = _number(builder, -count), _number(builder, size)
    return Overlap(count, at, builder.emit(Clamp(), low, shift, high))


def _in_slice(builder: Builder, value: Value, dim: int, overlap: Overlap, size: int) -> Value:
    """The slice with a shard's elements at their positions, and zeros elsewhere."""
    operand_type = tensor(value.type)
    if size == 1:
        mask = inside(builder, operand_type, dim, overlap.shift, 0, 1)
        return builder.emit(
            Select(), mask, value, builder.splat(_nothing(operand_type.dtype), operand_type)
        )
    count = overlap.count
    # With a margin on both sides, in which a part that is outside of the slice lands.
    room = builder.splat(_nothing(operand_type.dtype), resized(operand_type, dim, size + 2 * count))
    at = builder.emit(Add(), overlap.shift, _number(builder, count))
    where = starts_at(builder, operand_type.rank, dim, at)
    made = builder.emit(DynamicUpdateSlice(), room, value, *where)
    return slice_between(builder, made, dim, count, count + size)


def _nothing(dtype: DType) -> object:
    """The identity of addition: -0.0 for floats, which keeps the sign of zeros."""
    if dtype.is_complex:
        return complex(-0.0, -0.0)
    return -0.0 if dtype.is_float else 0


def _from_slice(builder: Builder, value: Value, dim: int, overlap: Overlap) -> Value:
    """The elements of an update that may hit a shard."""
    operand_type = tensor(value.type)
    count, size = overlap.count, operand_type.sizes[dim]
    if size == 1:
        return value
    none = (0,) * operand_type.rank
    edge = tuple(count if d == dim else 0 for d in range(operand_type.rank))
    padded = builder.emit(
        Pad(edge, edge, none), value, builder.splat(0, operand_type.with_shape(()))
    )
    at = builder.emit(Add(), overlap.shift, _number(builder, count))
    where = starts_at(builder, operand_type.rank, dim, at)
    return builder.emit(DynamicSlice(resized(operand_type, dim, count).sizes), padded, *where)
