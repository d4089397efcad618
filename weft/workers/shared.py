"""Messages through memory that the workers of one host map, in the place of sockets.

A sender packs a message into a slot, an anonymous file of its own, and sends a ticket, its file and
size, over gloo; a receiver maps the slot through /proc, copies the message out and sets its byte in
the slot's head. A slot is used again when all of its readers have. Nothing blocks: with no free
slot a new one is made, and no name is left behind when a worker is killed.
"""

from __future__ import annotations

import mmap
import os
import platform
import threading
from collections.abc import Sequence
from dataclasses import field

import numpy as np

from weft.array.host import aligned_bytes
from weft.ir.types import Array
from weft.records import dataclass
from weft.workers.coordination import CoordinationClient, JoinedWorker

# Smaller messages go by the socket that a ticket needs anyway. On 2 cores, with 2 and 4 workers,
# both take as long up to 256 KiB; memory takes 0.6 to 0.95 of gloo's time from 512 KiB on.
NEAR_BYTES = 1 << 19
TICKET = 16  # bytes: the number of the sender's file, and the bytes of the message
_PAGE = 4096
# Stores become visible in order: a reader's byte is not seen before its copy is done.
IS_ORDERED = platform.machine() in ("x86_64", "AMD64")


@dataclass(eq=False)
class SharedSlot:
    """Memory for one message: a byte for each worker that reads it, then the message."""

    fd: int
    memory: Array
    head: int
    readers: Sequence[int] = ()

    @property
    def is_free(self) -> bool:
        """Whether all readers have copied the message."""
        return all(self.memory[rank] for rank in self.readers)

    def message(self, size: int) -> Array:
        """The part of a message of so many bytes."""
        found: Array = self.memory[self.head : self.head + size]
        return found


@dataclass(eq=False)
class SharedMemory:
    """The slots of this worker, and those of others that it has mapped."""

    rank: int
    head: int
    pids: dict[int, int]  # of the workers whose slots are mapped here
    readers: frozenset[int]  # the workers that map the slots of this one
    near_bytes: int = NEAR_BYTES
    slots: dict[int, list[SharedSlot]] = field(default_factory=dict)  # by size
    mapped: dict[tuple[int, int], Array] = field(default_factory=dict)  # by rank and file
    lock: threading.Lock = field(default_factory=threading.Lock)

    def sends_to(self, rank: int, size: int) -> bool:
        """Whether a message to a worker goes through memory; it decides alike."""
        return size >= self.near_bytes and rank in self.readers

    def receives_from(self, rank: int, size: int) -> bool:
        """Whether a message of a worker comes through memory."""
        return size >= self.near_bytes and rank in self.pids

    def take(self, size: int, readers: Sequence[int]) -> SharedSlot:
        """A free slot for a message, with its readers' bytes unset."""
        room = 1 << max(size + self.head - 1, _PAGE).bit_length()
        with self.lock:
            listed = self.slots.setdefault(room, [])
            found = next((slot for slot in listed if slot.is_free), None)
            if found is None:
                found = _new_slot(room, self.head)
                listed.append(found)
            found.memory[: self.head] = 0
            found.readers = tuple(readers)
        return found

    def ticket(self, slot: SharedSlot, size: int) -> Array:
        """The place of a message, for its reader."""
        made: Array = aligned_bytes(TICKET)
        made.view(np.int64)[:] = slot.fd, size
        return made

    def read(self, rank: int, ticket: Array) -> Array:
        """A copy of the message of a ticket; the slot is then free for its sender."""
        fd, size = ticket.view(np.int64).tolist()
        held = self.mapped.get((rank, fd))
        if held is None:
            held = self.mapped[rank, fd] = _map(f"/proc/{self.pids[rank]}/fd/{fd}")
        message: Array = aligned_bytes(size)
        message[:] = held[self.head : self.head + size]
        held[self.rank] = 1
        return message


def _new_slot(room: int, head: int) -> SharedSlot:
    fd = os.memfd_create("weft-messages")
    os.ftruncate(fd, room)
    return SharedSlot(fd, np.frombuffer(mmap.mmap(fd, room), np.uint8), head)


def _map(path: str) -> Array:
    """The memory of another worker's slot."""
    fd = os.open(path, os.O_RDWR)
    try:
        return np.frombuffer(mmap.mmap(fd, 0), np.uint8)
    finally:
        os.close(fd)


def share_memory(
    coordination: CoordinationClient, workers: Sequence[JoinedWorker]
) -> SharedMemory | None:
    """The shared memory of this worker; None if it reaches no other one's. All workers call it.

    Workers of one host may be in containers that do not see each other's processes, so each tries.
    """
    me = workers[coordination.me.rank]
    head = -(-len(workers) // 64) * 64
    can = IS_ORDERED and hasattr(os, "memfd_create")
    token = os.urandom(8)
    probe = _new_slot(_PAGE, 0) if can else None
    if probe is not None:
        probe.memory[: len(token)] = np.frombuffer(token, np.uint8)
    told = coordination.gather_texts(
        "shared memory", f"{probe.fd} {token.hex()}" if probe is not None else ""
    )
    reached: dict[int, int] = {}
    for other, text in zip(workers, told, strict=True):
        if can and text and other.rank != me.rank and other.host == me.host:
            fd, expected = text.split()
            if _has_token(other.pid, int(fd), bytes.fromhex(expected)):
                reached[other.rank] = other.pid
    lists = coordination.gather_texts("mapped the memory of others", " ".join(map(str, reached)))
    if probe is not None:
        os.close(probe.fd)
    readers = frozenset(n for n, text in enumerate(lists) if str(me.rank) in text.split())
    return SharedMemory(me.rank, head, reached, readers) if reached or readers else None


def _has_token(pid: int, fd: int, token: bytes) -> bool:
    try:
        return _map(f"/proc/{pid}/fd/{fd}")[: len(token)].tobytes() == token
    except (OSError, ValueError):
        return False
