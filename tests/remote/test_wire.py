"""Messages at the edges of their forms: lengths, numbers, versions, small elements, limits."""

from __future__ import annotations

import queue
import struct

import ml_dtypes
import numpy as np
import pytest

import weft
from weft import WeftError
from weft.errors import Unsupported
from weft.ir.types import DTYPES, TensorType
from weft.remote import wire
from weft.remote.limits import ServerLimits, parse_limits


def forget(program: object) -> bytes:
    return wire.encoded("forget", program=program)


def test_a_message_is_two_lengths_a_header_and_a_body():
    data = wire.encoded("value", b"abc", op=1, size=3)
    header = b'{"op":1,"size":3,"kind":"value"}'
    assert data == struct.pack("<II", len(header), 3) + header + b"abc"
    both = [*wire.messages(data + forget(2), "value", "forget")]
    assert [m.kind for m in both] == ["value", "forget"] and both[1]["program"] == 2
    assert bytes(both[0].body) == b"abc" and bytes(both[1].body) == b""
    assert [*wire.messages(b"", "value")] == []
    for cut in (1, 7, 8, len(data) - 1):
        with pytest.raises(WeftError, match="cut off"):
            [*wire.messages(data[:cut], "value")]
    assert wire.decoded(data, "value")["size"] == 3
    for wrong in (b"", data + data):
        with pytest.raises(WeftError, match="messages, expected 1"):
            wire.decoded(wrong, "value")
    with pytest.raises(WeftError, match="expected forget or free"):
        wire.decoded(data, "forget", "free")


@pytest.mark.parametrize("size", [0, 1, 2, wire.LARGEST_HEADER, wire.LARGEST_HEADER + 1])
def test_headers_of_any_length(size):
    whole = b'{"kind":"forget","program":1}'
    header = whole.ljust(size) if size > 2 else b"{}"[:size]
    error = "cannot have" if size < 2 or size > wire.LARGEST_HEADER else "its kind is None"
    data = struct.pack("<II", len(header), 0) + header
    if size == wire.LARGEST_HEADER:
        assert wire.decoded(data, "forget")["program"] == 1
        return
    with pytest.raises(WeftError, match=error):
        wire.decoded(data, "forget")


@pytest.mark.parametrize("number", [0, 1, 2**53 - 1])
def test_numbers(number):
    assert wire.decoded(forget(number), "forget")["program"] == number
    free = wire.encoded("free", op=number, free=[number, 0])
    assert wire.decoded(free, "free")["free"] == [number, 0]


@pytest.mark.parametrize("number", [-1, 2**53, True, 1.0, None, "1", [1]])
def test_what_is_no_number(number):
    with pytest.raises(WeftError, match="is not integer"):
        wire.decoded(forget(number), "forget")
    with pytest.raises(WeftError, match="is not integers"):
        wire.decoded(wire.encoded("free", op=1, free=[1, number]), "free")


def test_messages_that_wait_together_are_joined(monkeypatch):
    monkeypatch.setattr(wire, "CHUNK", 10)
    waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    for data in (b"a" * 4, b"b" * 6, b"c", b"d" * 30, b"e", b"f", None):
        waiting.put(data)
    assert [*wire.batches(waiting)] == [b"aaaabbbbbb", b"c" + b"d" * 30, b"ef"]
    waiting.put(b"x" * 10)
    waiting.put(b"y")
    waiting.put(None)
    assert [*wire.batches(waiting)] == [b"x" * 10, b"y"]


def test_versions(monkeypatch):
    monkeypatch.setattr(wire, "OLDEST", 2)
    monkeypatch.setattr(wire, "NEWEST", 4)
    agreed = {(1, 2): 2, (3, 3): 3, (1, 9): 4, (4, 9): 4}
    assert {pair: wire.agreed_version(*pair, "p") for pair in agreed} == agreed
    for pair in ((1, 1), (5, 9)):
        with pytest.raises(WeftError, match=f"speaks versions {pair[0]} to {pair[1]}"):
            wire.agreed_version(*pair, "p")


def test_errors_travel():
    def there_and_back(error: BaseException) -> WeftError:
        return wire.failure_of(wire.decoded(wire.failed(3, error), "failed"))

    found = there_and_back(Unsupported("m" * 20_000, help="h", node="%3"))
    assert isinstance(found, Unsupported) and len(found.message) == 1 << 14
    assert (found.help, found.node, found.loc) == ("h", "%3", None)
    assert there_and_back(MemoryError()).message == "the server is out of memory"
    assert there_and_back(MemoryError()).help == "free arrays"
    other = there_and_back(ZeroDivisionError("oh"))
    assert other.message == "ZeroDivisionError: oh" and "bug in weft" in other.help
    assert type(other) is WeftError


def test_elements_of_fewer_bits_than_a_byte():
    type = TensorType((3,), DTYPES["i4"])
    given = np.array([-8, -1, 7]).astype(ml_dtypes.int4)
    data = bytes(wire.elements_of(given, type.dtype))
    assert data == bytes([8, 15, 7]) and wire.size_of(type) == 3
    room = wire.room_for(type)
    assert room.nbytes == 3
    room[:] = np.frombuffer(data, np.uint8)
    back = wire.array_from(room, type)
    assert not back.flags.writeable and bytes(wire.elements_of(back, type.dtype)) == data
    room = np.array([15, 16, 0], np.uint8)
    with pytest.raises(WeftError, match="not i4"):
        wire.array_from(room, type)
    flags = np.array([True, False])
    assert bytes(wire.elements_of(flags, DTYPES["i1"])) == b"\1\0"
    wide = np.array([256, -1], np.int16)
    assert bytes(wire.elements_of(wide, DTYPES["i16"])) == b"\0\1\xff\xff"
    assert wire.size_of(TensorType((2, 3), DTYPES["f64"])) == 48


@pytest.mark.parametrize(("count", "size"), [(0, 0), (1, 4), (64, 256), (65, 0)])
def test_small_results_travel_with_the_news(count, size):
    array = weft.put(np.arange(count, dtype=np.float32))
    assert wire.small_elements(array) == np.arange(count, dtype=np.float32).tobytes()[:size]


def test_limits():
    limits = ServerLimits(bytes=100, arrays=3)
    limits.check("arrays", 3, "x", "y")
    with pytest.raises(WeftError, match=r"x: 4, but the server's limit arrays is 3"):
        limits.check("arrays", 4, "x", "y")
    with pytest.raises(WeftError, match=r"x: 101 B, but the server's limit bytes is 100 B"):
        limits.check("bytes", 101, "x", "y")
    plain = ServerLimits()
    assert plain.as_fields() == {
        "bytes": 8 * 2**30, "arrays": 10**5, "programs": 10**3, "program_bytes": 2**28,
        "pending": 10**3, "transfers": 3, "devices": 2**10, "clients": 16,
    }  # fmt: skip
    made = parse_limits("bytes=4G, clients=2,program_bytes=3MiB,arrays=7k,devices=1T")
    assert made.bytes == 4 << 30 and made.clients == 2 and made.program_bytes == 3 << 20
    assert made.arrays == 7 << 10 and made.devices == 1 << 40 and made.pending == plain.pending
    for wrong in ("bytes=0", "bytes=-1", "bytes=1.5G", "size=3", "bytes=", "bytes=G"):
        with pytest.raises(WeftError, match="is not a limit"):
            parse_limits(wrong)
