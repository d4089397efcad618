"""Messages between the workers of one host, through memory that they map.

A small message is copied into a ring (`weft.workers.rings`). A larger one is packed once for all of
its readers into a slot, an anonymous file of the sender, and the ring names the file; a reader maps
it through /proc, copies the message out and sets its byte in the slot's head. A slot is used again
when all of its readers have. No name is left behind when a worker is killed.
"""

from __future__ import annotations

import mmap
import os
import platform
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

import numpy as np

from weft.array.host import aligned_bytes
from weft.ir.types import Array
from weft.records import dataclass
from weft.workers.coordination import CoordinationClient, JoinedWorker
from weft.workers.native_sums import ExchangeState
from weft.workers.rings import (
    RING_BYTES,
    SLOT_BYTES,
    MessageRing,
    PeerLife,
    wait_for_message,
    wait_for_room,
)

_PAGE = 4096
_TOKEN = 64  # bytes before the rings of a worker, which say whose they are
SPINS = 100  # looks at a ring before its reader sleeps, each with a yield, if cores are free
# Stores become visible in order: a reader's byte is not seen before its copy is done.
IS_ORDERED = platform.machine() in ("x86_64", "AMD64")
CAN_SHARE = IS_ORDERED and hasattr(os, "memfd_create") and hasattr(os, "pidfd_open")


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


@dataclass(frozen=True, slots=True)
class NearPeer:
    """Another worker of this host."""

    pid: int
    life: PeerLife
    outgoing: MessageRing
    incoming: MessageRing


@dataclass(eq=False)
class SharedMemory:
    """The rings and slots of this worker, and those of others that it has mapped."""

    rank: int
    head: int
    peers: Mapping[int, NearPeer]  # by rank; both have mapped the memory of the other
    has_all: bool  # whether all workers have mapped each other's
    inline_bytes: int = SLOT_BYTES  # larger messages are in slots
    spins: int = SPINS
    slots: dict[int, list[SharedSlot]] = field(default_factory=dict)  # by size
    mapped: dict[tuple[int, int], Array] = field(default_factory=dict)  # by rank and file
    lock: threading.Lock = field(default_factory=threading.Lock)
    taken: dict[int, int] = field(default_factory=dict)  # messages read, by writer
    inbox: dict[tuple[int, int], Array] = field(default_factory=dict)  # read, and not yet awaited
    early: int = 0  # of the messages in it, as native code knows
    state: ExchangeState = field(default_factory=ExchangeState.new)

    def send(
        self, ranks: Sequence[int], size: int, fill: Callable[[Array], object], end: float
    ) -> None:
        """Send a message, which `fill` writes once, to workers of this host."""
        if size > self.inline_bytes:
            slot = self._take(size, ranks)
            fill(slot.message(size))
            for rank in ranks:
                self._ring_with_room(rank, end).post(size, slot.fd)
            return
        first = self._ring_with_room(ranks[0], end)
        message = first.room(size)
        fill(message)
        for rank in ranks[1:]:
            ring = self._ring_with_room(rank, end)
            ring.room(size)[:] = message
            ring.post(size)
        first.post(size)  # last: its reader frees the slot that the others are copied from

    def receive(self, rank: int, number: int, end: float) -> Array:
        """The message of a worker with this number, counted from 1."""
        message = self.inbox.pop((rank, number), None)
        while message is None:
            peer = self.peers[rank]
            wait_for_message(peer.incoming, peer.life, end, self.spins)
            self._read(rank, peer)
            message = self.inbox.pop((rank, number), None)
        self._count_early()
        return message

    def end_waits(self) -> None:
        """Have all waits for a message or for room fail, in whatever thread."""
        for peer in self.peers.values():
            peer.life.is_given_up = True

    def _ring_with_room(self, rank: int, end: float) -> MessageRing:
        peer = self.peers[rank]
        if peer.outgoing.is_full:
            wait_for_room(peer.outgoing, peer.life, end, self._read_all)
        return peer.outgoing

    def _read_all(self) -> None:
        for rank, peer in self.peers.items():
            while not peer.incoming.is_empty:
                self._read(rank, peer)
        self._count_early()

    def _count_early(self) -> None:
        """Have native code know of messages that come before its own."""
        if len(self.inbox) != self.early:
            self.early = self.state.early = len(self.inbox)

    def _read(self, rank: int, peer: NearPeer) -> None:
        """Copy the next message of a worker into the inbox."""
        size, file, held = peer.incoming.next()
        message: Array = aligned_bytes(size)
        if file < 0:
            message[:] = held[:size]
        else:
            slot = self.mapped.get((rank, file))
            if slot is None:
                # A sender never closes the file of a slot, so that a number stands for the same
                # memory as long as it lives.
                slot = self.mapped[rank, file] = _map(f"/proc/{peer.pid}/fd/{file}")
            message[:] = slot[self.head : self.head + size]
            # Last: from here on the sender may overwrite the message (see IS_ORDERED).
            slot[self.rank] = 1
        peer.incoming.free()
        number = self.taken[rank] = self.taken.get(rank, 0) + 1
        self.inbox[rank, number] = message

    def _take(self, size: int, readers: Sequence[int]) -> SharedSlot:
        """A free slot for a message, with its readers' bytes unset."""
        # Powers of two, so that messages of similar sizes share slots, and few files are mapped.
        room = 1 << max(size + self.head - 1, _PAGE).bit_length()
        with self.lock:
            listed = self.slots.setdefault(room, [])
            free = next((slot for slot in listed if slot.is_free), None)
            if free is None:
                free = _new_slot(room, self.head)
                listed.append(free)
            # Before the ring names the slot: a reader sets its byte afterwards only.
            free.memory[: self.head] = 0
            free.readers = tuple(readers)
        return free


def _new_slot(room: int, head: int) -> SharedSlot:
    fd = os.memfd_create("weft-messages")
    os.ftruncate(fd, room)
    return SharedSlot(fd, np.frombuffer(mmap.mmap(fd, room), np.uint8), head)


def _map(path: str) -> Array:
    """The memory of another worker's file."""
    return np.frombuffer(_mapping(path), np.uint8)


def _mapping(path: str) -> mmap.mmap:
    fd = os.open(path, os.O_RDWR)
    try:
        return mmap.mmap(fd, 0)
    finally:
        os.close(fd)


def share_memory(
    coordination: CoordinationClient, workers: Sequence[JoinedWorker]
) -> SharedMemory | None:
    """The shared memory of this worker; None if it reaches no other one's. All workers call it.

    Workers of one host may be in containers that do not see each other's processes, so each tries.
    """
    me, size = workers[coordination.me.rank], len(workers)
    token, own, fd = os.urandom(8), None, -1
    near = [other for other in workers if other.rank != me.rank and other.is_beside(me)]
    if CAN_SHARE and near:
        fd = os.memfd_create("weft-rings")
        os.ftruncate(fd, _TOKEN + size * RING_BYTES)
        own = mmap.mmap(fd, 0)
        own[: len(token)] = token
    texts = coordination.gather_texts("shared memory", f"{fd} {token.hex()}")
    told = [text.split() for text in texts]
    reached: dict[int, tuple[mmap.mmap, PeerLife]] = {}
    for other in near if own is not None else ():
        number, expected = told[other.rank]
        theirs = _with_token(other.pid, int(number), bytes.fromhex(expected))
        if theirs is not None and (life := PeerLife.of(other.pid)) is not None:
            reached[other.rank] = theirs, life
    # A second round: both sides use memory only where both have reached the other's.
    lists = coordination.gather_texts("mapped the memory of others", " ".join(map(str, reached)))
    if own is None:
        return None
    os.close(fd)
    reaches = [{*map(int, text.split())} for text in lists]
    peers = {
        rank: NearPeer(
            workers[rank].pid,
            life,
            MessageRing(own, _TOKEN + rank * RING_BYTES),
            MessageRing(theirs, _TOKEN + me.rank * RING_BYTES),
        )
        for rank, (theirs, life) in reached.items()
        if me.rank in reaches[rank]
    }
    has_all = all(len(found) == size - 1 for found in reaches)
    spins = SPINS if len(os.sched_getaffinity(0)) > len(near) else 1
    head = -(-size // 64) * 64
    return SharedMemory(me.rank, head, peers, has_all, spins=spins) if peers else None


def _with_token(pid: int, fd: int, token: bytes) -> mmap.mmap | None:
    """The memory of another worker; None if it cannot be reached, or is that of another process."""
    try:
        found = _mapping(f"/proc/{pid}/fd/{fd}")
    except (OSError, ValueError):
        return None
    return found if found[: len(token)] == token else None
