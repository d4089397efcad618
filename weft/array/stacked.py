"""Stacks: the values of all virtual devices as one array, equal pieces stored once."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, final
from weakref import ref

import numpy as np

from weft.array.host import HOST_MEMORY, dense, is_dense
from weft.array.lease import Lease
from weft.array.memory import DeviceBuffer, Memory, on_host
from weft.ir.intern import InternTable
from weft.ir.types import Array
from weft.mesh import Axis, Mesh, Sharding
from weft.mesh.pieces import local_shape
from weft.mesh.sub_axes import SubAxes, common_refinement, span_of, sub_axes_of
from weft.records import dataclass


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Kind:
    """The type of a stack, interned: stacks of one kind are interchangeable for a program."""

    sub_axes: SubAxes
    shape: tuple[int, ...]  # with leading dims
    dtype: np.dtype[Any]
    memory: Memory


def kind_of(
    sub_axes: SubAxes, shape: tuple[int, ...], dtype: np.dtype[Any], memory: Memory = HOST_MEMORY
) -> Kind:
    """The kind of dense stacks of these sub-axes, shape and type, in a memory."""
    return _kind_of(sub_axes, shape, dtype, memory)  # normalized, so that equal kinds have one key


_KINDS: InternTable[tuple[object, ...], Kind] = InternTable()
_kind_of = _KINDS.interned(Kind, 1 << 16)
_MOVING = threading.RLock()  # allocation may run finalizers


@final
@dataclass(slots=True, eq=False)
class Stacked:
    """The pieces of all devices: one leading dim for each sub-axis of the devices.

    A leading dim has size 1 where the value does not vary along that sub-axis. The value is
    immutable; only its memory may move.
    """

    data: Any  # an array, or a device buffer
    sub_axes: SubAxes
    owned: bool = False  # sole reference, so that a donated value may be overwritten
    kind: Kind | None = None  # None unless dense
    address: int = 0  # cached address
    lease: ref[Lease] | None = None  # lease of exported views
    view: Stacked | None = None  # the same memory, in the layout that a program took it in last

    @property
    def lead(self) -> int:
        """The number of leading dims."""
        return len(self.sub_axes.sizes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one device's piece."""
        shape: tuple[int, ...] = self.data.shape
        return shape[self.lead :]

    @property
    def nbytes(self) -> int:
        """The bytes of all distinct pieces."""
        return int(self.data.nbytes)

    def piece(self, place: int) -> Array:
        """The piece of the device at a place of the mesh; a copy of what is not on the host."""
        return np.asarray(on_host(self.part(place)))

    def part(self, place: int) -> Any:
        """The piece of the device at a place, in the memory that it is in: a view."""
        at = []
        for n, (stride, size) in enumerate(
            zip(self.sub_axes.strides, self.sub_axes.sizes, strict=True)
        ):
            at.append(place // stride % size if self.data.shape[n] > 1 else 0)
        if self.is_on_host:
            return self.data[(*at, ...)]  # a view even of a single element
        data: DeviceBuffer = self.data
        row = int(np.ravel_multi_index(at, data.shape[: self.lead]))
        nbytes = math.prod(self.shape) * data.dtype.itemsize
        return data.memory.view(data, row * nbytes, self.shape, data.dtype)

    def rows(self) -> Stacked:
        """A stack of the numbers of its pieces, by their order in memory."""
        head = self.data.shape[: self.lead]
        return Stacked(np.arange(math.prod(head)).reshape(head), self.sub_axes)

    def picked(self, rows: Stacked) -> Stacked:
        """The pieces of these numbers, in the device's memory; the same memory if they are all."""
        before: DeviceBuffer = self.data
        shape, count = (*rows.data.shape, *self.shape), math.prod(before.shape[: self.lead])
        data = before.memory.rows(before, count, rows.data.reshape(-1).tolist(), shape)
        if data.block is before.block:
            return Stacked(data, rows.sub_axes, self.owned, lease=self.lease)
        return Stacked(data, rows.sub_axes, owned=True)

    def pieces(self) -> Array:
        """The pieces of all devices along one leading dim, in the order of the mesh."""
        full = np.broadcast_to(on_host(self.data), (*self.sub_axes.sizes, *self.shape))
        return full.reshape(self.sub_axes.count, *self.shape)

    @property
    def is_writable(self) -> bool:
        """Whether a donated value may be overwritten: no alias and no export of its memory.

        No race with exports: they need a live array, and a donated array is deleted before this.
        """
        return self.owned and (self.lease is None or self.lease() is None)

    def lend(self) -> Lease:
        """Pin the memory for external readers while any of their views is alive."""
        lease = None if self.lease is None else self.lease()
        if lease is None:
            lease = Lease(self.data)
            self.lease = ref(lease)
        return lease

    def located(self) -> Kind:
        """Make the elements row-major, so that the kind is known."""
        if self.is_on_host and not is_dense(self.data):
            with _MOVING:  # once: a result may alias the copy, which is not owned then
                if not is_dense(self.data):
                    self.lease = None  # first: a concurrent export keeps the old memory
                    self.data, self.owned = dense(self.data), True
        self.kind = kind_of(self.sub_axes, self.data.shape, self.data.dtype, self.memory)
        return self.kind

    def locate(self) -> int:
        """The address of the (dense) elements."""
        self.address = self.memory.address(self.data)
        return self.address

    @property
    def is_on_host(self) -> bool:
        """Whether numpy can read it directly."""
        return self.data.__class__ is not DeviceBuffer

    @property
    def memory(self) -> Memory:
        """The memory that holds it."""
        return HOST_MEMORY if self.is_on_host else self.data.memory

    def on_host(self) -> Stacked:
        """A host copy, or itself."""
        return self if self.is_on_host else Stacked(on_host(self.data), self.sub_axes)

    def read_only(self) -> Stacked:
        """The same pieces, read-only."""
        return Stacked(self.data, self.sub_axes)

    def to(self, sub_axes: SubAxes) -> Stacked:
        """The same value over other sub-axes."""
        if sub_axes == self.sub_axes:
            return self
        if not self.is_on_host:
            return self.picked(self.rows().to(sub_axes))
        fine = common_refinement(self.sub_axes, sub_axes)
        split = self._split(fine)
        return Stacked(_merge(split, fine, sub_axes), sub_axes, self.owned, lease=self.lease)

    def _split(self, fine: SubAxes) -> Array:
        shape: list[int] = []
        for n, (stride, size) in enumerate(
            zip(self.sub_axes.strides, self.sub_axes.sizes, strict=True)
        ):
            dims = fine.dims((stride, size))
            assert dims is not None, "finer sub-axes refine every sub-axis"
            shape += [fine.sizes[d] if self.data.shape[n] > 1 else 1 for d in dims]
        data: Array = self.data.reshape(*shape, *self.shape)
        return data


def _merge(data: Array, fine: SubAxes, coarse: SubAxes) -> Array:
    """Merge neighbouring sub-axes; equal along all of them, or broadcast along all."""
    lead = len(fine.sizes)
    full, merged = list(data.shape[:lead]), []
    for span in zip(coarse.strides, coarse.sizes, strict=True):
        dims = fine.dims(span)
        assert dims is not None, "finer sub-axes refine every sub-axis"
        varies = any(data.shape[d] > 1 for d in dims)
        for dim in dims:
            full[dim] = fine.sizes[dim] if varies else 1
        merged.append(span[1] if varies else 1)
    rest = data.shape[lead:]
    if data.shape[:lead] != (*full,):  # keeps the writeable flag of a plain view
        data = np.broadcast_to(data, (*full, *rest))
    return data.reshape(*merged, *rest)


def one_for_all(array: Array, sub_axes: SubAxes, owned: bool = False) -> Stacked:
    """A value that is replicated over all devices."""
    return Stacked(array.reshape((1,) * len(sub_axes.sizes) + array.shape), sub_axes, owned)


def stack(pieces: Array, sub_axes: SubAxes, owned: bool = False) -> Stacked:
    """A stack from all devices' pieces along one leading dim, in the order of the mesh."""
    return Stacked(pieces.reshape(*sub_axes.sizes, *pieces.shape[1:]), sub_axes, owned)


def split(array: Array, sharding: Sharding, mesh: Mesh, sub_axes: SubAxes) -> Stacked:
    """Split a global array by a sharding; padded where a size does not divide.

    No copy is made unless something has to be padded.
    """
    plan = split_plan(array.shape, sharding, mesh, sub_axes)
    if plan is None:  # the sharding's axes do not subdivide these sub-axes
        own = _own_sub_axes(sharding, mesh, sub_axes)
        return stack(split(array, sharding, mesh, own).pieces(), sub_axes)
    return plan.split(array, sub_axes)


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """A plan to split a global array into a stack: reshape, transpose, reshape."""

    room: tuple[int, ...]  # sizes with padding
    apart: tuple[int, ...]  # every dim split into its sub-axes and the rest
    order: tuple[int, ...]  # permutation, sub-axes first
    shape: tuple[int, ...]  # with one leading dim for each sub-axis

    def split(self, array: Array, sub_axes: SubAxes) -> Stacked:
        """The pieces of a global array."""
        owned = False
        if self.room != array.shape:
            padding = [(0, new - size) for new, size in zip(self.room, array.shape, strict=True)]
            array, owned = np.pad(array, padding), True
        apart = array.reshape(self.apart).transpose(self.order)
        return Stacked(apart.reshape(self.shape), sub_axes, owned)


@lru_cache(maxsize=1 << 14)
def split_plan(
    shape: tuple[int, ...], sharding: Sharding, mesh: Mesh, sub_axes: SubAxes
) -> SplitPlan | None:
    """The plan to split arrays of a shape; None if the sharding's axes cut through sub-axes."""
    if _own_sub_axes(sharding, mesh, sub_axes) != sub_axes:
        return None
    local = local_shape(shape, sharding, mesh)
    dims = [dims_along(d.axes, mesh, sub_axes) for d in sharding.dims]
    room = [
        part * math.prod(sub_axes.sizes[d] for d in split)
        for part, split in zip(local, dims, strict=True)
    ]
    apart: list[int] = []
    source: dict[int, int] = {}  # position of each sub-axis in the reshaped array
    local_dims: list[int] = []
    for part, along in zip(local, dims, strict=True):
        for sub_axis in along:
            source[sub_axis] = len(apart)
            apart.append(sub_axes.sizes[sub_axis])
        local_dims.append(len(apart))
        apart.append(part)
    order = [*(source[d] for d in sorted(source)), *local_dims]
    lead = [sub_axes.sizes[d] if d in source else 1 for d in range(len(sub_axes.sizes))]
    return SplitPlan(tuple(room), tuple(apart), tuple(order), (*lead, *local))


def assemble(
    stacked: Stacked, shape: Sequence[int], sharding: Sharding, mesh: Mesh, *, whole: bool = True
) -> Array:
    """Assemble the global array from the pieces of a sharding, without a copy if possible.

    Unreduced pieces are summed. With `whole` false, padding is kept.
    """
    sub_axes, data = stacked.sub_axes, on_host(stacked.data)
    own = _own_sub_axes(sharding, mesh, sub_axes)
    if own != sub_axes:  # axes cut through sub-axes: stack again along finer ones
        return assemble(stack(stacked.pieces(), own), shape, sharding, mesh, whole=whole)
    lead = len(sub_axes.sizes)
    unreduced = [d for d in dims_along(sharding.unreduced, mesh, sub_axes) if data.shape[d] > 1]
    if unreduced:
        # With the dtype: numpy would widen small integers, and change the array's type.
        data = data.sum(tuple(unreduced), keepdims=True, dtype=data.dtype)
    dims = [dims_along(d.axes, mesh, sub_axes) for d in sharding.dims]
    used = {d for along in dims for d in along}
    # [sub-axes, the shape of a piece]. Sub-axes that do not split the value are replicated: take
    # the first piece.
    data = data[tuple([slice(None) if d in used else slice(0, 1) for d in range(lead)])]
    full = [sub_axes.sizes[d] if d in used else 1 for d in range(lead)]
    if data.shape != (*full, *stacked.shape):
        data = np.broadcast_to(data, (*full, *stacked.shape))
    order = [d for d in range(lead) if d not in used]
    room = []
    for n, along in enumerate(dims):
        order += [*along, lead + n]
        room.append(stacked.shape[n] * math.prod(sub_axes.sizes[d] for d in along))
    made: Array = data.transpose(order).reshape(room)
    return made[tuple([slice(size) for size in shape])] if whole else made


def _own_sub_axes(sharding: Sharding, mesh: Mesh, sub_axes: SubAxes) -> SubAxes:
    """The given sub-axes, or finer ones if the sharding's axes cut through them."""
    axes = [*(a for d in sharding.dims for a in d.axes), *sharding.unreduced]
    spans = [span_of(axis, mesh) for axis in axes]
    return sub_axes if sub_axes.dims_of(spans) is not None else sub_axes_of(mesh.size, spans)


def dims_along(axes: Sequence[Axis], mesh: Mesh, sub_axes: SubAxes) -> tuple[int, ...]:
    """The leading dims of these axes, major first."""
    found = sub_axes.dims_of([span_of(axis, mesh) for axis in axes])
    assert found is not None, f"{axes} are no sub-axes of {sub_axes}"
    return found
