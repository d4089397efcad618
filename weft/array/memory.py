"""Memories: the allocators of a runtime, the host's own (`weft.array.host`) and a device's.

Arenas, results and constants are allocated in the memory of a target's runtime, whose addresses
kernels receive. A buffer of host memory is a numpy array. A buffer of device memory is a
`DeviceBuffer`: the host knows its address, and copies it to read it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, Protocol, final

import numpy as np

from weft.ir.types import Array
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class AllocatorStats:
    """Bytes of a memory: allocated now, allocated at most, held with those for reuse, in all."""

    used: int
    peak: int
    pool: int
    limit: int | None = None


class Memory(Protocol):
    """A memory that kernels read and write: dense, row-major buffers."""

    def __hash__(self) -> int: ...

    @property
    def kind(self) -> str:
        """Its name among a device's memories, such as `device`."""
        ...

    @property
    def is_host(self) -> bool:
        """Whether numpy can read it directly: its buffers are arrays."""
        ...

    @property
    def dlpack_device(self) -> tuple[int, int]:
        """The DLPack device type and number."""
        ...

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> Any:
        """An uninitialized buffer of so many bytes."""
        ...

    def free(self, block: Any) -> None:
        """Free an allocation; called once, after its last buffer is gone."""
        ...

    def view(self, buffer: Any, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """A view from a byte offset of a buffer, which keeps the allocation alive."""
        ...

    def address(self, buffer: Any) -> int:
        """The address of a buffer, for kernels."""
        ...

    def copy(self, source: Any, into: Any) -> None:
        """Copy a buffer, possibly from or to the host, after all earlier launches."""
        ...

    def place(self, array: Any) -> Any:
        """An array as a buffer of this memory: itself if it is one, else a copy."""
        ...

    def adopt(self, foreign: Any) -> Any:
        """Another package's array in this memory as a buffer without a copy, or None."""
        ...

    def use(self) -> AllocatorStats | None:
        """How much of it is in use, if that is known."""
        ...


@final
class DeviceBuffer:
    """A dense array in a device's memory: an allocation or a part of it."""

    __slots__ = ("block", "dtype", "event", "memory", "nbytes", "offset", "shape")

    def __init__(
        self,
        memory: DeviceMemory,
        block: MemoryBlock,
        offset: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        nbytes: int | None = None,
    ) -> None:
        self.memory, self.block, self.offset = memory, block, offset
        self.shape, self.dtype = shape, dtype
        self.nbytes = math.prod(shape) * dtype.itemsize if nbytes is None else nbytes
        self.event: Event | None = None  # the event that makes its elements valid, if pending

    def numpy(self) -> Array:
        """A copy on the host."""
        made = np.empty(self.shape, self.dtype)
        self.memory.copy(self, made)
        return made

    def copy(self) -> DeviceBuffer:
        """A copy in a new allocation."""
        made = self.memory.allocate(self.shape, self.dtype, self.nbytes)
        self.memory.copy(self, made)
        return made

    def reshape(self, shape: tuple[int, ...]) -> DeviceBuffer:
        """The same bytes with another shape."""
        return self.memory.view(self, 0, shape, self.dtype)

    def item(self, index: int) -> Any:
        """One element, by its row-major number."""
        at = index * self.dtype.itemsize
        return self.memory.view(self, at, (), self.dtype).numpy().item()


class Event(Protocol):
    """A point in a stream."""

    @property
    def is_ready(self) -> bool:
        """Whether all earlier work is done."""
        ...

    def wait(self) -> Any:
        """Block until all earlier work is done; raises its error."""
        ...


class Stream(Protocol):
    """An ordered queue of work; streams run concurrently."""

    def record(self) -> Event:
        """An event after all work enqueued so far."""
        ...

    def wait(self, event: Event) -> None:
        """Make later work wait for an event, possibly of another stream."""
        ...

    def synchronize(self) -> None:
        """Block until all work enqueued so far is done."""
        ...


@final
class MemoryBlock:
    """An allocation, freed with its last buffer."""

    __slots__ = ("is_lent", "memory", "raw")

    def __init__(self, memory: DeviceMemory, raw: Any) -> None:
        self.memory, self.raw = memory, raw
        self.is_lent = False  # whether others may hold the raw block

    def __del__(self) -> None:
        if not self.is_lent:
            self.memory.free(self.raw)


@dataclass(frozen=True, slots=True)
class Adopted:
    """A buffer of another package's memory, or a copy where kernels could not read it there."""

    buffer: DeviceBuffer
    is_copy: bool


class DeviceMemory(ABC):
    """A memory that numpy cannot read; subclasses implement allocation and copies."""

    kind = "device"
    is_host: Literal[False] = False
    dlpack_device: tuple[int, int]
    aligned = 16  # bytes: kernels may rely on operands at multiples of it

    @abstractmethod
    def reserve(self, nbytes: int) -> Any:
        """Allocate bytes aligned for any element; returns the raw block."""

    def take(self, nbytes: int) -> tuple[int, Any]:
        """Allocate bytes; returns the address and the raw block."""
        raw = self.reserve(nbytes)
        return self.start(raw), raw

    @abstractmethod
    def free(self, block: Any) -> None:
        """Free a raw block."""

    @abstractmethod
    def start(self, block: Any) -> int:
        """The address of a raw block."""

    @abstractmethod
    def copy(self, source: DeviceBuffer | Array, into: DeviceBuffer | Array) -> None:
        """Copy bytes between buffers of this memory, or from or to a dense host array.

        It is ordered after earlier launches on these buffers.
        """

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> DeviceBuffer:
        """A buffer with its own allocation."""
        return DeviceBuffer(self, MemoryBlock(self, self.reserve(nbytes)), 0, shape, dtype, nbytes)

    def view(
        self, buffer: DeviceBuffer, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> DeviceBuffer:
        """A part of a buffer as a buffer."""
        made = DeviceBuffer(self, buffer.block, buffer.offset + offset, shape, dtype)
        assert 0 <= offset <= offset + made.nbytes <= buffer.nbytes, "a view lies in its buffer"
        made.event = buffer.event
        return made

    def address(self, buffer: DeviceBuffer) -> int:
        """Where a buffer begins."""
        return self.start(buffer.block.raw) + buffer.offset

    def place(self, array: Any) -> DeviceBuffer:
        """An array of the host or of another memory, copied to this one."""
        if array.__class__ is DeviceBuffer:
            if array.memory is self:
                return array
            array = array.numpy()
        held = np.asarray(array, order="C")
        made = self.allocate(held.shape, held.dtype, held.nbytes)
        self.copy(held, made)
        return made

    def adopt(self, foreign: Any) -> DeviceBuffer | None:
        """A buffer of another package's array that is in this memory, or None."""
        return None

    def operand(self, buffer: DeviceBuffer) -> DeviceBuffer:
        """The buffer itself if kernels can read it, else a copy: a view may begin anywhere."""
        return buffer.copy() if self.address(buffer) % self.aligned else buffer

    def rows(
        self, buffer: DeviceBuffer, count: int, picked: Sequence[int], shape: tuple[int, ...]
    ) -> DeviceBuffer:
        """Some of the equal parts of a buffer, in this order; a view where they are all of them."""
        if [*picked] == [*range(count)]:
            return self.view(buffer, 0, shape, buffer.dtype)
        return self._picked(buffer, count, picked, shape)

    def _picked(
        self, buffer: DeviceBuffer, count: int, picked: Sequence[int], shape: tuple[int, ...]
    ) -> DeviceBuffer:
        size, byte = buffer.nbytes // count, np.dtype(np.uint8)
        made = self.allocate(shape, buffer.dtype, size * len(picked))
        for number, row in enumerate(picked):
            part = self.view(buffer, row * size, (size,), byte)
            self.copy(part, self.view(made, number * size, (size,), byte))
        return made

    def use(self) -> AllocatorStats | None:
        """How much of it is in use, if that is known."""
        return None

    def consume(self, capsule: Any) -> Adopted:
        """A tensor of this memory in a capsule of DLPack."""
        raise BufferError("this memory is not exchanged by DLPack: go through the host")

    def rearranged(
        self, buffer: DeviceBuffer, apart: tuple[int, ...], order: tuple[int, ...]
    ) -> DeviceBuffer:
        """The elements with dims split and transposed, as a dense buffer."""
        return self.place(buffer.numpy().reshape(apart).transpose(order))

    def exported(self, buffer: DeviceBuffer) -> Any:
        """An object with `__dlpack__` that shares the buffer's memory."""
        raise BufferError("the elements are in a device's memory: ask for device='cpu'")


def on_host(value: Any) -> Any:
    """A host-readable value: an array, or a copy of a buffer; tuples elementwise."""
    if value.__class__ is DeviceBuffer:
        return value.numpy()
    return tuple([on_host(part) for part in value]) if value.__class__ is tuple else value
