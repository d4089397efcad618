"""Copies to the host of what a device still computes: made in a thread, when it is there."""

from __future__ import annotations

import time
from collections.abc import Callable

from weft.array.future import StackFuture
from weft.array.lease import Lease
from weft.array.stream import HostStream
from weft.jax.buffers.values import NOTHING, PjrtArray
from weft.jax.buffers.watching import is_computed

TRANSFERS = HostStream("weft-transfers")
_SOON = 5e-5  # seconds: about as long as it takes to wake a thread


def is_computed_soon(value: StackFuture) -> bool:
    """Whether an array is there, or a device computes it sooner than a thread would be woken."""
    until = time.perf_counter() + _SOON
    while not (done := is_computed(value)) and time.perf_counter() < until:
        pass
    return done


class WaitingCopy:
    """A copy that waits for a device; a lease pins its memory until then."""

    calls_host = False

    def __init__(self, value: PjrtArray, copy: Callable[[], None], lease: Lease | None) -> None:
        self.value, self.copy, self.lease = value, copy, lease
        self.done = PjrtArray()

    @property
    def is_ready(self) -> bool:
        """Whether the device has computed it."""
        return is_computed(self.value)

    def __call__(self) -> None:
        """Wait, and copy; an error is that of the event."""
        try:
            self.copy()  # in the order of the device's stream
        except BaseException as error:  # noqa: BLE001  # set on the event
            self.done.fail(error)
        else:
            self.done.resolve(NOTHING)
        self.lease = None

    def abandon(self, error: BaseException) -> None:
        """Fail, because of an interrupt."""
        self.done.fail(error)
