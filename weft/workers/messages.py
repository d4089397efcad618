"""The data plane: exchanges of arrays as messages, through shared memory or over gloo.

A message to a peer has all of its arrays, as bytes, whatever their dtypes; a header identifies the
collective that it belongs to. Processes number their messages to each other, so no two are mixed
up.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any, Protocol, TypeAlias

import numpy as np

from weft.array.host import aligned_bytes
from weft.executable.process import Exchange, Peer, ProcessCollective, Values
from weft.ir.types import Array
from weft.records import dataclass
from weft.workers.coordination import CoordinationClient
from weft.workers.device_groups import DeviceExchange, DeviceGroups
from weft.workers.failure import WorkerLost
from weft.workers.native_sums import ExchangeSite, NativeRun, PendingRuns
from weft.workers.shared import SharedMemory

HEADER = 128  # bytes: a digest, and the collective in words
ALIGNMENT = 64
_DIGEST = 8
Kinds: TypeAlias = Sequence[tuple[tuple[int, ...], Any]]  # shapes and dtypes


class Pending(Protocol):
    """A started send or receive."""

    def wait(self, timeout: timedelta) -> bool: ...


class ByteTransport(Protocol):
    """Sends and receives of bytes by rank; gloo's process group, wrapped."""

    def send(self, data: Array, rank: int, tag: int) -> Pending: ...
    def receive(self, data: Array, rank: int, tag: int) -> Pending: ...
    def end_waits(self) -> None: ...


@dataclass(eq=False)
class PeerConnections:
    """The connections to all other workers, shared by the programs of this one."""

    bytes: ByteTransport | None  # None if all workers share memory
    coordination: CoordinationClient
    timeout: float
    shared: SharedMemory | None = None  # with workers of the same host
    devices: DeviceGroups | None = None  # for arrays in the memory of devices
    sent: Counter[int] = field(default_factory=Counter)  # messages by rank
    received: Counter[int] = field(default_factory=Counter)

    def is_near(self, rank: int) -> bool:
        """Whether messages to and from a worker go through shared memory; it decides alike."""
        return self.shared is not None and rank in self.shared.peers

    def end_waits(self) -> None:
        """Have all waits for messages fail, in whatever thread."""
        if self.shared is not None:
            self.shared.end_waits()
        if self.bytes is not None:
            self.bytes.end_waits()

    def post_send(self, data: Array, rank: int) -> Pending:
        """Start sending a message over a socket."""
        assert self.bytes is not None, "the worker is on another host"
        self.sent[rank] += 1
        return self.bytes.send(data, rank, self.sent[rank])

    def post_receive(self, data: Array, rank: int) -> Pending:
        """Start receiving a message over a socket."""
        assert self.bytes is not None, "the worker is on another host"
        self.received[rank] += 1
        return self.bytes.receive(data, rank, self.received[rank])


@dataclass(frozen=True, slots=True)
class Receiving:
    """A message to come: its number if it comes through memory, else a receive."""

    rank: int
    number: int
    pending: Pending | None = None
    message: Array | None = None


@dataclass(frozen=True, slots=True)
class PendingExchange:
    """A started exchange; messages stay referenced until they have arrived."""

    exchange: Exchange
    header: bytes
    doing: str
    sends: Sequence[tuple[Peer, Pending, Array]]
    receives: Mapping[Peer, Receiving]
    ready: Mapping[Peer, Values] | None = None  # what native code has received


@dataclass(eq=False)
class Messages:
    """The transport of one mesh; `ranks` has the worker of each device."""

    wire: PeerConnections
    ranks: Mapping[Peer, int]
    _headers: dict[int, tuple[ProcessCollective, bytes, str]] = field(default_factory=dict)
    _program: str = ""  # the digest of the one that runs
    _native: NativeRun | None = None  # of a program that native code runs, too

    def begin_run(self, name: str, digest: str) -> None:
        """Count the steps of this worker, for the errors of the others."""
        activity = self.wire.coordination.activity
        activity.step += 1
        activity.doing = f"runs {name}"
        self._program = digest
        if self._native is not None:
            self._native.take_over()

    def native_run(
        self,
        exchanges: Sequence[tuple[ProcessCollective, Sequence[Peer], Kinds]],
        pending: PendingRuns,
        short_run: int,
    ) -> NativeRun | None:
        """The exchanges of a program, which has run before, by native code; None if it cannot be.

        They are all of its exchanges, and this transport has no other program.
        """
        shared, sites = self.wire.shared, []
        if shared is None or self._native is not None:
            return None
        for collective, peers, kinds in exchanges:
            spans, size = _spans(tuple(kinds))
            ranks = [self.ranks[peer] for peer in peers]
            if size > shared.inline_bytes or not {*ranks} <= {*shared.peers}:
                return None
            near = [shared.peers[rank] for rank in ranks]
            rings = [(peer.outgoing, peer.incoming) for peer in near]
            sites.append(ExchangeSite(rings, self._header(collective)[0], kinds, spans, size))
        self._native = NativeRun(sites, shared.state, pending, short_run, shared.spins)
        return self._native

    def reaches(self, device: Any) -> bool:
        """Whether workers exchange arrays in a device's memory; all of them must call this."""
        return self.wire.devices is not None and self.wire.devices.reaches(device)

    def start(self, exchange: Exchange) -> PendingExchange | DeviceExchange:
        """Send to every peer, and post the receives."""
        wire, collective = self.wire, exchange.collective
        if exchange.device is not None:
            assert wire.devices is not None, "it reaches the device"
            with self._named(exchange):
                return wire.devices.start(exchange, self.ranks)
        header, doing = self._header(collective)
        received, is_posted = (None, False) if self._native is None else self._native.next()
        if received is not None:
            ready = dict(zip(exchange.awaited, received, strict=True))
            return PendingExchange(exchange, header, doing, [], {}, ready)
        # Receives first: gloo sends the bytes of a message only when its receive is posted.
        receives = {}
        for peer, kinds in exchange.awaited.items():
            rank = self.ranks[peer]
            # Counted when posted, in program order, which is the same in every process: numbers
            # match even where messages overtake each other.
            if wire.is_near(rank):
                wire.received[rank] += 1
                receives[peer] = Receiving(rank, wire.received[rank])
                continue
            message = aligned_bytes(_spans(tuple(kinds))[1])
            try:
                pending = wire.post_receive(message, rank)
            except RuntimeError as error:  # the connection is closed already
                raise self._lost(error, peer, collective) from error
            receives[peer] = Receiving(rank, 0, pending, message)
        sends = [] if is_posted else self._send(header, exchange)
        return PendingExchange(exchange, header, doing, sends, receives)

    def _send(self, header: bytes, exchange: Exchange) -> list[tuple[Peer, Pending, Array]]:
        """Send the message for each peer; the same arrays for several peers are packed once."""
        wire, collective, shared = self.wire, exchange.collective, self.wire.shared
        groups: dict[tuple[int, ...], list[Peer]] = {}
        for peer, values in exchange.sent.items():
            # By identity: an all_gather sends the same arrays to every peer.
            groups.setdefault(tuple(map(id, values)), []).append(peer)
        sends = []
        for peers in groups.values():
            values = exchange.sent[peers[0]]
            spans, size = _spans(tuple([(v.shape, v.dtype) for v in values]))
            fill = partial(_pack, header, values, spans)
            near = [peer for peer in peers if wire.is_near(self.ranks[peer])]
            far = [peer for peer in peers if peer not in near]
            if near and shared is not None:
                end = time.monotonic() + wire.timeout
                for peer in near:
                    wire.sent[self.ranks[peer]] += 1
                try:
                    shared.send([self.ranks[peer] for peer in near], size, fill, end)
                except OSError as error:
                    raise self._lost(error, near[0], collective) from error
            if far:
                message = aligned_bytes(size)
                fill(message)
            for peer in far:
                try:
                    sends.append((peer, wire.post_send(message, self.ranks[peer]), message))
                except RuntimeError as error:
                    raise self._lost(error, peer, collective) from error
        return sends

    def wait(self, started: PendingExchange | DeviceExchange) -> Mapping[Peer, Values]:
        """The received arrays, views of the messages."""
        wire, collective = self.wire, started.exchange.collective
        if isinstance(started, DeviceExchange):
            wire.coordination.activity.doing = self._header(collective)[1]
            assert wire.devices is not None, "it reaches the device"
            with self._named(started.exchange):
                return wire.devices.wait(started, self.ranks)
        wire.coordination.activity.doing = started.doing
        if started.ready is not None:
            return started.ready
        # One deadline for the whole exchange: the timeout is not multiplied by the number of peers.
        end = time.monotonic() + wire.timeout
        for peer, receiving in started.receives.items():
            if receiving.pending is not None:
                self._wait(receiving.pending, peer, collective, end)
        # Sends are waited for as well: the arrays in them may be overwritten when this returns.
        for peer, pending, _ in started.sends:
            self._wait(pending, peer, collective, end)
        received = {}
        for peer, receiving in started.receives.items():
            message = receiving.message
            if message is None:
                message = self._read(receiving, peer, collective, end)
            kinds = started.exchange.awaited[peer]
            spans, size = _spans(tuple(kinds))
            theirs = message[:HEADER].tobytes()
            # Programs that diverged would otherwise read bytes of another collective as their own.
            if theirs != started.header or message.nbytes != size:
                other = theirs[_DIGEST:].rstrip(b"\0").decode(errors="replace")
                if theirs[_DIGEST:] == started.header[_DIGEST:]:
                    other += ", of another program"
                raise collective.mismatch_error(peer, other)
            received[peer] = _unpacked(message, kinds, spans)
        return received

    @contextmanager
    def _named(self, exchange: Exchange) -> Iterator[None]:
        """Errors of a process group as those of the worker that reports least."""
        try:
            yield
        except RuntimeError as error:
            coordination = self.wire.coordination
            quiet, own = coordination.stalest_worker(), coordination.me.rank
            peers = {self.ranks[peer]: peer for peer in exchange.among}
            others = [peer for rank, peer in peers.items() if rank != own]
            raise self._lost(error, peers.get(quiet, others[0]), exchange.collective) from error

    def _read(
        self, receiving: Receiving, peer: Peer, collective: ProcessCollective, end: float
    ) -> Array:
        """A message through memory."""
        assert self.wire.shared is not None, "it is of a worker of this host"
        try:
            return self.wire.shared.receive(receiving.rank, receiving.number, end)
        except OSError as error:
            raise self._lost(error, peer, collective) from error

    def _wait(
        self, pending: Pending, peer: Peer, collective: ProcessCollective, end: float
    ) -> None:
        # At least a moment: a timeout of 0 means none to PyTorch, and what has arrived is taken
        # even late.
        left = max(end - time.monotonic(), 0.001)
        try:
            pending.wait(timedelta(seconds=left))
        except RuntimeError as error:
            raise self._lost(error, peer, collective) from error

    def _lost(self, error: Exception, peer: Peer, collective: ProcessCollective) -> WorkerLost:
        """The error for a peer that is not reached, or that was too late."""
        coordination, rank = self.wire.coordination, self.ranks[peer]
        failed = coordination.failure_error(
            f"{collective.node.op.name} waits for worker {rank}", loc=collective.node.loc
        )
        if failed is not None and failed.rank != rank:
            return failed
        is_late = failed is None and ("timed out" in str(error).lower() or "timeout" in str(error))
        late = collective.timeout_error([peer], self.wire.timeout)
        base = late if is_late else collective.lost(peer)
        message = (
            f"{base.message}: worker {rank}; this one is in step {coordination.activity.steps}"
        )
        help_ = f"{coordination.last_report_of(rank, is_gone=not is_late)}; {base.help}"
        return WorkerLost(message, rank=rank, help=help_, loc=collective.node.loc)

    def _header(self, collective: ProcessCollective) -> tuple[bytes, str]:
        """The header that identifies the collective of a message, and the activity; cached."""
        known = self._headers.get(id(collective))
        if known is None:
            text = collective.described()
            whole = (text + self._program).encode()
            digest = hashlib.blake2b(whole, digest_size=_DIGEST).digest()
            header = (digest + text.encode()[: HEADER - _DIGEST]).ljust(HEADER, b"\0")
            # The collective is kept with its header: an id may be used again once its object is
            # gone.
            known = self._headers[id(collective)] = collective, header, f"is in {text}"
        return known[1:]


@lru_cache(maxsize=1024)
def _spans(kinds: Kinds) -> tuple[list[tuple[int, int]], int]:
    """Where each array is in a message, aligned for kernels; and the size of the message."""
    spans, end = [], HEADER
    for shape, dtype in kinds:
        start = -(-end // ALIGNMENT) * ALIGNMENT
        end = start + math.prod(shape) * np.dtype(dtype).itemsize
        spans.append((start, end))
    return spans, end


def _pack(header: bytes, values: Values, spans: Sequence[tuple[int, int]], message: Array) -> None:
    """Write header and arrays as one message."""
    message[:HEADER] = np.frombuffer(header, np.uint8)
    for value, (start, end) in zip(values, spans, strict=True):
        np.copyto(message[start:end].view(value.dtype).reshape(value.shape), value)


def _unpacked(message: Array, kinds: Kinds, spans: Sequence[tuple[int, int]]) -> Values:
    return tuple(
        [
            message[start:end].view(dtype).reshape(shape)
            for (start, end), (shape, dtype) in zip(spans, kinds, strict=True)
        ]
    )
