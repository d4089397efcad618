"""Messages and artifacts of any form run no code and crash nothing."""

from __future__ import annotations

import contextlib
import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft import WeftError
from weft.remote import server, wire
from weft.remote.client import connect
from weft.remote.limits import ServerLimits
from weft.remote.session import REQUESTS, ClientSession

LIMITS = ServerLimits(bytes=1 << 20, arrays=50, programs=2, devices=16)
TEXTS = st.sampled_from(
    ["tensor<3xf32>", "tensor<f64>", "tensor<0x3xi4>", "tensor<99999999999x9xf32>"]
)
TEXTS |= st.sampled_from(["", "tensor<?xf32>", "tensor<3xf32", "!stablehlo.token", "\0", "é"])
TEXTS |= st.sampled_from(["<@mesh, [{}]>", '<@mesh, [{"x"}]>', "<@mesh, [{", "x" * 5000])
TEXTS |= st.sampled_from(['<["x"=2]>', '<["x"=99999999999]>', '<["x"=4000]>', "<[]>"])
TEXTS |= st.sampled_from(['<["x"=-1]>', "__import__('os')"])
NUMBERS = st.integers(0, 6) | st.integers() | st.just(2**53)
SCALARS = st.none() | st.booleans() | NUMBERS | st.floats() | TEXTS
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4)
)
FORMS = {"integer": NUMBERS, "text": TEXTS, "integers": st.lists(NUMBERS, max_size=4)}


@st.composite
def near_messages(draw):
    """Messages with the right fields, and values that are often right."""
    kind = draw(st.sampled_from(REQUESTS))
    fields = {name: draw(FORMS[form] | JSON) for name, form in wire.KINDS[kind].items()}
    for name in draw(st.lists(st.sampled_from(sorted(fields)), max_size=1)):
        del fields[name]
    return wire.encoded(kind, draw(st.binary(max_size=40)), **fields)


def read(data: bytes) -> list[wire.WireMessage]:
    try:
        return [*wire.messages(data, *REQUESTS)]
    except WeftError as error:
        assert "malformed" in error.message
        return []


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_malformed(data):
    read(data)
    read(struct.pack("<II", min(len(data), 100), max(len(data) - 100, 0)) + data)


@given(JSON, st.binary(max_size=20))
def test_any_json_is_a_message_or_malformed(value, body):
    header = json.dumps(value).encode("utf-8", "surrogatepass")
    read(struct.pack("<II", len(header), len(body)) + header + body)


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"a":' * 50_000])
def test_a_deep_header_is_malformed(deep):
    assert read(struct.pack("<II", len(deep), 0) + deep.encode()) == []


@given(st.lists(near_messages(), max_size=8))
def test_a_session_survives_any_requests(requests):
    replies: list[bytes] = []
    session = ClientSession(LIMITS, replies.append)
    for message in [m for data in requests for m in read(data)]:
        try:
            session.handle(message)
        except WeftError:
            break  # ends the session, and no other
    assert 0 <= session.held <= LIMITS.bytes and len(session.arrays) <= LIMITS.arrays
    assert session.held == sum(array.size for array in session.arrays.values())
    for reply in replies:
        wire.decoded(reply, "done", "failed", "value")
    session.close()
    assert session.held == 0


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "f.weft"
    weft.compile(lambda x: x * 2 + 1, np.ones(3, "f")).save(path)
    return path.read_bytes()


@given(st.data())
def test_changed_artifacts_are_refused(saved, data):
    changed = bytearray(saved)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(saved) - 1))] ^= data.draw(st.integers(1, 255))
    changed = changed[: data.draw(st.sampled_from([len(saved), len(saved) // 2, 100]))]
    if bytes(changed) != saved:
        with contextlib.suppress(WeftError):  # most are; padding between sections may change
            server._loaded(bytes(changed))


def test_a_server_survives_wild_streams(serving):
    """Streams that break the protocol end, and other sessions go on."""
    import grpc

    served, address = serving()
    wild = [b"", b"\0" * 8, b"\xff" * 100, wire.encoded("put"), wire.encoded("hello", oldest="1")]
    hello = wire.encoded("hello", oldest=1, newest=1, weft="weft")
    with connect(address) as client, grpc.insecure_channel(address) as channel:
        for data in wild:
            for first in ([], [hello]):
                answers = [*channel.stream_stream(wire.SESSION)(iter([*first, data]))]
                assert len(answers) <= 2
            answer = channel.stream_unary(wire.UPLOAD)(iter([data, data]))
            assert wire.decoded(answer, "failed")
            (answer,) = channel.unary_stream(wire.DOWNLOAD)(data)
            assert wire.decoded(answer, "failed")
        with pytest.raises(grpc.RpcError) as caught:
            [*channel.stream_stream(wire.SESSION)(iter([bytes(wire.LARGEST_MESSAGE + 1)]))]
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert float(client.put(2.0)) == 2.0
    assert served.limits.clients > 1


@pytest.mark.parametrize(
    ("sent", "problem"), [(b"x" * 7, "7 of 8 bytes"), (b"x" * 9, "more than 8 bytes")]
)
def test_transfers_have_the_size_that_they_say(serving, sent, problem):
    import grpc

    served, address = serving()
    with connect(address) as client, grpc.insecure_channel(address) as channel:
        first = wire.encoded(
            "array", session=client.connection.session, array=99, size=8, context=0,
            type="tensor<f64>", sharding="", mesh="",
        )  # fmt: skip
        answer = channel.stream_unary(wire.UPLOAD)(iter([first, sent]))
        assert problem in wire.decoded(answer, "failed")["message"]
        (session,) = served.sessions.values()
        assert session.held == 0


def test_errors_keep_their_place():
    error = weft.Unsupported("no", help="yes", node="%1 = op")
    error.loc = weft.ir.location.Location('"train.py":41:7')
    sent = wire.decoded(wire.failed(3, error), "failed")
    got = wire.failure_of(sent)
    assert (type(got), str(got)) == (type(error), str(error))
    other = wire.decoded(wire.failed(3, KeyError("x" * 99_999)), "failed")
    assert wire.failure_of(other).message.startswith("KeyError: ")
    gone = wire.decoded(wire.failed(3, MemoryError()), "failed")
    assert "out of memory" in gone["message"]
