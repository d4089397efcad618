"""Arrays: global values split over the devices of a mesh, perhaps still being computed."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from weft.array.addressable import Addressable
from weft.array.device import Device, device_at
from weft.array.exchange import to_jax, to_torch
from weft.array.future import StackFuture
from weft.array.host import HOST_MEMORY, copied
from weft.array.operators import Operators
from weft.array.stacked import Stacked, assemble, split
from weft.errors import WeftError
from weft.ir.intern import InternTable
from weft.ir.types import Array as Numpy
from weft.ir.types import DType, dtype_of
from weft.mesh import Mesh, Sharding
from weft.mesh.pieces import counts, local_shape, piece_at
from weft.mesh.sub_axes import SubAxes, mesh_spans, span_of, sub_axes_of
from weft.records import dataclass
from weft.workers import workers_of

Index = tuple[slice, ...]
CPU = HOST_MEMORY.dlpack_device


@dataclass(frozen=True, slots=True)
class Shard:
    """One device's piece of an array, and its index in the global value."""

    device: Device
    index: Index
    data: Any  # without padding; None if held by another process


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class ArraySpec:
    """The shape, type, sharding and devices of an array.

    Specs are interned, so that equality is identity.
    """

    shape: tuple[int, ...]
    dtype: DType
    sharding: Sharding
    mesh: Mesh
    here: Addressable | None  # this process's devices; None if all

    @property
    def places(self) -> Sequence[int]:
        """The places in the mesh of this process's devices."""
        return range(self.mesh.size) if self.here is None else self.here.places


def array_spec(
    shape: tuple[int, ...],
    dtype: DType,
    sharding: Sharding,
    mesh: Mesh,
    here: Addressable | None = None,
) -> ArraySpec:
    """The interned spec."""
    # With all arguments by position, so that equal specs have one key.
    return _array_spec(shape, dtype, sharding, mesh, here)


@lru_cache(maxsize=1 << 12)
def _is_replicated(spec: ArraySpec) -> bool:
    whole = all(n == 1 for n in counts(spec.sharding, spec.mesh))
    return whole and not spec.sharding.unreduced


_SPECS: InternTable[tuple[object, ...], ArraySpec] = InternTable()
_array_spec = _SPECS.interned(ArraySpec, 1 << 14)


class Array(Operators, StackFuture):
    """A value of a global shape whose pieces are held by the devices of a mesh.

    Its metadata is available before it is ready; access to elements blocks. An error in the
    computation is raised at that point, and propagates to arrays computed from it.

    It passes `isinstance` checks for numpy arrays, so that libraries convert it.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: DType,
        sharding: Sharding,
        mesh: Mesh,
        stacked: Stacked | None = None,
        here: Addressable | None = None,
    ) -> None:
        self.spec = _array_spec(shape, dtype, sharding, mesh, here)
        super().__init__(stacked)

    _committed = False  # read by JAX to place it on devices

    # `isinstance` asks the type first, then this: libraries that convert numpy's arrays take it.
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return np.ndarray

    @classmethod
    def of(cls, stacked: Stacked | None, spec: ArraySpec) -> Array:
        """An array of a known spec, ready or not."""
        array = cls.__new__(cls)
        array.spec = spec
        array.held = stacked
        array._ready = stacked is not None
        return array

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the whole value."""
        return self.spec.shape

    @property
    def element_type(self) -> DType:
        """The type of the elements."""
        return self.spec.dtype

    @property
    def sharding(self) -> Sharding:
        """Its sharding over the mesh."""
        return self.spec.sharding

    @property
    def mesh(self) -> Mesh:
        """The mesh of its devices."""
        return self.spec.mesh

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy type of the elements."""
        return self.spec.dtype.numpy

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of the global value."""
        return self.size * self.itemsize

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return self.dtype.itemsize

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of each device's piece, padding included."""
        return local_shape(self.shape, self.sharding, self.mesh)

    # Pieces and the whole

    @property
    def addressable_shards(self) -> tuple[Shard, ...]:
        """This process's shards, in the order of the mesh; read-only views."""
        lent = self.pinned()
        return tuple(self._shard(lent, place) for place in self.spec.places)

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The shards of all devices; those of other processes without their data."""
        if self.is_fully_addressable:
            return self.addressable_shards
        lent, here = self.pinned(), {*self.spec.places}
        found = [self._shard(lent, place) for place in range(self.mesh.size)]
        return tuple([s if n in here else replace(s, data=None) for n, s in enumerate(found)])

    @property
    def addressable_devices(self) -> tuple[Device, ...]:
        """The devices of this process that hold a shard."""
        return tuple(device_at(self.mesh, n, self.spec.here) for n in self.spec.places)

    def _shard(self, lent: Stacked, place: int) -> Shard:
        device = device_at(self.mesh, place, self.spec.here)
        position = tuple(n for _, n in device.position)
        found = piece_at(position, self.shape, self.sharding, self.mesh)
        index = tuple(slice(a, b) for a, b in found.bounds)
        held = lent.piece(place)
        return Shard(device, index, held[tuple([slice(b - a) for a, b in found.bounds])])

    @property
    def is_fully_addressable(self) -> bool:
        """Whether this process holds all of its devices."""
        return self.spec.here is None

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device holds the global value."""
        return _is_replicated(self.spec)

    @property
    def is_readable(self) -> bool:
        """Whether this process can read all of it; else other workers hold some."""
        here = self.is_fully_addressable or self.is_fully_replicated
        return here or workers_of(self.mesh) is None

    def gathered(self) -> Array:
        """The array itself if this process can read all of it, else a replicated one.

        What several workers hold is sent between them: all of them must call this.
        """
        if self.is_readable:
            return self
        made: Array = self.compute("reshard", (self, None, self.mesh), {})
        return made

    def numpy(self) -> Numpy:
        """The global value, read-only; a view where the pieces are contiguous.

        A live view pins the memory: donating the array does not reuse it.
        """
        if not self.is_fully_replicated:
            return self._whole(self.pinned())
        stacked, lease = self.lend()
        view = lease.view()
        # All devices hold the same piece.
        piece: Numpy = view[(0,) * stacked.lead + (...,)]
        return piece

    def _whole(self, pieces: Stacked) -> Numpy:
        if self.is_fully_replicated:
            return pieces.piece(0)
        if self.spec.here is not None:
            raise self._elsewhere(self.spec.here)
        made = assemble(pieces, self.shape, self.sharding, self.mesh)
        made.flags.writeable = False
        return made

    def _elsewhere(self, here: Addressable) -> WeftError:
        """The error for a global value that spans other processes."""
        return WeftError(
            f"this array is not fully addressable: process {here.index} has "
            f"{len(here.places)} of {here.count} devices, and the array is split over all as "
            f"{self.sharding.body()}",
            help="read addressable_shards, call gathered() on all workers, or have the program "
            "replicate it: out_shardings=P()",
        )

    def _shared(self) -> Numpy:
        """The global value for protocols without read-only arrays, in pinned memory.

        Memory that is read-only in its owner is copied.
        """
        stacked, lease = self.lend()
        if stacked.is_on_host and not stacked.data.flags.writeable:
            return self.numpy().copy()
        made = self._whole(Stacked(lease.writeable_view(), stacked.sub_axes))
        return made if made.flags.writeable else made.copy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Numpy:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(
                    f"elements of {array.dtype} cannot be read as {dtype} without a copy"
                )
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None, **options: Any) -> Any:
        if not self.stacked.is_on_host and options.get("dl_device") != CPU:
            exported = self._on_device()
            if exported is None:
                raise BufferError("the pieces are in a device's memory: ask for device='cpu'")
            return exported.__dlpack__(**options)
        # DLPack has a read-only flag from version 1.0 on.
        if max_version is not None and max_version >= (1, 0):
            return self.numpy().__dlpack__(max_version=max_version, **options)
        return self._shared().__dlpack__(**options)

    def __buffer__(self, flags: int) -> memoryview:  # called by Python 3.12 and newer
        return self.numpy().data

    def __jax_array__(self) -> Any:
        return self.to_jax()

    def __dlpack_device__(self) -> tuple[Any, Any]:
        return self.stacked.memory.dlpack_device

    def to_jax(self) -> Any:
        """The global value as a JAX array, zero-copy where JAX can share the memory."""
        return to_jax(self.numpy())

    @property
    def at(self) -> Any:
        """JAX's `at`: `x.at[index].set(value)` and the like are new arrays of JAX."""
        return self.to_jax().at

    def to_torch(self) -> Any:
        """The global value as a PyTorch tensor that shares the memory: do not write to it."""
        on_device = self._on_device()
        return to_torch(self._shared()) if on_device is None else on_device

    def _on_device(self) -> Any:
        """The whole value where one device's memory holds it, for other packages; or None.

        It may still be computed: later work of the device's stream waits for it.
        """
        held = self.enqueued()
        if (
            held.is_on_host
            or not self.is_fully_replicated
            or held.data.shape[: held.lead] != (1,) * held.lead
        ):
            return None
        return held.memory.exported(held.data.reshape(self.shape))  # type: ignore[attr-defined]

    def item(self, *index: Any) -> Any:
        """The only element, or the one at an index, as a Python number."""
        return self.numpy().item(*index)

    def tolist(self) -> Any:
        """The elements as nested Python lists."""
        return self.numpy().tolist()

    def tobytes(self, order: Literal["C", "F", "A", "K"] = "C") -> bytes:
        """The elements as contiguous bytes."""
        return self.numpy().tobytes(order)

    def copy(self, order: str = "C") -> Array:
        """The same value and sharding in a new buffer."""
        if not self.is_fully_addressable:
            held = self.pinned()
            return Array.of(Stacked(copied(held.data), held.sub_axes, True), self.spec)
        return _rebuilt(self.numpy().copy(), self.sharding, self.mesh)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.numpy(), self.sharding, self.mesh)

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        return operator.index(self.numpy()[()])

    def __bool__(self) -> bool:
        return bool(self.numpy())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without dims has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.numpy())

    def __getitem__(self, index: Any) -> Any:
        """A read-only view of numpy's."""
        return self.numpy()[index]

    def __str__(self) -> str:
        return repr(self) if self.is_deleted or self._error else str(self.numpy())

    def __format__(self, spec: str) -> str:
        return format(self.numpy()[()] if spec else str(self), spec)

    def __repr__(self) -> str:
        state = "deleted" if self.is_deleted else "failed" if self._error else ""
        state = state or ("" if self.is_ready else "not ready")
        shape = "x".join(map(str, (*self.shape, self.element_type.name)))
        return f"<weft.Array {shape} {self.sharding.body()}{' ' if state else ''}{state}>"


def _rebuilt(array: Numpy, sharding: Sharding, mesh: Mesh) -> Array:
    """An array again from its whole value: nothing is unreduced any longer."""
    reduced = replace(sharding, unreduced=())
    stacked = split(array, reduced, mesh, sub_axes_for(reduced, mesh))
    return Array(array.shape, dtype_of(array.dtype), reduced, mesh, stacked)


def sub_axes_for(sharding: Sharding, mesh: Mesh, here: Addressable | None = None) -> SubAxes:
    """The sub-axes of a sharding, refined by the processes."""
    used = [a for dim in sharding.dims for a in dim.axes]
    spans = [span_of(a, mesh) for a in (*used, *sharding.unreduced)]
    absent = () if here is None else here.absent
    return sub_axes_of(mesh.size, [*absent, *mesh_spans(mesh), *spans])
