"""Futures: values that are pending, ready, failed or deleted, and their waiters."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Self

from weft.array.context import UserContext, note
from weft.array.lease import Lease
from weft.array.memory import DeviceBuffer
from weft.array.stacked import Stacked
from weft.errors import WeftError

# Global, and held briefly. Reentrant: freeing an object under it may wait on another value.
_LOCK = threading.RLock()


class StackFuture:
    """A future of the pieces of all devices."""

    changing = _LOCK
    held: Stacked | None  # the pieces, if available
    _ready: bool  # resolved or failed
    _error: BaseException | None = None
    context: UserContext | None = None  # the call that computes it
    _deleted: str | None = None
    # Created by the first waiter and released on completion. A lock, not an event: an event whose
    # wait is interrupted at a bad moment can stay locked.
    _waiting: threading.Lock | None = None
    _claims = 0  # claims: consumers that keep the elements past deletion
    _claimed: Stacked | None = None  # the elements kept for claims
    _helper: Callable[[Any, bool], None] | None = None
    _callbacks: tuple[Callable[[], None], ...] = ()  # callbacks on completion

    def __init__(self, stacked: Stacked | None = None) -> None:
        self.held = stacked
        self._ready = stacked is not None

    def helped_by(self, helper: Callable[[Self, bool], None]) -> Self:
        """Register a helper that may run pending work before a thread blocks on this value."""
        self._helper = helper
        return self

    def resolve(self, stacked: Stacked) -> None:
        """Complete with elements."""
        with _LOCK:
            # Deleted while it was computed: the elements are dropped, unless a consumer has claimed
            # them before.
            if self._deleted is None:
                self.held = stacked
            elif self._claims:
                self._claimed = stacked
        self._helper = None
        self._complete()

    def fail(self, error: BaseException) -> None:
        """Complete with an error, which then names the call that computes this."""
        note(error, self.context)
        self._error = error
        self._complete()

    def failed(self, error: BaseException) -> Self:
        """Complete with an error; returns the array."""
        self.fail(error)
        return self

    def _complete(self) -> None:
        """Wake the waiters and run callbacks."""
        with _LOCK:
            before, self._ready = self._ready, True  # set before waking: waiters check it at once
            if self._waiting is not None and not before:
                self._waiting.release()
            # Taken under the lock and called outside of it: a callback may wait for another array.
            callbacks, self._callbacks = self._callbacks, ()
        for callback in callbacks:
            callback()

    def then(self, callback: Callable[[], None]) -> None:
        """Register a completion callback; called at once if complete."""
        with _LOCK:
            if not self._ready:
                self._callbacks = (*self._callbacks, callback)
                return
        callback()

    @property
    def is_ready(self) -> bool:
        """Whether it is complete, with elements or an error."""
        return self._ready

    def wait(self, timeout: float | None = None) -> Self:
        """Block until it is complete; raises its error, or that its elements are gone."""
        self.check_alive()
        return self.settle(timeout)

    block_until_ready = wait

    def settle(self, timeout: float | None = None) -> Self:
        """Block until it is complete, even if it was deleted: for events and queues."""
        self.settle_on_host(timeout)
        held = self.held
        if held is not None and held.data.__class__ is DeviceBuffer and held.data.event is not None:
            held.data.event.wait()  # the device's event, which may trail the host
        return self

    def settle_on_host(self, timeout: float | None = None) -> None:
        """Block until the host has completed it: a device may still compute the elements."""
        if not self._ready and (helper := self._helper) is not None:
            # With a timeout this thread must not start a task of unknown length.
            helper(self, timeout is None)
        if not self._ready and not self._come(timeout):
            raise WeftError(
                f"an array is not ready after {timeout} seconds",
                help="wait longer, or check for an endless loop or a deadlock in the program",
            )
        if self._error is not None:
            raise self._error

    def enqueued(self) -> Stacked:
        """The pieces, of which a device may still compute the elements."""
        self.check_alive()
        if not self._ready or self._error is not None:
            self.settle_on_host()
        held = self.held
        if held is None:
            self.check_alive()
        assert held is not None
        return held

    def _come(self, timeout: float | None) -> bool:
        """Block; returns whether it is complete."""
        with _LOCK:
            if self._ready:
                return True
            if self._waiting is None:
                self._waiting = threading.Lock()
                self._waiting.acquire()
        if timeout is None:
            # Locked and released again: the lock is a gate, open for all once the future is
            # complete.
            with self._waiting:
                return True
        if self._waiting.acquire(timeout=timeout):
            self._waiting.release()
        return self._ready

    @property
    def error(self) -> BaseException | None:
        """The error of the computation, if any."""
        return self._error

    def delete(self, why: str = "deleted") -> None:
        """Release the memory; later access to the elements raises with this reason."""
        with _LOCK:
            self._deleted = self._deleted or why
            # Claimed by runs that are enqueued and not begun: they get the elements all the same.
            if self._claims and self.held is not None:
                self._claimed = self.held
            self.held = None

    def claim(self) -> None:
        """Keep the elements for a consumer, even if the array is deleted."""
        with _LOCK:
            self._claims += 1

    def take_claimed(self) -> Stacked:
        """Wait for claimed elements; releases them if the array was deleted."""
        self.settle_on_host()
        with _LOCK:
            stacked = self.held or self._claimed
            assert stacked is not None
            self._claims -= 1
            if not self._claims:
                self._claimed = None
            return stacked

    @property
    def is_deleted(self) -> bool:
        """Whether the elements were released."""
        return self._deleted is not None

    @property
    def stacked(self) -> Stacked:
        """The pieces of all devices; blocks."""
        self.wait()
        held = self.held
        if held is None:
            self.check_alive()
        assert held is not None
        return held

    def lend(self) -> tuple[Stacked, Lease]:
        """The pieces for an external reader, and the lease that pins their memory.

        Race with donation: a donor deletes the array first, and checks for pins afterwards.
        """
        self.enqueued()
        with _LOCK:
            found = self.held
            if found is not None:
                return found, found.lend()
        self.check_alive()
        raise AssertionError("an array that is ready has elements, or an error")

    def pinned(self) -> Stacked:
        """Read-only views of the pieces; a live view pins the memory."""
        stacked, lease = self.lend()
        return Stacked(lease.view(), stacked.sub_axes)

    def check_alive(self) -> None:
        """Raise if the elements were released."""
        if self._deleted is not None:
            raise WeftError(
                f"this array was {self._deleted}: its elements are gone",
                help="keep a copy, or do not donate what is still needed",
            )
