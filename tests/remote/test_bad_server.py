"""Whatever a server answers, a client gets an error: it neither hangs, nor crashes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("grpc", reason="grpcio is an optional package")

import grpc

from weft import WeftError
from weft.remote.client import connect
from weft.remote.wire import SESSION, encoded

WELCOME = encoded("welcome", version=1, session="s", weft="other", limits={"pending": 4})
LARGE = np.ones(1 << 17, np.float32)  # which is not sent within a message


@contextlib.contextmanager
def answering(*answers: bytes) -> Iterator[str]:
    """The address of a server that answers each message with the next of these, and ends."""

    def session(requests: Iterator[bytes], context: object) -> Iterator[bytes]:
        for answer, _ in zip(answers, requests, strict=False):
            yield answer

    def any_bytes(request: object, context: object) -> bytes:
        for _ in request:
            pass
        return b"\xff" * 64

    class Wild(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            if details.method == SESSION:
                return grpc.stream_stream_rpc_method_handler(session)
            return grpc.stream_unary_rpc_method_handler(any_bytes)

    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((Wild(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\xff" * 40,
        encoded("done", op=1, sizes=[]),
        encoded("welcome", version=9, session="s", weft="9.9", limits={}),
        encoded("welcome", version=1, session=7, weft="", limits={}),
        encoded("failed", op=0, error="Unknown", message="no", help="", loc="?", node=""),
    ],
    ids=["empty", "no message", "another kind", "newer", "wrong type", "an error"],
)
def test_the_first_answer(answer: bytes):
    with answering(answer) as address, pytest.raises(WeftError):
        connect(address, timeout=5)


@pytest.mark.parametrize(
    "answer",
    [
        b"\x00",
        encoded("welcome", version=1, session="s", weft="", limits={}),
        encoded("done", op=1 << 40, sizes=[]),
        encoded("done", op=-1, sizes=[]),
        encoded("value", b"abc", op=2, size=1 << 60),
    ],
    ids=["cut", "another kind", "an unknown request", "a negative number", "a wrong size"],
)
def test_later_answers(answer: bytes):
    with answering(WELCOME, *[answer] * 3) as address:
        client = connect(address, timeout=5)
        with pytest.raises(WeftError):
            np.asarray(client.put(np.ones(4, np.float32)) + 1)
        for _ in range(2):  # and so does every call from then on
            with pytest.raises(WeftError):
                client.put(np.ones(4, np.float32)).block_until_ready()


def test_the_answer_to_a_transfer():
    with answering(WELCOME) as address:
        client = connect(address, timeout=5)
        with pytest.raises(WeftError):
            client.put(LARGE)
