"""Values that may still be computed: ready, failed or deleted, and who waits for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Self

from weft.array.lease import Lease
from weft.array.memory import DeviceBuffer
from weft.array.stacked import Stacked
from weft.errors import WeftError

# For a moment each, whatever the value; what is freed at that moment may wait for another value.
_LOCK = threading.RLock()


class Awaited:
    """The pieces of all devices, which are there, or will be, or never will because of an error."""

    changing = _LOCK
    held: Stacked | None  # the pieces, if they are there to be taken
    _ready: bool  # the elements, or an error, are there
    _error: BaseException | None = None
    _deleted: str | None = None
    # Made by who waits first, and held until it is ready. A lock, and not an event: an event whose
    # waiting is interrupted at a bad moment stays locked for ever.
    _waiting: threading.Lock | None = None
    _claims = 0  # by those who take the elements even if the array is deleted
    _claimed: Stacked | None = None  # what they take then
    _helper: Callable[[Any, bool], None] | None = None
    _told: tuple[Callable[[], None], ...] = ()  # called when it is ready

    def __init__(self, stacked: Stacked | None = None) -> None:
        self.held = stacked
        self._ready = stacked is not None

    def helped_by(self, helper: Callable[[Self, bool], None]) -> Self:
        """Have somebody asked who may do the work, before it is waited for (however long)."""
        self._helper = helper
        return self

    def resolve(self, stacked: Stacked) -> None:
        """Give the elements that others wait for."""
        with _LOCK:
            if self._deleted is None:
                self.held = stacked
            elif self._claims:
                self._claimed = stacked
        self._helper = None
        self._tell()

    def fail(self, error: BaseException) -> None:
        """Say that there will be no elements, and why."""
        self._error = error
        self._tell()

    def failed(self, error: BaseException) -> Self:
        """The array itself, after it was said why there will be no elements."""
        self.fail(error)
        return self

    def _tell(self) -> None:
        """Let those go on who wait."""
        with _LOCK:
            before, self._ready = self._ready, True  # who is let go on looks at it at once
            if self._waiting is not None and not before:
                self._waiting.release()
            told, self._told = self._told, ()
        for callback in told:
            callback()

    def then(self, callback: Callable[[], None]) -> None:
        """Have something called when the elements, or an error, are there; at once if they are."""
        with _LOCK:
            if not self._ready:
                self._told = (*self._told, callback)
                return
        callback()

    @property
    def is_ready(self) -> bool:
        """Whether the elements, or an error, are there."""
        return self._ready

    def wait(self, timeout: float | None = None) -> Self:
        """Wait until the elements are there; raise what has kept them from it."""
        if not self._ready and (helper := self._helper) is not None:
            helper(self, timeout is None)
        if not self._ready and not self._come(timeout):
            raise WeftError(
                f"an array is not ready after {timeout} seconds",
                help="wait longer; does the program run for ever, or wait for itself?",
            )
        if self._error is not None:
            raise self._error
        held = self.held
        if held is not None and held.data.__class__ is DeviceBuffer and held.data.event is not None:
            held.data.event.wait()  # of the device, which may be behind the host
        return self

    block_until_ready = wait

    def _come(self, timeout: float | None) -> bool:
        """Wait; whether it is ready."""
        with _LOCK:
            if self._ready:
                return True
            if self._waiting is None:
                self._waiting = threading.Lock()
                self._waiting.acquire()
        if timeout is None:
            with self._waiting:
                return True
        if self._waiting.acquire(timeout=timeout):
            self._waiting.release()
        return self._ready

    @property
    def error(self) -> BaseException | None:
        """What has kept the elements from being computed, if something has."""
        return self._error

    def delete(self, why: str = "deleted") -> None:
        """Give the memory back; whoever asks for the elements from now on is told why."""
        with _LOCK:
            self._deleted = self._deleted or why
            if self._claims and self.held is not None:
                self._claimed = self.held
            self.held = None

    def claim(self) -> None:
        """Have the elements kept for somebody who takes them when they are ready."""
        with _LOCK:
            self._claims += 1

    def take_claimed(self) -> Stacked:
        """Wait for elements that were claimed, and take them out of the array if it is deleted."""
        self.wait()
        with _LOCK:
            found = self.held or self._claimed
            assert found is not None
            self._claims -= 1
            if not self._claims:
                self._claimed = None
            return found

    @property
    def is_deleted(self) -> bool:
        """Whether the elements are gone."""
        return self._deleted is not None

    @property
    def stacked(self) -> Stacked:
        """The pieces of all devices."""
        self.check_alive()
        self.wait()
        found = self.held
        if found is None:
            self.check_alive()
        assert found is not None
        return found

    def lend(self) -> tuple[Stacked, Lease]:
        """The pieces for a reader outside, and what pins their memory.

        A donor deletes the array before it asks whether the memory is pinned.
        """
        self.check_alive()
        self.wait()
        with _LOCK:
            found = self.held
            if found is not None:
                return found, found.lend()
        self.check_alive()
        raise AssertionError("an array that is ready has elements, or an error")

    def pinned(self) -> Stacked:
        """The pieces as read-only views; as long as one of them is alive, the memory is pinned."""
        stacked, lease = self.lend()
        return Stacked(lease.view(), stacked.atoms)

    def check_alive(self) -> None:
        """Refuse an array whose elements are gone."""
        if self._deleted is not None:
            raise WeftError(
                f"this array was {self._deleted}: its elements are gone",
                help="keep a copy, or do not donate what is still needed",
            )
