"""Arrays: whole values split over the devices of a mesh, perhaps still being computed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.array.device import Device, device_at
from weft.array.exchange import to_jax, to_torch
from weft.array.stacked import Stacked, assemble
from weft.errors import WeftError
from weft.ir.types import Array as Numpy
from weft.ir.types import DType
from weft.mesh import Mesh, Sharding
from weft.mesh.pieces import counts, local_shape, piece_at

Index = tuple[slice, ...]
_LOCK = threading.Lock()  # for a moment each, whatever the array


@dataclass(frozen=True, slots=True)
class Shard:
    """What one device holds of an array: its piece, and where that lies in the whole."""

    device: Device
    index: Index
    data: Numpy  # without padding


class Array:
    """A value of a global shape whose pieces the devices of a mesh hold.

    It may be asked for anything before it is ready; whoever needs the elements waits. An error in
    what computes it is raised then, and by whatever was computed from it.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: DType,
        sharding: Sharding,
        mesh: Mesh,
        stacked: Stacked | None = None,
    ) -> None:
        self.shape = shape
        self.element_type = dtype
        self.sharding = sharding
        self.mesh = mesh
        self._stacked = stacked
        self._error: BaseException | None = None
        self._deleted: str | None = None
        self._ready = stacked is not None  # the elements, or an error, are there
        self._waiting: threading.Event | None = None  # made by who waits first
        self._claims = 0  # by those who take the elements even if the array is deleted
        self._helper: Callable[[Array], None] | None = None

    @classmethod
    def of(cls, stacked: Stacked, place: tuple[tuple[int, ...], DType, Sharding, Mesh]) -> Array:
        """An array whose elements are there: its shape, element type, sharding and mesh."""
        return cls(*place, stacked)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy type of the elements."""
        return self.element_type.numpy

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """The bytes of the whole value."""
        return self.size * self.dtype.itemsize

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of each device's piece, padding included."""
        return local_shape(self.shape, self.sharding, self.mesh)

    # Ready, failed, deleted

    def helped_by(self, helper: Callable[[Array], None]) -> Array:
        """Have somebody asked who may do the work, before it is waited for."""
        self._helper = helper
        return self

    def resolve(self, stacked: Stacked) -> None:
        """Give the elements that others wait for."""
        self._stacked = stacked
        self._helper = None
        self._tell()

    def fail(self, error: BaseException) -> None:
        """Say that there will be no elements, and why."""
        self._error = error
        self._tell()

    def failed(self, error: BaseException) -> Array:
        """The array itself, after it was said why there will be no elements."""
        self.fail(error)
        return self

    def _tell(self) -> None:
        """Let those go on who wait."""
        with _LOCK:
            self._ready = True
            if self._waiting is not None:
                self._waiting.set()

    @property
    def is_ready(self) -> bool:
        """Whether the elements, or an error, are there."""
        return self._ready

    def wait(self, timeout: float | None = None) -> Array:
        """Wait until the elements are there; raise what has kept them from it."""
        if not self._ready and (helper := self._helper) is not None:
            helper(self)
        if not self._ready and not self._event().wait(timeout):
            raise WeftError(
                f"an array is not ready after {timeout} seconds",
                help="wait longer; does the program run for ever, or wait for itself?",
            )
        if self._error is not None:
            raise self._error
        return self

    block_until_ready = wait

    def _event(self) -> threading.Event:
        """What is set when the array is ready."""
        with _LOCK:
            if self._waiting is None:
                self._waiting = threading.Event()
            if self._ready:
                self._waiting.set()
            return self._waiting

    @property
    def error(self) -> BaseException | None:
        """What has kept the elements from being computed, if something has."""
        return self._error

    def delete(self, why: str = "deleted") -> None:
        """Give the memory back; whoever asks for the elements from now on is told why."""
        with _LOCK:
            self._deleted = self._deleted or why
            if not self._claims:
                self._stacked = None

    def claim(self) -> None:
        """Have the elements kept for somebody who takes them when they are ready."""
        with _LOCK:
            self._claims += 1

    def take(self) -> Stacked:
        """Wait for elements that were claimed, and take them out of the array if it is deleted."""
        self.wait()
        with _LOCK:
            found = self._stacked
            assert found is not None
            self._claims -= 1
            if self._deleted is not None and not self._claims:
                self._stacked = None
            return found

    @property
    def is_deleted(self) -> bool:
        """Whether the elements are gone."""
        return self._deleted is not None

    @property
    def stacked(self) -> Stacked:
        """The pieces of all devices."""
        self.check_alive()
        self.wait()
        found = self._stacked
        if found is None:
            self.check_alive()
        assert found is not None
        return found

    def check_alive(self) -> None:
        """Refuse an array whose elements are gone."""
        if self._deleted is not None:
            raise WeftError(
                f"this array was {self._deleted}: its elements are gone",
                help="keep a copy, or do not donate what is still needed",
            )

    # Pieces and the whole

    @property
    def shards(self) -> tuple[Shard, ...]:
        """What each device holds, in the order of the mesh."""
        return tuple(self._shard(place) for place in range(self.mesh.size))

    def _shard(self, place: int) -> Shard:
        device = device_at(self.mesh, place)
        position = tuple(n for _, n in device.position)
        found = piece_at(position, self.shape, self.sharding, self.mesh)
        index = tuple(slice(a, b) for a, b in found.bounds)
        held = self.stacked.piece(place)
        return Shard(device, index, held[tuple([slice(b - a) for a, b in found.bounds])])

    @property
    def is_one_shard(self) -> bool:
        """Whether every device holds the whole value."""
        whole = all(n == 1 for n in counts(self.sharding, self.mesh))
        return whole and not self.sharding.unreduced

    def numpy(self) -> Numpy:
        """The whole value; a view where the pieces lie side by side in memory already."""
        stacked = self.stacked
        if self.is_one_shard:
            return stacked.piece(0)
        return assemble(stacked, self.shape, self.sharding, self.mesh)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Numpy:
        made = self.numpy()
        if dtype is not None and made.dtype != dtype:
            if copy is False:
                raise ValueError(f"elements of {made.dtype} are no {dtype} without a copy")
            return made.astype(dtype)
        return made.copy() if copy else made

    def __dlpack__(self, **options: Any) -> Any:
        return _contiguous(self.numpy()).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[Any, Any]:
        return (1, 0)  # the CPU

    def to_jax(self) -> Any:
        """The whole value as an array of JAX, without a copy where JAX can share the memory."""
        return to_jax(self.numpy())

    def to_torch(self) -> Any:
        """The whole value as a tensor of PyTorch that shares the memory."""
        return to_torch(self.numpy())

    def item(self) -> Any:
        """The only element, as Python has it."""
        return self.numpy().item()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without dims has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.numpy())

    def __getitem__(self, index: Any) -> Any:
        return self.numpy()[index]

    def __repr__(self) -> str:
        state = "deleted" if self.is_deleted else "failed" if self._error else ""
        state = state or ("" if self.is_ready else "not ready")
        shape = "x".join(map(str, (*self.shape, self.element_type.name)))
        return f"<weft.Array {shape} {self.sharding.body()}{' ' if state else ''}{state}>"


def _contiguous(array: Numpy) -> Numpy:
    """An array that others may hold: DLPack hands out nothing that must not be written to."""
    return array if array.flags.writeable else array.copy()
