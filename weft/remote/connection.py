"""A client's connection: requests are sent in order, and each gets its reply, or an error."""

from __future__ import annotations

import contextlib
import itertools
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from weft.errors import WeftError
from weft.ir.types import Array as Numpy
from weft.remote.channel import connection_error, import_grpc, open_channel, token_metadata
from weft.remote.streams import chunks_of, read_ahead
from weft.remote.wire import (
    CHUNK,
    DOWNLOAD,
    NEWEST,
    OLDEST,
    SESSION,
    UPLOAD,
    WireMessage,
    agreed_version,
    batches,
    decoded,
    encoded,
    failure_of,
    messages,
)

REPLIES = ("done", "failed", "value")
Completed: TypeAlias = Callable[[WireMessage | None, BaseException | None], None]


class Reply:
    """The reply to a request, or the error in its place."""

    def __init__(self) -> None:
        # A lock, not an event: it is half the time of a round trip's waking.
        self._arrives = threading.Lock()
        self._arrives.acquire()
        self.message: WireMessage | None = None
        self.error: BaseException | None = None
        self.callback: Completed | None = None

    def arrive(self, message: WireMessage | None, error: BaseException | None) -> None:
        """Wake the waiter."""
        # Before the release: it is what a waiter reads when it wakes up.
        self.message, self.error = message, error
        self._arrives.release()
        if self.callback is not None:
            self.callback(message, error)

    def wait(self, timeout: float = -1) -> WireMessage:
        """The reply; raises its error."""
        if not self._arrives.acquire(timeout=timeout):
            raise WeftError(
                f"the server has not replied in {timeout:g} seconds",
                help="see whether it runs, and whether the address is right",
            )
        # Released again, so that other waiters, and later calls, do not block.
        self._arrives.release()
        if self.error is not None:
            raise self.error
        assert self.message is not None
        return self.message


class Connection:
    """A session at a server. After it has ended every call raises the reason."""

    def __init__(
        self, address: str, token: str | None, certificates: bytes | bool, timeout: float
    ) -> None:
        self.address, self._timeout = address, timeout
        self._grpc = import_grpc("connecting to a server")
        self._channel = open_channel(address, certificates, timeout)
        self._metadata = token_metadata(token)
        # Reentrant: arrays are dropped by the garbage collector, at any time.
        self._lock = threading.RLock()
        self._pending: dict[int, Reply] = {}
        self._numbers = itertools.count(1)
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.error: WeftError | None = None  # why it has ended
        self.garbage: deque[int] = deque()  # handles of arrays that were dropped
        self._freeing: Reply | None = None
        self._call = self._channel.stream_stream(SESSION)(
            batches(self._outgoing), metadata=self._metadata
        )
        welcome = self._greet()
        self.version = agreed_version(welcome["version"], welcome["version"], welcome["weft"])
        self.session: str = welcome["session"]
        self.limits: dict[str, Any] = welcome["limits"]
        # The server's own limit: a client that is faster blocks here, not in the buffers of gRPC.
        self._slots = threading.Semaphore(int(self.limits.get("pending", 1)))
        self._transfers = threading.Semaphore(int(self.limits.get("transfers", 1)))

    def _greet(self) -> WireMessage:
        """Say hello, and start to read replies once there is a welcome."""
        arrived, version = Reply(), sys.modules["weft"].__version__  # which imports this
        self._outgoing.put(encoded("hello", oldest=OLDEST, newest=NEWEST, weft=f"weft {version}"))
        threading.Thread(
            target=self._read, args=(arrived,), name="weft-replies", daemon=True
        ).start()
        try:
            return arrived.wait(self._timeout)
        except WeftError as error:
            self.end(error)
            raise

    def _read(self, first: Reply) -> None:
        """Give each reply to its request until the stream ends."""
        reason: WeftError | None = None
        try:
            for data in self._call:
                if first.message is None:
                    message = decoded(data, "welcome", "failed")
                    if message.kind == "failed":
                        raise failure_of(message)
                    first.arrive(message, None)
                    continue
                for message in messages(data, *REPLIES):
                    self._deliver(message)
        except self._grpc.RpcError as error:
            reason = connection_error(self.address, error)
        except WeftError as error:
            reason = error
        finally:
            self.end(reason or connection_error(self.address, "the server has closed it"))
            if first.message is None:
                first.arrive(None, self.error)

    def _deliver(self, message: WireMessage) -> None:
        """Give a reply to its request."""
        error = failure_of(message) if message.kind == "failed" else None
        with self._lock:
            reply = self._pending.pop(message["op"], None)
        if reply is not None:
            reply.arrive(message, error)
        else:  # of the session itself, or of no request
            raise error or WeftError(
                f"{self.address} has answered request {message['op']}, which waits for no answer",
                help="this is a bug in weft; please report it",
            )

    def end(self, reason: WeftError) -> None:
        """End the session: whatever waits gets the reason, and so does every later call."""
        with self._lock:
            if self.error is None:
                self.error = reason
            # Taken under the lock and answered outside of it: a callback may make requests, which
            # take it.
            waiting, self._pending = self._pending, {}
        self._outgoing.put(None)
        for reply in waiting.values():
            reply.arrive(None, self.error)
        self._call.cancel()
        self._channel.close()

    def check(self) -> None:
        """Raise if the session has ended."""
        if self.error is not None:
            raise self.error

    def new_handle(self) -> int:
        """A number for an array, a program or a request."""
        return next(self._numbers)

    def request(
        self,
        kind: str,
        body: bytes | memoryview = b"",
        callback: Completed | None = None,
        **fields: Any,
    ) -> Reply:
        """Send a request; its reply comes later."""
        op, reply = next(self._numbers), Reply()
        reply.callback = callback
        # Dropped handles travel with the next request: an array costs no message of its own to
        # free. The server frees them after it has handled the request, which may still read them.
        data = encoded(kind, body, op=op, free=self._take_garbage(), **fields)
        with self._lock:
            self.check()
            # Registered before it is sent: the reply may arrive before this thread goes on.
            self._pending[op] = reply
        self._outgoing.put(data)
        return reply

    def execute(self, callback: Completed, **fields: Any) -> None:
        """Begin an execution; not too many are ahead of the server."""
        self._slots.acquire()

        def on_reply(message: WireMessage | None, error: BaseException | None) -> None:
            self._slots.release()
            callback(message, error)

        try:
            self.request("execute", callback=on_reply, **fields)
        except WeftError:
            self._slots.release()
            raise

    def tell(self, kind: str, **fields: Any) -> None:
        """Send a message that has no reply."""
        if self.error is None:
            self._outgoing.put(encoded(kind, **fields))

    def drop(self, handle: int, size: int) -> None:
        """Have the server free an array: with the next request, or now if it is large."""
        # Called by finalizers: appending to a deque takes no lock, and cannot run into one that
        # this thread holds.
        self.garbage.append(handle)
        if size >= CHUNK or len(self.garbage) > 1000:
            self._free()

    def _free(self) -> None:
        with contextlib.suppress(WeftError):  # it has ended, and so has what it held
            self._freeing = self.request("free")

    def _take_garbage(self) -> list[int]:
        handles: list[int] = []
        while self.garbage:  # arrays are dropped at any time, in any thread
            try:
                handles.append(self.garbage.popleft())
            except IndexError:
                break
        return handles

    # Transfers

    def upload(self, kind: str, data: memoryview, **fields: Any) -> WireMessage:
        """Send an array or a program in chunks, and wait for the answer."""
        self.check()
        if self.garbage:
            self._free()
        if (freeing := self._freeing) is not None:
            freeing.wait()  # transfers are not in order with requests, and need the room
            self._freeing = None
        first = encoded(kind, session=self.session, size=len(data), **fields)
        send = self._channel.stream_unary(UPLOAD)
        try:
            with self._transfers:
                answer = send(_chunks(first, data), metadata=self._metadata)
        except (self._grpc.RpcError, ValueError) as error:  # ValueError: a closed channel
            raise self.error or connection_error(self.address, error) from None
        message = decoded(answer, "done", "compiled", "failed")
        if message.kind == "failed":
            raise failure_of(message)
        return message

    def download(self, handle: int, room: Numpy) -> None:
        """Receive the elements of an array, which may have to be computed first."""
        self.check()
        asked = encoded("download", session=self.session, array=handle)
        with self._transfers:
            self._download(asked, room)

    def _download(self, asked: bytes, room: Numpy) -> None:
        at = 0
        try:
            chunks = self._channel.unary_stream(DOWNLOAD)(asked, metadata=self._metadata)
            first = decoded(next(chunks), "value", "failed")
            # The first message says whether there are elements at all; only then do raw chunks
            # follow.
            if first.kind == "failed":
                raise failure_of(first)
            target = room.data
            for chunk in read_ahead(chunks, len(room)):
                target[at : at + len(chunk)] = chunk
                at += len(chunk)
        except (self._grpc.RpcError, StopIteration) as error:
            raise self.error or connection_error(self.address, error) from None
        except ValueError:  # a closed channel, or more elements than there is room for
            self.check()
            raise self._cut(at + 1, len(room)) from None
        if at != len(room):
            raise self._cut(at, len(room))

    def _cut(self, found: int, wanted: int) -> WeftError:
        return WeftError(
            f"{self.address} sent {found:,} bytes of an array that has {wanted:,}",
            help="this is a bug in weft; please report it",
        )


def _chunks(first: bytes, data: memoryview) -> Iterator[bytes]:
    yield first
    yield from chunks_of(data)
