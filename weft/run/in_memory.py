"""In-memory transport: processes are threads that exchange messages in mailboxes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from typing import Any, TypeVar

from weft.array.stream import HostStream
from weft.errors import WeftError
from weft.executable.process import Exchange, Peer, Process, Values, described
from weft.ir.module import Node
from weft.records import dataclass

T = TypeVar("T")
MessageKey = tuple[Peer, Peer, int]  # sender, receiver, sequence number


@dataclass(eq=False)
class Mailboxes:
    """Messages sent and not yet received."""

    timeout: float = 60.0  # timeout in seconds
    posted: dict[MessageKey, tuple[Node, Values]] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)
    failed: BaseException | None = None

    def process(self, device: int) -> Process:
        """The process that has a device."""
        return Process(device, InMemory(self), HostStream())

    def run(self, works: Sequence[Callable[[], T]]) -> list[T]:
        """Run each process in a thread; returns their results, or raises the first error."""

        def watched(work: Callable[[], T]) -> T:
            try:
                return work()
            except BaseException as error:
                with self.changed:
                    self.failed = self.failed or error
                    self.changed.notify_all()
                raise

        with ThreadPoolExecutor(len(works)) as pool:
            waiting = [pool.submit(watched, work) for work in works]
        if self.failed is not None:
            raise self.failed
        return [future.result() for future in waiting]


@dataclass(frozen=True, slots=True)
class Started:
    """A pending exchange: the keys of expected messages."""

    exchange: Exchange
    keys: Mapping[Peer, MessageKey]


@dataclass(eq=False)
class InMemory:
    """The transport of one process: messages are copied into mailboxes."""

    boxes: Mailboxes
    nbytes: int = 0  # sent so far
    # Messages by sender and receiver: both count alike, so that the number identifies a message.
    _met: Counter[tuple[Peer, Peer]] = field(default_factory=Counter)

    def begin_run(self, name: str, digest: str) -> None:
        """Nothing to note: threads see each other's errors."""

    def reaches(self, device: Any) -> bool:
        """Messages are in the host's memory."""
        return False

    def start(self, exchange: Exchange) -> Started:
        """Send to every peer, and record the expected messages."""
        boxes, me = self.boxes, exchange.collective.here
        sent = {self._key(me, peer): values for peer, values in exchange.sent.items()}
        with boxes.changed:
            for key, values in sent.items():
                # Copies: the sender may overwrite its arrays before they are received.
                boxes.posted[key] = exchange.collective.node, tuple([v.copy() for v in values])
                self.nbytes += sum(v.nbytes for v in values)
            boxes.changed.notify_all()
        return Started(exchange, {peer: self._key(peer, me) for peer in exchange.awaited})

    def _key(self, sender: Peer, receiver: Peer) -> MessageKey:
        pair = sender, receiver
        self._met[pair] += 1
        return *pair, self._met[pair]

    def wait(self, started: Started) -> Mapping[Peer, Values]:
        """The received arrays."""
        boxes, collective, keys = self.boxes, started.exchange.collective, started.keys

        def missing() -> list[Peer]:
            return [peer for peer, key in keys.items() if key not in boxes.posted]

        with boxes.changed:
            boxes.changed.wait_for(lambda: boxes.failed or not missing(), boxes.timeout)
            if boxes.failed is not None:
                raise WeftError("another process has failed", help="see its error")
            if absent := missing():
                raise collective.timeout_error(absent, boxes.timeout)
            received = {peer: boxes.posted.pop(key) for peer, key in keys.items()}
        for peer, (node, values) in received.items():
            awaited = started.exchange.awaited[peer]
            if node.op != collective.node.op or [(v.shape, v.dtype) for v in values] != [*awaited]:
                raise collective.mismatch_error(peer, described(node))
        return {peer: values for peer, (_, values) in received.items()}
