"""The offset of a worker's clock from that of worker 0, by round trips as in NTP."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np

from weft.array.host import aligned_bytes
from weft.ir.types import Array
from weft.workers.messages import PeerConnections

ROUNDS = 16


def measure_offset(
    wire: PeerConnections, rank: int, size: int, clock: Callable[[], int]
) -> dict[str, Any]:
    """The nanoseconds to add to this worker's clock for that of worker 0; all workers call it.

    The shortest of some round trips bounds the error by half of its time, whatever the routes.
    """
    if rank == 0:
        for other in range(1, size):
            for _ in range(ROUNDS):
                _receive(wire, other)
                _send(wire, other, clock())
        return {"offset": 0, "error": 0.0}
    trips: list[tuple[int, int]] = []
    for _ in range(ROUNDS):
        sent = clock()
        _send(wire, 0, sent)
        theirs = _receive(wire, 0)
        got = clock()
        trips.append((got - sent, theirs - (sent + got) // 2))
    took, offset = min(trips)
    return {"offset": offset, "error": took / 2}


def _send(wire: PeerConnections, rank: int, value: int) -> None:
    message = _bytes(value)
    if wire.shared is not None and wire.is_near(rank):
        wire.sent[rank] += 1
        end = time.monotonic() + wire.timeout
        wire.shared.send([rank], message.nbytes, lambda room: np.copyto(room, message), end)
    else:
        wire.post_send(message, rank).wait(timedelta(seconds=wire.timeout))


def _receive(wire: PeerConnections, rank: int) -> int:
    message = _bytes(0)
    if wire.shared is not None and wire.is_near(rank):
        wire.received[rank] += 1
        end = time.monotonic() + wire.timeout
        message = wire.shared.receive(rank, wire.received[rank], end)
    else:
        wire.post_receive(message, rank).wait(timedelta(seconds=wire.timeout))
    return int(message.view(np.int64)[0])


def _bytes(value: int) -> Array:
    """A number as a message."""
    message: Array = aligned_bytes(8)
    message.view(np.int64)[0] = value
    return message
