"""The streams of a server's clients, none of which may hold it up: replies, and first messages."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from typing import Any, Protocol

from weft.errors import WeftError
from weft.remote.wire import CHUNK

FIRST = 10.0  # seconds for the first message of a stream
LARGE = 1 << 23  # bytes of a transfer from which a second thread pays off
AHEAD = 2  # chunks that it is ahead


class Replies:
    """The replies of a session that wait to be sent; so many requests at most have none yet.

    A client that sends requests and reads no replies is stopped by its stream's flow control.
    """

    def __init__(self, most: int) -> None:
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._slots = threading.Semaphore(most)
        self._is_closed = False
        self._lock = threading.Lock()
        self._unanswered = 0  # admitted requests

    @property
    def are_complete(self) -> bool:
        """Whether every admitted request has its reply."""
        return self._unanswered <= 0

    def admit(self, may_wait: bool = True) -> bool:
        """Wait until another request may be handled; False if that takes a wait and may not."""
        if not self._slots.acquire(blocking=may_wait):
            return False
        if self._is_closed:
            self._slots.release()
            raise WeftError("the session has ended", help="connect again")
        with self._lock:
            self._unanswered += 1
        return True

    def put(self, data: bytes | None) -> None:
        """Add a reply, or the end."""
        with self._lock:  # replies come from several threads
            self._unanswered -= 1
        self._queue.put(data)

    def wake(self) -> None:
        """End a wait for a reply without one."""
        self._queue.put(b"")

    def get(self) -> bytes | None:
        """Take the next reply, which frees the slot of its request; empty after `wake`."""
        data = self._queue.get()
        if data != b"":
            self._slots.release()
        return data

    def empty(self) -> bool:
        """Whether no reply waits."""
        return self._queue.empty()

    def close(self) -> None:
        """Admit no more requests."""
        self._is_closed = True
        self._slots.release()


class Requests(Protocol):
    """The requests of a session, in order."""

    @property
    def are_here(self) -> bool:
        """Whether another one has been received."""
        ...

    def handle_next(self, may_wait: bool) -> bool:
        """Handle one; False at the end, or if it must wait for a slot and may not."""
        ...


class Turns:
    """The requests and replies of a session in one thread, while requests are answered at once.

    Waking a second thread takes as long as a short request. Where replies come later, that thread
    reads requests meanwhile.
    """

    def __init__(self, requests: Requests, replies: Replies) -> None:
        self._requests, self._replies = requests, replies
        self._is_mine = True  # whether the thread of the replies handles requests
        self._passed = threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def get(self) -> bytes | None:
        """The next reply, or None at the end; handles requests before it."""
        requests, replies = self._requests, self._replies
        while True:
            while self._is_mine:
                if not requests.are_here and not (replies.are_complete and replies.empty()):
                    break
                if not requests.handle_next(may_wait=False):
                    break
            if self._is_mine and replies.empty():
                self._pass_on()
            if (data := replies.get()) != b"":
                return data

    def empty(self) -> bool:
        """Whether no reply waits."""
        return self._replies.empty()

    def _pass_on(self) -> None:
        """Have the other thread handle requests."""
        self._is_mine = False
        if self._thread is None:
            self._thread = threading.Thread(target=self._read, name="weft-session", daemon=True)
            self._thread.start()
        self._passed.release()

    def _read(self) -> None:
        """Handle requests while some have no reply, in turns; up to the end."""
        while self._passed.acquire() and self._requests.handle_next(may_wait=True):
            while self._requests.are_here or not self._replies.are_complete:
                if not self._requests.handle_next(may_wait=True):
                    return
            self._is_mine = True
            self._replies.wake()


def chunks_of(data: memoryview) -> Iterator[bytes]:
    """The chunks of a transfer."""
    cut = (bytes(data[at : at + CHUNK]) for at in range(0, len(data), CHUNK))
    return read_ahead(cut, len(data))


def read_ahead(chunks: Iterator[bytes], size: int) -> Iterator[bytes]:
    """The chunks of a transfer of so many bytes; a thread takes or makes the next ones meanwhile.

    A stream of gRPC does nothing for the next message while the last one is copied.
    """
    return _read_ahead(chunks) if size >= LARGE else chunks


def _read_ahead(chunks: Iterator[bytes]) -> Iterator[bytes]:
    found: queue.SimpleQueue[bytes | BaseException | None] = queue.SimpleQueue()
    slots, is_open = threading.Semaphore(AHEAD), True

    def read() -> None:
        try:
            for chunk in chunks:
                found.put(chunk)
                slots.acquire()
                if not is_open:
                    return
        except BaseException as error:  # noqa: BLE001  # raised where the chunk is awaited
            found.put(error)
        else:
            found.put(None)

    threading.Thread(target=read, name="weft-chunks", daemon=True).start()
    try:
        while (chunk := found.get()) is not None:
            if isinstance(chunk, BaseException):
                raise chunk
            yield chunk
            slots.release()
    finally:
        is_open = False
        slots.release()


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
