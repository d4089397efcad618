"""Memories: where bytes of values live, the host's own (`weft.array.host`) and a device's.

Run allocates arenas, results and constants in the memory of a target's runtime, and gives kernels
addresses in it. A buffer of host memory is an array of numpy's. One of a device's memory is a
`DeviceBuffer`: the host knows its address, and copies it to read it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, Literal, Protocol, final

import numpy as np

from weft.ir.types import Array


class Memory(Protocol):
    """Bytes that a runtime's kernels read and write: dense buffers, in row-major order."""

    def __hash__(self) -> int: ...

    @property
    def kind(self) -> str:
        """What it is asked for by among the memories of a device, as `device`."""
        ...

    @property
    def is_host(self) -> bool:
        """Whether numpy reads it as it is: its buffers are arrays then."""
        ...

    @property
    def dlpack_device(self) -> tuple[int, int]:
        """The type and the number of the device, as DLPack has them."""
        ...

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> Any:
        """A buffer of so many bytes whose elements are undefined."""
        ...

    def free(self, block: Any) -> None:
        """Take back an allocation; called once, when the last buffer that lies in it is gone."""
        ...

    def view(self, buffer: Any, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """The elements from a byte of a buffer on as a buffer, which keeps the allocation alive."""
        ...

    def address(self, buffer: Any) -> int:
        """Where a buffer begins, for kernels."""
        ...

    def copy(self, source: Any, into: Any) -> None:
        """Copy a buffer; one of both may be the host's. What was launched before is waited for."""
        ...

    def place(self, array: Any) -> Any:
        """An array as a buffer of this memory: itself if it is one, else a copy."""
        ...


@final
class DeviceBuffer:
    """A dense array in the memory of a device, part of an allocation or all of it."""

    __slots__ = ("block", "dtype", "event", "memory", "nbytes", "offset", "shape")

    def __init__(
        self,
        memory: DeviceMemory,
        block: MemoryBlock,
        offset: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> None:
        self.memory, self.block, self.offset = memory, block, offset
        self.shape, self.dtype = shape, dtype
        self.nbytes = math.prod(shape) * dtype.itemsize
        self.event: Event | None = None  # after which its elements are there, if not now

    def numpy(self) -> Array:
        """A copy on the host."""
        made = np.empty(self.shape, self.dtype)
        self.memory.copy(self, made)
        return made

    def copy(self) -> DeviceBuffer:
        """The same elements in memory of their own."""
        made = self.memory.allocate(self.shape, self.dtype, self.nbytes)
        self.memory.copy(self, made)
        return made

    def reshape(self, shape: tuple[int, ...]) -> DeviceBuffer:
        """The same bytes as a buffer of another shape."""
        return self.memory.view(self, 0, shape, self.dtype)

    def item(self, index: int) -> Any:
        """One element, by its number in row-major order."""
        at = index * self.dtype.itemsize
        return self.memory.view(self, at, (), self.dtype).numpy().item()


class Event(Protocol):
    """A point in a stream."""

    @property
    def is_ready(self) -> bool:
        """Whether all that was enqueued before is done."""
        ...

    def wait(self) -> Any:
        """Wait until it is, and raise what has kept it from being done."""
        ...


class Stream(Protocol):
    """An ordered queue of work; several streams go on beside each other."""

    def record(self) -> Event:
        """The point after all that is enqueued now."""
        ...

    def wait(self, event: Event) -> None:
        """Have what is enqueued from now on begin after an event, perhaps of another stream."""
        ...

    def synchronize(self) -> None:
        """Wait until all that is enqueued now is done."""
        ...


@final
class MemoryBlock:
    """An allocation, which goes back to its memory with the last buffer that lies in it."""

    __slots__ = ("memory", "raw")

    def __init__(self, memory: DeviceMemory, raw: Any) -> None:
        self.memory, self.raw = memory, raw

    def __del__(self) -> None:
        self.memory.free(self.raw)


class DeviceMemory(ABC):
    """A memory that numpy cannot read: what has one says how bytes are allocated and copied."""

    kind = "device"
    is_host: Literal[False] = False
    dlpack_device: tuple[int, int]

    @abstractmethod
    def reserve(self, nbytes: int) -> Any:
        """Bytes that are aligned for any element, as whatever stands for them: its raw block."""

    @abstractmethod
    def free(self, block: Any) -> None:
        """Take a raw block back."""

    @abstractmethod
    def start(self, block: Any) -> int:
        """The address of a raw block."""

    @abstractmethod
    def copy(self, source: DeviceBuffer | Array, into: DeviceBuffer | Array) -> None:
        """Copy the bytes of a buffer of this memory, or of a dense array of the host, to another.

        What was launched on the buffers before is waited for, or goes first.
        """

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> DeviceBuffer:
        """A buffer of its own."""
        return DeviceBuffer(self, MemoryBlock(self, self.reserve(nbytes)), 0, shape, dtype)

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
        """An array of the host's or of another memory as a buffer of this one."""
        if array.__class__ is DeviceBuffer:
            if array.memory is self:
                return array
            array = array.numpy()
        held = np.asarray(array, order="C")
        made = self.allocate(held.shape, held.dtype, held.nbytes)
        self.copy(held, made)
        return made


def on_host(value: Any) -> Any:
    """A value that numpy can read: an array, or a copy of a buffer; tuples of them part by part."""
    if value.__class__ is DeviceBuffer:
        return value.numpy()
    return tuple([on_host(part) for part in value]) if value.__class__ is tuple else value
