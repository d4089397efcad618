"""Rings in shared memory: the messages of one worker to another of the same host, in order.

A ring has some slots and two counters, of the messages that were written and of those that were
read; each counter has one writer. A reader spins for a moment, then sleeps on the first counter by
a futex. Stores become visible in order on x86-64: a message is there when its counter is.
"""

from __future__ import annotations

import ctypes
import os
import select
import time
from collections.abc import Callable
from mmap import mmap
from typing import Any

import numpy as np

from weft.ir.types import Array
from weft.records import dataclass

SLOTS, SLOT_BYTES = 16, 1 << 14
HEAD = 128  # bytes of the counters, each in a cache line of its own
FIELDS = 64  # bytes before a message: its size, and a file that has it or -1
RING_BYTES = HEAD + SLOTS * (FIELDS + SLOT_BYTES)
READ_AT = 64  # bytes from the first counter to the second
_WRITTEN, _READ = 0, READ_AT // 4  # indices of the counters, of 4 bytes
_WRAP = (1 << 32) - 1  # counters have 32 bits, as futexes do
SLICE = 0.05  # seconds of sleep after which a reader sees whether the writer is alive
_PAUSE = 0.0001  # seconds between two looks of a writer whose ring is full
FUTEX, WAIT, WAKE = 202, 0, 1  # Linux on x86-64


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def _futex_call() -> Any:
    """The system call, which releases the GIL."""
    call = ctypes.CDLL(None).syscall
    pointer, integer = ctypes.c_void_p, ctypes.c_long
    call.argtypes = [integer, pointer, ctypes.c_int, ctypes.c_uint, pointer, pointer, ctypes.c_uint]
    call.restype = integer
    return call


_futex = _futex_call()


class MessageRing:
    """One direction between two workers, as either of them has mapped it."""

    def __init__(self, memory: mmap, offset: int) -> None:
        self.bytes: Array = np.frombuffer(memory, np.uint8, RING_BYTES, offset)
        self.counters = memoryview(memory)[offset : offset + HEAD].cast("I")
        self.fields = memoryview(memory)[offset : offset + RING_BYTES].cast("q")
        # The first word, `_WRITTEN`: it is what readers sleep at. Not private to a process, unlike
        # the pool's futexes.
        self.address = self.bytes.ctypes.data
        self._slice = _TimeSpec(0, int(SLICE * 1e9))
        self._timeout = ctypes.addressof(self._slice)

    @property
    def is_full(self) -> bool:
        """Whether a writer has to wait."""
        counters = self.counters
        return (counters[_WRITTEN] - counters[_READ]) & _WRAP >= SLOTS

    @property
    def is_empty(self) -> bool:
        """Whether a reader has to wait."""
        return self.counters[_WRITTEN] == self.counters[_READ]

    def room(self, size: int) -> Array:
        """The memory of the next message; the ring is not full."""
        start = self._start(_WRITTEN)
        return self.bytes[start : start + size]

    def post(self, size: int, file: int = -1) -> None:
        """Publish the next message: it is in its room, or in a file."""
        at = (self._start(_WRITTEN) - FIELDS) // 8
        self.fields[at], self.fields[at + 1] = size, file
        # Last: the counter publishes the message, whose bytes and fields are stored before it.
        self.counters[_WRITTEN] = self.counters[_WRITTEN] + 1 & _WRAP
        _futex(FUTEX, self.address, WAKE, 1, None, None, 0)

    def next(self) -> tuple[int, int, Array]:
        """Size, file and bytes of the next message; the ring is not empty."""
        start = self._start(_READ)
        at = (start - FIELDS) // 8
        return self.fields[at], self.fields[at + 1], self.bytes[start : start + SLOT_BYTES]

    def free(self) -> None:
        """Free the slot of the next message."""
        self.counters[_READ] = self.counters[_READ] + 1 & _WRAP

    def sleep(self) -> None:
        """Sleep until a message is written, or for a moment."""
        # The system compares the counter with `seen` again: a message that is posted in between
        # ends the sleep at once.
        seen = self.counters[_WRITTEN]
        if seen == self.counters[_READ]:
            _futex(FUTEX, self.address, WAIT, seen, self._timeout, None, 0)

    def _start(self, counter: int) -> int:
        return HEAD + self.counters[counter] % SLOTS * (FIELDS + SLOT_BYTES) + FIELDS


@dataclass(eq=False)
class PeerLife:
    """Whether another process of this host is alive."""

    fd: int
    is_given_up: bool = False  # nothing more is expected of it, although it may live

    @classmethod
    def of(cls, pid: int) -> PeerLife | None:
        """That of a process; None where a sandbox does not let this one ask."""
        try:
            return cls(os.pidfd_open(pid))
        except OSError:
            return None

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, even if its parent does not know yet."""
        if self.is_given_up:
            return True
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return bool(poll.poll(0))


def wait_for_room(
    ring: MessageRing, life: PeerLife, end: float, meanwhile: Callable[[], object]
) -> None:
    """Wait until a ring has room; the writer reads its own messages meanwhile.

    Two workers that send much before they read would wait for each other otherwise.
    """
    while ring.is_full:
        # Before the look at the peer: what it has sent makes room on its side, and lets it read.
        meanwhile()
        time.sleep(_PAUSE)
        if life.has_ended:
            raise ConnectionError("the process has ended")
        _check_time(end)


def wait_for_message(ring: MessageRing, life: PeerLife, end: float, spins: int) -> None:
    """Wait until a ring has a message."""
    for _ in range(spins):
        if not ring.is_empty:
            return
        os.sched_yield()
    while ring.is_empty:
        ring.sleep()
        if not ring.is_empty:
            return
        # Before the last look at the ring: a worker may write its last message, and end.
        has_ended = life.has_ended
        if ring.is_empty:
            if has_ended:
                raise ConnectionError("the process has ended")
            _check_time(end)


def _check_time(end: float) -> None:
    if time.monotonic() > end:
        raise TimeoutError("timed out")
