"""Halo exchange: a range of a split dim, fetched from the devices that hold its parts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from weft.ir.module import Value
from weft.ir.types import BOOL, I32, TensorType
from weft.mesh.algebra import Axes, total_size
from weft.ops.distributed.collective import AllGather
from weft.ops.distributed.local import CHANNEL
from weft.ops.elementwise.pointwise import Add, And, Compare
from weft.ops.shape import BroadcastInDim, Reshape
from weft.ops.slicing import Concatenate, DynamicSlice, DynamicUpdateSlice, Slice
from weft.partition.builder import Builder
from weft.partition.partitioners.exchange import (
    DeviceTable,
    DimRanges,
    PieceExchange,
    Slab,
    exchange,
    no_exchange,
)
from weft.records import dataclass

_SCALAR = TensorType((), I32)


@dataclass(frozen=True, slots=True)
class HaloPart:
    """A local value, and its offset along a dim on each device."""

    value: Value
    at: DeviceTable
    is_zero_elsewhere: bool  # for devices that do not use it

    @property
    def begin(self) -> int | None:
        """Its offset, if it is the same on all devices."""
        return constant(self.at) if self.is_zero_elsewhere or None not in self.at else None


def fetch(
    builder: Builder,
    value: Value,
    dim: int,
    axes: Axes,
    wanted: DimRanges,
    *,
    is_split: bool = True,
) -> Value:
    """Every device's range of a dim that is split along axes, or replicated.

    Unneeded elements are unspecified; elements beyond the dim are zero.
    """
    out = resized(_tensor(value), dim, wanted.width)
    parts = []
    if out.size:
        parts = parts_of(builder, value, dim, axes, wanted, is_split=is_split)
    return assemble_parts(builder, parts, dim, axes, out)


def parts_of(
    builder: Builder,
    value: Value,
    dim: int,
    axes: Axes,
    wanted: DimRanges,
    *,
    is_split: bool = True,
) -> list[HaloPart]:
    """The parts of every device's range of a dim, split or replicated."""
    given = _tensor(value)
    if not given.size or not any(b < e for b, e in wanted.needs):
        return []
    moves = exchanged(given, dim, wanted) if is_split else None
    # Permutes, unless the ranges overlap so much that one all_gather sends less.
    if moves is not None and not moves.is_gather:
        return [_sent(builder, value, dim, axes, slab) for slab in moves.slabs]
    whole = value if moves is None else _gathered(builder, value, dim, axes)
    slab = no_exchange(wanted, _tensor(whole).sizes[dim])
    return [_sent(builder, whole, dim, axes, slab)]


def exchanged(type: TensorType, dim: int, wanted: DimRanges) -> PieceExchange:
    """The exchange that gives ranges of a dim from shards of that type."""
    if not type.size:
        return PieceExchange((), False, 0.0)
    return exchange(type.sizes[dim], wanted, row_bytes(type, dim))


def row_bytes(type: TensorType, dim: int) -> float:
    """The bytes of one index along a dim."""
    return type.size * type.dtype.bits / 8 / type.sizes[dim] if type.sizes[dim] else 0.0


def resized(type: TensorType, dim: int, size: int) -> TensorType:
    """The type with another size of one dim."""
    return type.with_shape((*type.sizes[:dim], size, *type.sizes[dim + 1 :]))


def _tensor(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type


# Parts


def _sent(builder: Builder, value: Value, dim: int, axes: Axes, slab: Slab) -> HaloPart:
    """A slab's part of a shard, on the taking device."""
    part = slice_from(builder, value, dim, axes, slab.cut, slab.length)
    if slab.sources is not None:
        part = builder.permute_along(part, axes, slab.sources)
    return HaloPart(part, slab.at, slab.sources is not None)


def slice_from(
    builder: Builder, value: Value, dim: int, axes: Axes, starts: DeviceTable, length: int
) -> Value:
    """`length` elements of a dim, from a start per device."""
    local = _tensor(value)
    if length == local.sizes[dim]:
        return value
    known = constant(starts)
    if known is not None:
        return slice_between(builder, value, dim, known, known + length)
    return builder.emit(
        DynamicSlice(resized(local, dim, length).sizes),
        value,
        *starts_at(builder, local.rank, dim, device_constant(builder, starts, axes)),
    )


def slice_between(builder: Builder, value: Value, dim: int, begin: int, end: int) -> Value:
    """The elements of a dim from one index up to another."""
    local = _tensor(value)
    if begin == 0 and end == local.sizes[dim]:
        return value
    starts, limits = [0] * local.rank, list(local.sizes)
    starts[dim], limits[dim] = begin, end
    return builder.emit(Slice(tuple(starts), tuple(limits), (1,) * local.rank), value)


def assemble_parts(
    builder: Builder, parts: Sequence[HaloPart], dim: int, axes: Axes, type: TensorType
) -> Value:
    """A value of that type with parts at their offsets, later ones overwriting earlier ones."""
    at = 0
    run: list[Value] = []
    for part in sorted(parts, key=lambda part: part.begin or 0):
        begin, size = part.begin, _tensor(part.value).sizes[dim]
        # Offsets that differ between devices, or parts that overlap or stick out, cannot be a
        # concatenation, which is static.
        if begin is None or begin < at or begin + size > type.sizes[dim]:
            return _write_parts(builder, parts, dim, axes, type)
        run += _room(builder, type, dim, begin - at)
        run.append(part.value)
        at = begin + size
    run += _room(builder, type, dim, type.sizes[dim] - at)
    return run[0] if len(run) == 1 else builder.emit(Concatenate(dim), *run)


def _room(builder: Builder, made: TensorType, dim: int, size: int) -> list[Value]:
    return [builder.splat(0, resized(made, dim, size))] if size else []


def _write_parts(
    builder: Builder, parts: Sequence[HaloPart], dim: int, axes: Axes, type: TensorType
) -> Value:
    """Parts written into zeros with margins on both sides; unused parts land in the margin."""
    lengths = [_tensor(part.value).sizes[dim] for part in parts]
    known = list(zip(parts, lengths, strict=True))
    low = min(0, *(a for part in parts for a in part.at if a is not None))
    high = max(type.sizes[dim], *(a + n for p, n in known for a in p.at if a is not None))
    # The margins keep every write inside the buffer: dynamic_update_slice clamps starts, which
    # would shift a part that sticks out over others.
    lost = max((n for part, n in known if None in part.at), default=0)
    buffer = builder.splat(0, resized(type, dim, high - low + lost))
    for part in parts:
        places = tuple(high - low if a is None else a - low for a in part.at)
        start = device_constant(builder, places, axes)
        where = starts_at(builder, type.rank, dim, start)
        buffer = builder.emit(DynamicUpdateSlice(), buffer, part.value, *where)
    return slice_between(builder, buffer, dim, -low, type.sizes[dim] - low)


def _gathered(builder: Builder, value: Value, dim: int, axes: Axes) -> Value:
    """All shards concatenated, if the exchange would send more."""
    given = _tensor(value)
    full = resized(given, dim, given.sizes[dim] * total_size(axes, builder.mesh))
    op = AllGather(dim, builder.groups(axes), (full,), CHANNEL, use_global_device_ids=True)
    return builder.emit(op, value)


# Per-device numbers


def constant(numbers: DeviceTable) -> int | None:
    """The common number of all devices that need one, or None."""
    found = {n for n in numbers if n is not None}
    return found.pop() if len(found) == 1 else None


def device_constant(builder: Builder, numbers: DeviceTable, axes: Axes) -> Value:
    """The number of the running device, by its index along axes, as an i32 scalar."""
    # Affine numbers are computed from the index; others need a constant that grows with the mesh.
    line = _line(numbers)
    if line is None:
        # Devices that need no number get any valid one: the slice stays in bounds.
        some = next(n for n in numbers if n is not None)
        known = np.asarray([some if n is None else n for n in numbers], np.int32)
        one = builder.emit(DynamicSlice((1,)), builder.constant(known), builder.index(axes))
        return builder.emit(Reshape(_SCALAR), one)
    slope, first = line
    if slope == 0:
        return builder.constant(np.asarray(first, np.int32))
    scaled = builder.scaled(builder.index(axes), slope)
    if first == 0:
        return scaled
    return builder.emit(Add(), scaled, builder.constant(np.asarray(first, np.int32)))


@lru_cache(maxsize=4096)
def _line(numbers: DeviceTable) -> tuple[int, int] | None:
    """Slope and intercept, if the numbers are affine in the index."""
    known = [(t, n) for t, n in enumerate(numbers) if n is not None]
    (t0, n0), (t1, n1) = known[0], known[-1]
    # From the first and the last number; the check below decides whether the others are on the
    # line.
    slope = (n1 - n0) // (t1 - t0) if t1 > t0 else 0
    first = n0 - slope * t0
    on_it = all(n == first + slope * t for t, n in known)
    return (slope, first) if on_it else None


def inside(
    builder: Builder, type: TensorType, dim: int, start: Value, low: int | None, high: int | None
) -> Value:
    """The mask of low <= start + index along a dim < high, of a tensor's shape."""
    line = TensorType((type.sizes[dim],), I32)
    at = builder.counted(line, 0, start)
    checks = []
    if low is not None:
        checks.append(builder.emit(Compare("GE", "SIGNED"), at, builder.splat(low, line)))
    if high is not None:
        checks.append(builder.emit(Compare("LT", "SIGNED"), at, builder.splat(high, line)))
    mask = checks[0] if len(checks) == 1 else builder.emit(And(), *checks)
    return builder.emit(BroadcastInDim((dim,), type.with_dtype(BOOL)), mask)


def starts_at(builder: Builder, rank: int, dim: int, start: Value) -> list[Value]:
    """Start indices that are zero except in one dim."""
    zero = builder.constant(np.asarray(0, np.int32)) if rank > 1 else start
    return [start if d == dim else zero for d in range(rank)]
