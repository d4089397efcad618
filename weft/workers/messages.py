"""The data plane: exchanges of arrays as messages of torch.distributed's gloo.

A message to a peer has all of its arrays, as bytes, so that every dtype travels; a header says
which collective it belongs to. Processes number their messages to each other, so no two are mixed
up.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from datetime import timedelta
from typing import Any, Protocol

import numpy as np

from weft.array.host import aligned_bytes
from weft.executable.process import Exchange, Peer, ProcessCollective, Values
from weft.ir.types import Array
from weft.records import dataclass
from weft.workers.coordination import CoordinationClient
from weft.workers.failure import WorkerLost
from weft.workers.shared import TICKET, SharedMemory

HEADER = 128  # bytes: a digest, and the collective in words
ALIGNMENT = 64
_DIGEST = 8


class Pending(Protocol):
    """A started send or receive."""

    def wait(self, timeout: timedelta) -> bool: ...


class ByteTransport(Protocol):
    """Sends and receives of bytes by rank; gloo's process group, wrapped."""

    def send(self, data: Array, rank: int, tag: int) -> Pending: ...
    def receive(self, data: Array, rank: int, tag: int) -> Pending: ...


@dataclass(eq=False)
class PeerConnections:
    """The connections to all other workers, shared by the programs of this one."""

    bytes: ByteTransport
    coordination: CoordinationClient
    timeout: float
    shared: SharedMemory | None = None  # with workers of the same host
    sent: Counter[int] = field(default_factory=Counter)  # messages by rank
    received: Counter[int] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class PendingExchange:
    """A started exchange; messages stay referenced until they have arrived."""

    exchange: Exchange
    header: bytes
    sends: Sequence[tuple[int, Pending, Array]]
    receives: Mapping[Peer, tuple[int, Pending, Array]]


@dataclass(eq=False)
class Messages:
    """The transport of one mesh: a device's number gives the rank of its worker."""

    wire: PeerConnections
    ranks: Mapping[Peer, int]
    _headers: dict[int, tuple[ProcessCollective, bytes]] = field(default_factory=dict)
    _program: str = ""  # the digest of the one that runs

    def begin_run(self, name: str, digest: str) -> None:
        """Count the steps of this worker, for the errors of the others."""
        activity = self.wire.coordination.activity
        activity.step += 1
        activity.doing = f"runs {name}"
        self._program = digest

    def start(self, exchange: Exchange) -> PendingExchange:
        """Send to every peer, and post the receives."""
        wire, header = self.wire, self._header(exchange.collective)
        receives = {}
        for peer, kinds in exchange.awaited.items():
            rank = self.ranks[peer]
            # Counted when posted, in program order, which is the same in every process: tags match
            # even where messages overtake each other.
            wire.received[rank] += 1
            size = _spans(kinds)[1]
            near = wire.shared is not None and wire.shared.receives_from(rank, size)
            message = aligned_bytes(TICKET if near else size)
            try:
                pending = wire.bytes.receive(message, rank, wire.received[rank])
            except RuntimeError as error:  # the connection is closed already
                raise self._lost(error, peer, exchange.collective) from error
            receives[peer] = rank, pending, message
        sends = []
        for peer, message in self._messages(header, exchange):
            rank = self.ranks[peer]
            wire.sent[rank] += 1
            try:
                sends.append((rank, wire.bytes.send(message, rank, wire.sent[rank]), message))
            except RuntimeError as error:
                raise self._lost(error, peer, exchange.collective) from error
        return PendingExchange(exchange, header, sends, receives)

    def _messages(self, header: bytes, exchange: Exchange) -> Iterator[tuple[Peer, Array]]:
        """The message for each peer, or the ticket of one in memory that it maps."""
        shared = self.wire.shared
        groups: dict[tuple[int, ...], list[Peer]] = {}  # the same arrays for several peers
        for peer, values in exchange.sent.items():
            groups.setdefault(tuple(map(id, values)), []).append(peer)
        for peers in groups.values():
            values = exchange.sent[peers[0]]
            spans, size = _spans([(v.shape, v.dtype) for v in values])
            near = [p for p in peers if shared is not None and shared.sends_to(self.ranks[p], size)]
            if not near or shared is None:
                message = _packed(header, values, spans, aligned_bytes(size))
                yield from [(peer, message) for peer in peers]
                continue
            slot = shared.take(size, [self.ranks[peer] for peer in near])
            message = _packed(header, values, spans, slot.message(size))
            ticket = shared.ticket(slot, size)
            yield from [(peer, ticket if peer in near else message) for peer in peers]

    def wait(self, started: PendingExchange) -> Mapping[Peer, Values]:
        """The received arrays, views of the messages."""
        wire, collective = self.wire, started.exchange.collective
        wire.coordination.activity.doing = f"is in {collective.described()}"
        end = time.monotonic() + wire.timeout
        for peer, (_, pending, _) in started.receives.items():
            self._wait(pending, peer, collective, end)
        for rank, pending, _ in started.sends:
            peer = next(p for p, r in self.ranks.items() if r == rank)
            self._wait(pending, peer, collective, end)
        found = {}
        for peer, (rank, _, message) in started.receives.items():
            if wire.shared is not None and message.nbytes == TICKET:
                message = wire.shared.read(rank, message)
            theirs = message[:HEADER].tobytes()
            # Programs that diverged would otherwise read bytes of another collective as their own.
            if theirs != started.header:
                said = theirs[_DIGEST:].rstrip(b"\0").decode(errors="replace")
                if theirs[_DIGEST:] == started.header[_DIGEST:]:
                    said += ", of another program"
                raise collective.mismatch_error(peer, said)
            found[peer] = _unpacked(message, started.exchange.awaited[peer])
        return found

    def _wait(
        self, pending: Pending, peer: Peer, collective: ProcessCollective, end: float
    ) -> None:
        left = max(end - time.monotonic(), 0.001)
        try:
            pending.wait(timedelta(seconds=left))
        except RuntimeError as error:
            raise self._lost(error, peer, collective) from error

    def _lost(self, error: RuntimeError, peer: Peer, collective: ProcessCollective) -> WorkerLost:
        """The error for a peer that gloo does not reach, or that was too late."""
        coordination, rank = self.wire.coordination, self.ranks[peer]
        is_late = "timed out" in str(error).lower() or "timeout" in str(error)
        late = collective.timeout_error([peer], self.wire.timeout)
        said = late if is_late else collective.lost(peer)
        message = f"{said.message}: worker {rank}; this one is in step {coordination.activity.step}"
        help_ = f"{coordination.last_report_of(rank, is_gone=not is_late)}; {said.help}"
        return WorkerLost(message, rank=rank, help=help_, loc=collective.node.loc)

    def _header(self, collective: ProcessCollective) -> bytes:
        """The header that identifies the collective of a message; made once for each."""
        known = self._headers.get(id(collective))
        if known is None:
            text = collective.described().encode()
            whole = text + self._program.encode()
            digest = hashlib.blake2b(whole, digest_size=_DIGEST).digest()
            header = (digest + text[: HEADER - _DIGEST]).ljust(HEADER, b"\0")
            known = self._headers[id(collective)] = collective, header
        return known[1]


def _spans(kinds: Sequence[tuple[tuple[int, ...], Any]]) -> tuple[list[tuple[int, int]], int]:
    """Where each array is in a message, aligned for kernels; and the size of the message."""
    found, end = [], HEADER
    for shape, dtype in kinds:
        start = -(-end // ALIGNMENT) * ALIGNMENT
        end = start + math.prod(shape) * np.dtype(dtype).itemsize
        found.append((start, end))
    return found, end


def _packed(
    header: bytes, values: Values, spans: Sequence[tuple[int, int]], message: Array
) -> Array:
    """Header and arrays, written as one message."""
    message[:HEADER] = np.frombuffer(header, np.uint8)
    for value, (start, end) in zip(values, spans, strict=True):
        np.copyto(message[start:end].view(value.dtype).reshape(value.shape), value)
    return message


def _unpacked(message: Array, kinds: Sequence[tuple[tuple[int, ...], Any]]) -> Values:
    spans, _ = _spans(kinds)
    return tuple(
        message[start:end].view(dtype).reshape(shape)
        for (start, end), (shape, dtype) in zip(spans, kinds, strict=True)
    )
