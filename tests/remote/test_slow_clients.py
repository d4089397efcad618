"""Clients that open streams and then do nothing hold no server up, nor more than their limits."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator

import grpc
import numpy as np
import pytest

from weft import WeftError
from weft.remote import wire
from weft.remote.client import connect
from weft.remote.limits import ServerLimits
from weft.remote.streams import Replies, Turns

OWN = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own for each channel
TOKEN = (("authorization", "Bearer right-token"),)


@pytest.fixture
def silent():
    """Streams to a method that send some messages, and then nothing."""
    ended, channels = threading.Event(), []

    def sent(first: tuple[bytes, ...]) -> Iterator[bytes]:
        yield from first
        ended.wait()

    def start(address: str, method: str, *first: bytes, **options):
        channels.append(grpc.insecure_channel(address, OWN))
        return channels[-1].stream_stream(method)(sent(first), **options)

    yield start
    ended.set()
    for channel in channels:
        channel.close()


@pytest.mark.parametrize("method", [wire.SESSION, wire.UPLOAD, wire.DOWNLOAD])
def test_streams_without_a_token_take_no_place(serving, silent, method):
    _, address = serving(ServerLimits(clients=1), token="right-token")
    streams = [silent(address, method) for _ in range(12)]
    for stream in streams:
        with pytest.raises(grpc.RpcError) as caught:
            next(stream)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    with connect(address, token="right-token") as client:
        assert float(client.put(2.0)) == 2.0


@pytest.mark.parametrize("method", [wire.SESSION, wire.UPLOAD, wire.DOWNLOAD])
def test_streams_of_no_session_end(serving, silent, method, monkeypatch):
    monkeypatch.setattr("weft.remote.streams.FIRST", 0.3)
    _, address = serving(ServerLimits(clients=1), token="right-token")
    streams = [silent(address, method, metadata=TOKEN) for _ in range(8)]
    for stream in streams:
        with pytest.raises(grpc.RpcError) as caught:
            next(stream)
        assert caught.value.code() is not grpc.StatusCode.UNAUTHENTICATED
    with connect(address, token="right-token") as client:
        assert float(client.put(2.0)) == 2.0


def test_uploads_at_a_time_share_the_bytes_of_a_client(serving, silent):
    size = 1 << 20
    server, address = serving(ServerLimits(bytes=2 * size, clients=2))
    with connect(address) as client:
        (session,) = server.sessions.values()

        def upload(number: int):
            first = wire.encoded(
                "array", session=client.connection.session, array=number, size=size, context=0,
                type=f"tensor<{size}xui8>", sharding="", mesh="",
            )  # fmt: skip
            return silent(address, wire.UPLOAD, first, bytes(size - 1))

        streams = [upload(900)]
        while session.held < size:
            time.sleep(0.01)
        with pytest.raises(WeftError, match="do not fit: this client holds 1 MiB of 2 MiB"):
            client.put(np.ones(size + 1, np.uint8))
        held = client.put(np.ones(size, np.uint8))
        failed = wire.decoded(next(upload(901)), "failed")
        assert "do not fit" in failed["message"]
        streams[0].cancel()
        while session.held > held.nbytes:
            time.sleep(0.01)
        assert session.incoming == session.transfers == 0


def test_transfers_at_a_time(serving, silent):
    """A client waits for its own; one that does not is refused."""
    server, address = serving(ServerLimits(transfers=1))
    with connect(address) as client:
        arrays = [client.put(np.full(1 << 18, n, np.float32)) for n in range(4)]
        found: list[float] = []
        threads = [
            threading.Thread(target=lambda x=x: found.append(np.asarray(x)[5])) for x in arrays
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == [0, 1, 2, 3]
        first = wire.encoded(
            "array", session=client.connection.session, array=900, size=99, context=0,
            type="tensor<99xui8>", sharding="", mesh="",
        )  # fmt: skip
        under_way = silent(address, wire.UPLOAD, first)
        (session,) = server.sessions.values()
        while not session.transfers:
            time.sleep(0.01)
        failed = wire.decoded(next(silent(address, wire.UPLOAD, first)), "failed")
        assert "the server's limit transfers is 1" in failed["message"]
        under_way.cancel()


def test_requests_without_replies_are_few():
    replies, admitted = Replies(2), threading.Semaphore(0)

    def requests() -> None:
        with pytest.raises(WeftError, match="has ended"):
            while True:
                replies.admit()
                admitted.release()

    thread = threading.Thread(target=requests)
    thread.start()
    for _ in range(2):
        assert admitted.acquire(timeout=5)
    assert not admitted.acquire(timeout=0.05), "the third waits until a reply is taken"
    replies.put(b"one")
    assert replies.get() == b"one" and admitted.acquire(timeout=5)
    replies.close()
    thread.join(5)
    assert not thread.is_alive()


class Numbered:
    """Requests that are answered at once, or later if they are odd; None is their end."""

    are_here = False

    def __init__(self, replies: Replies) -> None:
        self.replies, self.threads = replies, list[str]()
        self.numbers: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def handle_next(self, may_wait: bool) -> bool:
        number = self.numbers.get()
        if number is None:
            self.replies.put(None)
            return False
        assert self.replies.admit(may_wait)
        self.threads.append(threading.current_thread().name)
        if number % 2 == 0:
            self.replies.put(b"%d" % number)
        return True


def test_requests_and_replies_take_turns():
    replies, mine = Replies(10), threading.current_thread().name
    requests = Numbered(replies)
    turns = Turns(requests, replies)

    def replies_to(*numbers: int | None) -> bytes | None:
        for number in numbers:
            requests.numbers.put(number)
        return turns.get()

    assert [replies_to(0), replies_to(2)] == [b"0", b"2"]
    assert replies_to(1, 4) == b"4"  # the other thread reads while 1 has no reply
    replies.put(b"1")
    assert [replies_to(6), turns.get()] == [b"1", b"6"]
    assert [replies_to(8), replies_to(None)] == [b"8", None]  # all have one
    assert requests.threads == [mine] * 3 + ["weft-session"] * 2 + [mine]


def test_replies_that_nobody_reads_stop_the_requests(serving):
    """Sixteen thousand fetches of 64 KiB: a GiB of replies, if all were made."""
    server, address = serving(ServerLimits(pending=4))
    size, count = wire.INLINE, 1 << 14
    put = wire.encoded(
        "put", bytes(size), op=1, array=1, context=0, free=[],
        type=f"tensor<{size}xui8>", sharding="", mesh="",
    )  # fmt: skip
    fetches = [wire.encoded("fetch", op=n + 2, array=1, free=[]) for n in range(count)]
    hello = wire.encoded("hello", oldest=1, newest=1, weft="weft")
    with grpc.insecure_channel(address, OWN) as channel:
        stream = channel.stream_stream(wire.SESSION)(iter([hello, put, b"".join(fetches)]))
        next(stream)
        (session,) = server.sessions.values()
        time.sleep(0.5)
        sent = [
            message for _ in range(20) for message in wire.messages(next(stream), "done", "value")
        ]
        assert {message.kind for message in sent[1:]} == {"value"}
        assert session.is_open
        stream.cancel()
    while server.sessions:
        time.sleep(0.01)
