"""Values that may still be computed: ready, failed or deleted, and who waits for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Self

from weft.array.stacked import Stacked
from weft.errors import WeftError

_LOCK = threading.Lock()  # for a moment each, whatever the value


class Awaited:
    """The pieces of all devices, which are there, or will be, or never will because of an error."""

    def __init__(self, stacked: Stacked | None = None) -> None:
        self._stacked = stacked
        self._error: BaseException | None = None
        self._deleted: str | None = None
        self._ready = stacked is not None  # the elements, or an error, are there
        self._waiting: threading.Event | None = None  # made by who waits first
        self._claims = 0  # by those who take the elements even if the array is deleted
        self._helper: Callable[[Any], None] | None = None
        self._told: tuple[Callable[[], None], ...] = ()  # called when it is ready

    def helped_by(self, helper: Callable[[Self], None]) -> Self:
        """Have somebody asked who may do the work, before it is waited for."""
        self._helper = helper
        return self

    def resolve(self, stacked: Stacked) -> None:
        """Give the elements that others wait for."""
        self._stacked = stacked
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
            self._ready = True
            if self._waiting is not None:
                self._waiting.set()
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
            helper(self)
        if not self._ready and not self._event().wait(timeout):
            raise WeftError(
                f"an array is not ready after {timeout} seconds",
                help="wait longer; does the program run for ever, or wait for itself?",
            )
        if self._error is not None:
            raise self._error
        return self

    block_until_ready = wait

    def _event(self) -> threading.Event:
        """What is set when the array is ready."""
        with _LOCK:
            if self._waiting is None:
                self._waiting = threading.Event()
            if self._ready:
                self._waiting.set()
            return self._waiting

    @property
    def error(self) -> BaseException | None:
        """What has kept the elements from being computed, if something has."""
        return self._error

    def delete(self, why: str = "deleted") -> None:
        """Give the memory back; whoever asks for the elements from now on is told why."""
        with _LOCK:
            self._deleted = self._deleted or why
            if not self._claims:
                self._stacked = None

    def claim(self) -> None:
        """Have the elements kept for somebody who takes them when they are ready."""
        with _LOCK:
            self._claims += 1

    def take(self) -> Stacked:
        """Wait for elements that were claimed, and take them out of the array if it is deleted."""
        self.wait()
        with _LOCK:
            found = self._stacked
            assert found is not None
            self._claims -= 1
            if self._deleted is not None and not self._claims:
                self._stacked = None
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
        found = self._stacked
        if found is None:
            self.check_alive()
        assert found is not None
        return found

    def check_alive(self) -> None:
        """Refuse an array whose elements are gone."""
        if self._deleted is not None:
            raise WeftError(
                f"this array was {self._deleted}: its elements are gone",
                help="keep a copy, or do not donate what is still needed",
            )
