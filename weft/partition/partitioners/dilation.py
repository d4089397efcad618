"""Views of dilated and padded dims: the positions that each device reads."""

from __future__ import annotations

import numpy as np

from weft.ir.module import Node, Value
from weft.ir.types import Array, TensorType
from weft.mesh.algebra import Axes
from weft.ops.distributed.sharding import ShardyConstant
from weft.ops.elementwise.pointwise import Select
from weft.ops.shape import BroadcastInDim, Constant, Reshape
from weft.ops.slicing import Pad
from weft.partition.builder import Builder
from weft.partition.partitioners.exchange import DimRanges, ranges
from weft.partition.partitioners.halo import device_constant, exchanged, fetch, inside, slice_from
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Dilation:
    """A dilated dim: element k is at position low + k * step."""

    size: int
    low: int = 0
    step: int = 1


@dataclass(frozen=True, slots=True)
class DeviceView:
    """The positions that each device reads: of one count, from a start per device up to a stop."""

    dim: int
    axes: Axes  # the axes that split the dim
    spread: Dilation
    starts: tuple[int, ...]
    width: int
    stops: tuple[int, ...]

    @property
    def firsts(self) -> tuple[int, ...]:
        """The first element in each device's view."""
        # (start - low) / step, rounded up
        return tuple(-((self.spread.low - s) // self.spread.step) for s in self.starts)

    @property
    def ends(self) -> tuple[int, ...]:
        """The end of the elements that each device uses."""
        return tuple(-((self.spread.low - s) // self.spread.step) for s in self.stops)

    @property
    def phases(self) -> tuple[int, ...]:
        """The offset of each device's first element from its start."""
        low, step = self.spread.low, self.spread.step
        pairs = zip(self.firsts, self.starts, strict=True)
        return tuple(low + k * step - s for k, s in pairs)

    @property
    def count(self) -> int:
        """The most elements in a device's view."""
        # The phase of the first element decides how many fit; where it differs by device, 0 gives
        # the most.
        known = set(self.phases)
        phase = known.pop() if len(known) == 1 else 0
        return max(1, (self.width - 1 - phase) // self.spread.step + 1)

    @property
    def wanted(self) -> DimRanges:
        """The element ranges of the views."""
        return ranges(self.firsts, self.count, self.spread.size, self.ends)


@dataclass(frozen=True, slots=True)
class PaddingScalar:
    """The padding scalar of a dilated or padded dim."""

    value: Value | None  # None for zero
    is_zero: bool

    def scalar(self, builder: Builder, type: TensorType) -> Value:
        """The scalar, for tensors of that type."""
        if self.value is None:
            return builder.splat(0, type.with_shape(()))
        return self.value

    def tensor(self, builder: Builder, type: TensorType) -> Value:
        """A splat of the scalar."""
        if self.value is None:
            return builder.splat(0, type)
        return builder.spread(self.value, type)


ZERO = PaddingScalar(None, True)


@dataclass(frozen=True, slots=True)
class DilatedValue:
    """A local value with the dilation and padding that give its device's view."""

    value: Value
    low: int = 0
    high: int = 0
    step: int = 1


def sent_for(view: DeviceView, type: TensorType) -> float:
    """The bytes that a device sends for the views of shards of that type."""
    return exchanged(type, view.dim, view.wanted).bytes


def dilated_view(
    builder: Builder, value: Value, view: DeviceView, fill: PaddingScalar
) -> DilatedValue:
    """Each device's view, with the padding scalar between and around elements."""
    fetched = fetch(builder, value, view.dim, view.axes, view.wanted)
    given = value.type
    assert isinstance(given, TensorType)
    held = given.sizes[view.dim] * len(view.starts)
    fetched = _filled(builder, fetched, view, fill, held)
    step, phases = view.spread.step, set(view.phases)
    if len(phases) == 1:
        low = phases.pop()
        high = view.width - low - (view.count - 1) * step - 1
        return DilatedValue(fetched, low, high, step)
    return DilatedValue(_unrolled(builder, fetched, view, fill))


def _filled(
    builder: Builder, value: Value, view: DeviceView, fill: PaddingScalar, held: int
) -> Value:
    """The view with positions beyond the dim filled.

    `held` elements are in shards, padding included; beyond them there are zeros.
    """
    size, count = view.spread.size, view.count
    ends = zip(view.firsts, view.ends, strict=True)
    pairs = [(k, min(k + count, e)) for k, e in ends if k < e]
    # Fetched elements beyond the shards are zeros already; those of the shards' own padding are
    # arbitrary, and are replaced even if the fill is zero.
    is_before = any(k < 0 for k, _ in pairs) and not fill.is_zero
    limit = held if fill.is_zero else None
    is_behind = any(e > size and (limit is None or max(k, size) < limit) for k, e in pairs)
    if not is_before and not is_behind:
        return value
    local = value.type
    assert isinstance(local, TensorType)
    first = device_constant(builder, view.firsts, view.axes)
    bounds = 0 if is_before else None, size if is_behind else None
    mask = inside(builder, local, view.dim, first, *bounds)
    return builder.emit(Select(), mask, value, fill.tensor(builder, local))


def _unrolled(builder: Builder, value: Value, view: DeviceView, fill: PaddingScalar) -> Value:
    """The view materialized, if the phase differs by device."""
    local = value.type
    assert isinstance(local, TensorType)
    step, none = view.spread.step, [0] * local.rank
    low, high, between = list(none), list(none), list(none)
    # With step - 1 fills before the first element, too, of which each device drops as many as its
    # phase is less: the dilation is static, only the slice is not.
    low[view.dim] = between[view.dim] = step - 1
    high[view.dim] = view.width - (view.count - 1) * step - 1
    scalar = fill.scalar(builder, local)
    padded = builder.emit(Pad(tuple(low), tuple(high), tuple(between)), value, scalar)
    starts = tuple(step - 1 - phase for phase in view.phases)
    return slice_from(builder, padded, view.dim, view.axes, starts, view.width)


def scalar_fill(value: Value, local: Value) -> PaddingScalar:
    """A scalar operand as the padding scalar; None for zero bits known in the global program."""
    known = known_scalar(value)
    if known is None:
        return PaddingScalar(local, False)
    zero = np.zeros((), np.int32).astype(known.dtype).tobytes()
    return PaddingScalar(local, not any(zero) and known.tobytes() == zero)


def known_scalar(value: Value) -> Array | None:
    """The constant scalar of a value of the global program, if known."""
    match value.node:
        case Node(op=Constant(value=known) | ShardyConstant(value=known)):
            return known.elements
        case Node(op=BroadcastInDim() | Reshape(), operands=(inner,)) if inner.type is value.type:
            return known_scalar(inner)
    return None
