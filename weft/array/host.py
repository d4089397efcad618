"""Host memory: a caching allocator of aligned blocks with automatic release."""

from __future__ import annotations

import math
import mmap as mmap_module
import re
import threading
from contextlib import suppress
from functools import cache
from mmap import mmap
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from weft.array.memory import AllocatorStats, Memory, on_host
from weft.ir.types import Array
from weft.native.cpython import address_of

ALIGNED = 64  # alignment in bytes
SMALL = 1 << 16  # bytes; smaller requests are malloc's, which does not fault in new pages
PAGE = 1 << 12
LARGE = 1 << 22  # bytes from which huge pages pay off
LEAST = 1 << 26  # bytes that may always stay cached
HUGE = 1 << 30  # bytes from which a request is compared with what the machine has
_BYTE = np.dtype(np.uint8)
_DENSE = 0x101  # ndarray flags: C-contiguous and aligned


class _Pages(mmap):
    """Pages mapped from the system."""

    __slots__ = ("shelf",)
    shelf: _Shelf


class _Block(np.ndarray[Any, np.dtype[np.uint8]]):
    """Bytes that return to their allocator when no array refers to them.

    Its base is an mmap and not an array: numpy collapses chains of array bases, so that views would
    refer past the block.
    """

    __slots__ = ()

    def __del__(self) -> None:
        base: Any = self.base
        if base.__class__ is _Pages:  # a block's own; views of it are not counted
            base.shelf.memory.free(base)


class _Shelf:
    """The cached blocks of one size."""

    __slots__ = ("last_request", "memory", "size", "waiting")

    def __init__(self, memory: HostMemory, size: int) -> None:
        self.memory, self.size = memory, size
        self.waiting: list[_Pages] = []  # free blocks, most recently used last
        self.last_request = 0  # time of the last request


class HostMemory:
    """Memory that numpy reads; freed blocks are cached for reuse.

    A program that runs repeatedly reuses the memory of earlier results, whose pages are already
    faulted in. The cache is bounded by the peak of live bytes; sizes not requested recently are
    evicted first.

    Lock-free: list append and pop are atomic under the GIL, and the byte counters are only
    heuristics for eviction.
    """

    kind = "device"  # virtual devices have no other memory
    is_host = True
    dlpack_device = (1, 0)
    address = staticmethod(address_of)

    def __init__(self) -> None:
        self.shelves: dict[int, _Shelf] = {}  # shelves by size
        self.kept = self.used = self.most = 0  # bytes: cached, live, and the peak of live ones
        self.last_request = 0  # the number of requests: the time of an eviction policy
        self.lock = threading.RLock()  # reentrant: a block may be freed during eviction

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> Array:
        """An uninitialized array in a block of so many bytes."""
        if nbytes < SMALL:
            return np.empty(shape, dtype)
        size = -(-nbytes // PAGE) * PAGE
        try:
            shelf = self.shelves[size]
            # The most recently freed block: its pages are likelier to be in a cache.
            raw = shelf.waiting.pop()
            self.kept -= size
        except (KeyError, IndexError):
            raw = self._from_system(size)
            shelf = raw.shelf
        self.used = used = self.used + size
        if used > self.most:
            self.most = used
        self.last_request = shelf.last_request = self.last_request + 1
        # The array's base is the block, whose finalizer returns the pages when the last view is
        # gone.
        return np.ndarray(shape, dtype, _Block((size,), _BYTE, raw))

    def adopt(self, foreign: Any) -> None:
        """None: host arrays of other packages are converted by `weft.array.exchange`."""

    def free(self, block: _Pages) -> None:
        """Return a block to the cache."""
        shelf = block.shelf
        shelf.waiting.append(block)
        self.used -= shelf.size
        self.kept += shelf.size
        # Beyond both the peak and a floor only: a steady program never unmaps pages.
        if self.kept > self.most and self.kept > LEAST:
            self.evict()

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
        """A dense version of an array."""
        return dense(np.asarray(on_host(array)))

    def use(self) -> AllocatorStats:
        """How much of it is in use."""
        return AllocatorStats(self.used, self.most, self.used + self.kept)

    def _from_system(self, size: int) -> _Pages:
        # Linux overcommits: the mapping would succeed, and writing to it end the process.
        if size >= HUGE and size > _installed():
            raise MemoryError(f"no memory for {size} bytes")
        try:
            memory = pages(size)
        except OSError:
            # What is cached may be what is missing.
            self.clear()
            try:
                memory = pages(size)
            except OSError as error:
                raise MemoryError(f"no memory for {size} bytes") from error
        with self.lock:
            if size not in self.shelves:
                self.shelves[size] = _Shelf(self, size)
            memory.shelf = self.shelves[size]
        return memory

    def evict(self) -> None:
        """Release blocks that were not requested recently."""
        with self.lock:
            for shelf in sorted(self.shelves.values(), key=attrgetter("last_request")):
                while self.kept > max(LEAST, self.most) and self._drop(shelf):
                    pass

    def _drop(self, shelf: _Shelf) -> bool:
        """Release one free block."""
        try:
            shelf.waiting.pop()
        except IndexError:
            return False
        self.kept -= shelf.size
        return True

    def clear(self) -> None:
        """Release all cached blocks."""
        with self.lock:
            for shelf in self.shelves.values():
                while self._drop(shelf):
                    pass
            # The peak of an earlier program must not keep its memory cached.
            self.most = self.used


HOST_MEMORY = HostMemory()


def pages(size: int) -> _Pages:
    """Map new pages; huge ones where supported and worthwhile."""
    mapping = _Pages(-1, size)
    if size >= LARGE and hasattr(mapping, "madvise") and hasattr(mmap_module, "MADV_HUGEPAGE"):
        with suppress(OSError):  # no huge pages on this system
            mapping.madvise(mmap_module.MADV_HUGEPAGE)
    return mapping


@cache
def _installed() -> float:
    """The bytes of memory and swap of this machine, if the system tells.

    Some systems map more than they have, and kill the process that writes to it.
    """
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return math.inf
    totals = re.findall(r"^(?:Mem|Swap)Total: +(\d+) kB$", text, re.M)
    return sum(map(int, totals)) * 1024 or math.inf


def aligned_bytes(size: int, memory: Memory = HOST_MEMORY) -> Any:
    """So many bytes, aligned for vector loads."""
    # numpy aligns small blocks to 16 bytes only.
    room = memory.allocate((size + ALIGNED,), _BYTE, size + ALIGNED)
    return memory.view(room, -memory.address(room) % ALIGNED, (size,), _BYTE)


def is_dense(array: Array) -> bool:
    """Whether an array is row-major contiguous and aligned."""
    return array.flags.num & _DENSE == _DENSE


def dense(array: Array) -> Array:
    """The array itself if it is dense, else a dense copy."""
    return array if is_dense(array) else copied(array)


def copied(array: Array) -> Array:
    """A dense copy in cached memory."""
    made = HOST_MEMORY.allocate(array.shape, array.dtype, array.nbytes)
    made[...] = array
    return made
