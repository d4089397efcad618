"""The streams of a server's clients, none of which may hold it up: replies, and first messages."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

from weft.errors import WeftError

FIRST = 10.0  # seconds for the first message of a stream


class Replies:
    """The replies of a session that wait to be sent; so many requests at most have none yet.

    A client that sends requests and reads no replies is stopped by its stream's flow control.
    """

    def __init__(self, most: int) -> None:
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._slots = threading.Semaphore(most)
        self._is_closed = False

    def admit(self) -> None:
        """Wait until another request may be handled."""
        self._slots.acquire()
        if self._is_closed:
            self._slots.release()
            raise WeftError("the session has ended", help="connect again")

    def put(self, data: bytes | None) -> None:
        """Add a reply, or the end."""
        self._queue.put(data)

    def get(self) -> bytes | None:
        """Take the next reply, which frees the slot of its request."""
        data = self._queue.get()
        self._slots.release()
        return data

    def empty(self) -> bool:
        """Whether no reply waits."""
        return self._queue.empty()

    def close(self) -> None:
        """Admit no more requests."""
        self._is_closed = True
        self._slots.release()


class FirstMessages:
    """Streams whose first message is awaited; one that is late is cancelled.

    Each holds one of the server's threads, and says only by its first message whose it is.
    """

    def __init__(self) -> None:
        self._seconds = FIRST
        self._waiting: dict[int, tuple[float, Any]] = {}
        self._ended = threading.Event()
        threading.Thread(target=self._watch, name="weft-first-messages", daemon=True).start()

    def next(self, requests: Iterator[bytes], context: Any) -> bytes:
        """The first message of a stream; empty if it ends before."""
        self._waiting[id(context)] = (time.monotonic() + self._seconds, context)
        try:
            return next(requests, b"")
        finally:
            del self._waiting[id(context)]

    def close(self) -> None:
        """Watch no longer."""
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(self._seconds / 10):
            now = time.monotonic()
            for end, context in [*self._waiting.values()]:
                if now > end:
                    context.cancel()
