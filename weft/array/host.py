"""Host memory: aligned, taken from what earlier values left, given back by itself."""

from __future__ import annotations

import ctypes
import math
import mmap as mmap_module
import threading
from contextlib import suppress
from mmap import mmap
from operator import attrgetter
from typing import Any

import numpy as np

from weft.array.cpython import untried
from weft.array.memory import Memory, on_host
from weft.ir.types import Array

ALIGNED = 64  # bytes
SMALL = 1 << 16  # bytes below which the system's own allocation touches no new pages
PAGE = 1 << 12
LARGE = 1 << 22  # bytes from which large pages pay
LEAST = 1 << 26  # bytes that may always be kept
_BYTE = np.dtype(np.uint8)
_HEADER = object.__basicsize__  # in numpy's arrays the address of the elements follows it
_DENSE = 0x101  # of numpy's flags: in row-major order, and aligned to the elements


def _read(array: Array) -> int:
    """The address of an array's elements, read where numpy keeps it: `ctypes.data` is slow."""
    return ctypes.c_void_p.from_address(id(array) + _HEADER).value or 0


def _ask(array: Array) -> int:
    return int(array.ctypes.data)


def _reads_right() -> bool:
    if untried() is not None:
        return False
    probes: list[Array] = [np.ones(3), np.ones((4, 4), np.int8)[1:, 2:], np.zeros(0)]
    return all(_read(probe) == _ask(probe) for probe in probes)


address_of = _read if _reads_right() else _ask


class _Pages(mmap):
    """Pages of the system's that the memory has."""

    __slots__ = ("shelf",)
    shelf: _Shelf


class _Block(np.ndarray[Any, np.dtype[np.uint8]]):
    """Bytes that go back to where they come from when no array refers to them.

    The memory is no array's: numpy has views refer to the base of a base, past the block.
    """

    __slots__ = ()

    def __del__(self) -> None:
        base: Any = self.base
        if base.__class__ is _Pages:  # those of views of a block are not
            base.shelf.memory.free(base)


class _Shelf:
    """The memory of one size."""

    __slots__ = ("asked", "memory", "size", "waiting")

    def __init__(self, memory: HostMemory, size: int) -> None:
        self.memory, self.size = memory, size
        self.waiting: list[_Pages] = []  # what nobody uses, the last to be used at the end
        self.asked = 0  # when it was last asked for


class HostMemory:
    """The memory that numpy reads; bytes of values that are gone are kept for new ones.

    A program that runs again and again gets the memory of its earlier results, whose pages are
    there already. No more is kept than values had at once; sizes that nobody asks for go first.

    Threads take and give without a lock: what they do to a list is done at once, and the sums are
    only there to say how much is kept.
    """

    kind = "device"  # virtual devices have no other
    is_host = True
    dlpack_device = (1, 0)
    address = staticmethod(address_of)

    def __init__(self) -> None:
        self.shelves: dict[int, _Shelf] = {}  # by size
        self.kept = self.used = self.most = 0  # bytes
        self.asked = 0  # counts what was asked for
        self.lock = threading.RLock()  # a block may be given back while memory is let go

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> Array:
        """An array of so many bytes whose elements are whatever they are."""
        if nbytes < SMALL:
            return np.empty(shape, dtype)
        size = -(-nbytes // PAGE) * PAGE
        try:
            shelf = self.shelves[size]
            raw = shelf.waiting.pop()
            self.kept -= size
        except (KeyError, IndexError):
            raw = self._from_system(size)
            shelf = raw.shelf
        self.used = used = self.used + size
        if used > self.most:
            self.most = used
        self.asked = shelf.asked = self.asked + 1
        return np.ndarray(shape, dtype, _Block((size,), _BYTE, raw))

    def free(self, block: _Pages) -> None:
        """Take bytes back."""
        shelf = block.shelf
        shelf.waiting.append(block)
        self.used -= shelf.size
        self.kept += shelf.size
        if self.kept > self.most and self.kept > LEAST:
            self.let_go()

    def view(
        self, buffer: Array, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Array:
        """A part of a dense array as an array."""
        end = offset + math.prod(shape) * dtype.itemsize
        return buffer.reshape(-1).view(_BYTE)[offset:end].view(dtype).reshape(shape)

    def copy(self, source: Any, into: Array) -> None:
        """Copy an array, or a buffer of another memory."""
        into[...] = on_host(source)

    def place(self, array: Any) -> Array:
        """An array whose elements lie one after another."""
        return dense(np.asarray(on_host(array)))

    def _from_system(self, size: int) -> _Pages:
        try:
            made = pages(size)
        except OSError:
            self.clear()
            try:
                made = pages(size)
            except OSError as error:
                raise MemoryError(f"no memory for {size} bytes") from error
        with self.lock:
            if size not in self.shelves:
                self.shelves[size] = _Shelf(self, size)
            made.shelf = self.shelves[size]
        return made

    def let_go(self) -> None:
        """Let the system have what was not asked for of late."""
        with self.lock:
            for shelf in sorted(self.shelves.values(), key=attrgetter("asked")):
                while self.kept > max(LEAST, self.most) and self._drop(shelf):
                    pass

    def _drop(self, shelf: _Shelf) -> bool:
        """Let go of one block, if one waits."""
        try:
            shelf.waiting.pop()
        except IndexError:
            return False
        self.kept -= shelf.size
        return True

    def clear(self) -> None:
        """Let go of all that is kept."""
        with self.lock:
            for shelf in self.shelves.values():
                while self._drop(shelf):
                    pass
            self.most = self.used


HOST_MEMORY = HostMemory()


def pages(size: int) -> _Pages:
    """New pages of the system's memory; large ones where there are such, and they fill some."""
    made = _Pages(-1, size)
    if size >= LARGE and hasattr(made, "madvise") and hasattr(mmap_module, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system without large pages
            made.madvise(mmap_module.MADV_HUGEPAGE)
    return made


def aligned_bytes(size: int, memory: Memory = HOST_MEMORY) -> Any:
    """So many bytes, from an address that vectors can be loaded from."""
    room = memory.allocate((size + ALIGNED,), _BYTE, size + ALIGNED)
    return memory.view(room, -memory.address(room) % ALIGNED, (size,), _BYTE)


def is_dense(array: Array) -> bool:
    """Whether elements lie one after another in row-major order, aligned to their size."""
    return array.flags.num & _DENSE == _DENSE


def dense(array: Array) -> Array:
    """The array itself if it is dense, or a copy that is."""
    return array if is_dense(array) else copied(array)


def copied(array: Array) -> Array:
    """A copy that is dense, in memory that may have been another value's."""
    made = HOST_MEMORY.allocate(array.shape, array.dtype, array.nbytes)
    made[...] = array
    return made
