"""Memory for values: aligned, taken from what earlier values left, given back by itself."""

from __future__ import annotations

import ctypes
import mmap as mmap_module
import threading
from contextlib import suppress
from mmap import mmap
from typing import Any

import numpy as np

from weft.ir.types import Array

ALIGNED = 64  # bytes
SMALL = 1 << 16  # bytes below which the system's own allocation touches no new pages
PAGE = 1 << 12
LARGE = 1 << 22  # bytes from which large pages pay
LEAST = 1 << 26  # bytes that may always be kept
_HEADER = object.__basicsize__  # in numpy's arrays the address of the elements follows it
_DENSE = 0x101  # of numpy's flags: in row-major order, and aligned to the elements


class _Block(np.ndarray[Any, np.dtype[np.uint8]]):
    """Bytes that go back to where they come from when no array refers to them.

    The memory is no array's: numpy has views refer to the base of a base, past the block.
    """

    room: Room

    def __del__(self) -> None:
        room = getattr(self, "room", None)
        if room is not None and self.base is not None:  # views of a block have no room
            room.give(self.base)


class Room:
    """Bytes of values that are gone, kept for new ones.

    A program that runs again and again gets the memory of its earlier results, whose pages are
    there already. No more is kept than values had at once; sizes that nobody asks for go first.
    """

    def __init__(self) -> None:
        self.free: dict[int, list[mmap]] = {}  # by size, the one that was last used at the end
        self.kept = self.used = self.most = 0  # bytes
        self.lock = threading.RLock()  # a block may be given back while one is taken

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> Array:
        """An array of so many bytes whose elements are whatever they are."""
        if nbytes < SMALL:
            return np.empty(shape, dtype)
        return np.ndarray(shape, dtype, self._block(-(-nbytes // PAGE) * PAGE))

    def _block(self, size: int) -> _Block:
        with self.lock:
            waiting = self.free.get(size)
            if waiting:
                raw = waiting.pop()
                self.kept -= size
            else:
                raw = self._from_system(size)
            self.used += size
            self.most = max(self.most, self.used)
        block = _Block((size,), np.uint8, raw)
        block.room = self
        return block

    def _from_system(self, size: int) -> mmap:
        try:
            return pages(size)
        except OSError:
            self.clear()
        try:
            return pages(size)
        except OSError as error:
            raise MemoryError(f"no memory for {size} bytes") from error

    def give(self, raw: mmap) -> None:
        """Take bytes back."""
        with self.lock:
            size = len(raw)
            waiting = self.free.pop(size, [])
            self.free[size] = waiting
            waiting.append(raw)
            self.used -= size
            self.kept += size
            if self.kept > max(LEAST, self.most):
                self._let_go()

    def _let_go(self) -> None:
        """Let the system have what was not asked for of late."""
        for size in list(self.free):
            waiting = self.free[size]
            while waiting and self.kept > max(LEAST, self.most):
                waiting.pop()
                self.kept -= size
            if not waiting:
                del self.free[size]

    def clear(self) -> None:
        """Let go of all that is kept."""
        with self.lock:
            self.free.clear()
            self.kept, self.most = 0, self.used


ROOM = Room()


def pages(size: int) -> mmap:
    """New pages of the system's memory; large ones where there are such, and they fill some."""
    made = mmap(-1, size)
    if size >= LARGE and hasattr(made, "madvise") and hasattr(mmap_module, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system without large pages
            made.madvise(mmap_module.MADV_HUGEPAGE)
    return made


def aligned_bytes(size: int) -> Array:
    """So many bytes, from an address that vectors can be loaded from."""
    room = np.empty(size + ALIGNED, np.uint8)
    start = -room.ctypes.data % ALIGNED
    return room[start : start + size]


def is_dense(array: Array) -> bool:
    """Whether elements lie one after another in row-major order, aligned to their size."""
    return array.flags.num & _DENSE == _DENSE


def dense(array: Array) -> Array:
    """The array itself if it is dense, or a copy that is."""
    if is_dense(array):
        return array
    made = ROOM.empty(array.shape, array.dtype, array.nbytes)
    made[...] = array
    return made


def _read(array: Array) -> int:
    """The address of an array's elements, read where numpy keeps it: `ctypes.data` is slow."""
    return ctypes.c_void_p.from_address(id(array) + _HEADER).value or 0


def _ask(array: Array) -> int:
    return int(array.ctypes.data)


def _reads_right() -> bool:
    probes: list[Array] = [np.ones(3), np.ones((4, 4), np.int8)[1:, 2:], np.zeros(0)]
    return all(_read(probe) == _ask(probe) for probe in probes)


address_of = _read if _reads_right() else _ask
