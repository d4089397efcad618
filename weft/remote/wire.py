"""The messages between client and server: a JSON header with checked fields, then raw bytes.

    4 bytes: the length of the header | 4 bytes: that of the body | header | body

What is queued at the same time travels in one message of gRPC, one after another. Every kind of
message has fixed fields with fixed types; one of another form is refused before anything is done
for it, and no message names code to run.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from weft.array import Array
from weft.array.host import aligned_bytes
from weft.errors import Unsupported, WeftError
from weft.executable.signature import tensor_type
from weft.ir.location import Location
from weft.ir.types import Array as Numpy
from weft.ir.types import DType, TensorType
from weft.mesh import Mesh, Sharding, as_sharding, parse_mesh, parse_sharding
from weft.records import dataclass

OLDEST, NEWEST = 1, 1  # protocol versions that this Weft speaks
SERVICE = "/weft.Devices/"
SESSION, UPLOAD, DOWNLOAD = (f"{SERVICE}{name}" for name in ("Session", "Upload", "Download"))
LARGEST_HEADER = 1 << 20
INLINE = 1 << 16  # bytes of an array that travels within a message
SMALL = 1 << 8  # bytes of a result that travels with the news that it is computed
MOST_SMALL = 1 << 12  # bytes of all of them
CHUNK = 1 << 20  # bytes of a part of a larger one
LARGEST_MESSAGE = 4 << 20
MOST_NUMBER = 1 << 53  # of a handle: JSON readers are exact up to here
_MESH = "mesh"
_LENGTHS = struct.Struct("<II")
_ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode

INTEGER, TEXT, INTEGERS, FLAG, OPTIONS = "integer", "text", "integers", "flag", "options"
# The fields of each kind of message.
ERROR = {"error": TEXT, "message": TEXT, "help": TEXT, "loc": TEXT, "node": TEXT}
PLACED = {"type": TEXT, "sharding": TEXT, "mesh": TEXT}
KINDS: dict[str, dict[str, str]] = {
    # from the client, on its session's stream
    "hello": {"oldest": INTEGER, "newest": INTEGER, "weft": TEXT},
    "put": {"op": INTEGER, "array": INTEGER, "context": INTEGER, "free": INTEGERS} | PLACED,
    "reshard": {"op": INTEGER, "array": INTEGER, "result": INTEGER, "context": INTEGER}
    | {"sharding": TEXT, "mesh": TEXT, "free": INTEGERS},
    "execute": {"op": INTEGER, "program": INTEGER, "arguments": INTEGERS, "results": INTEGERS}
    | {"context": INTEGER, "free": INTEGERS},
    "fetch": {"op": INTEGER, "array": INTEGER, "free": INTEGERS},
    "free": {"op": INTEGER, "free": INTEGERS},
    "forget": {"program": INTEGER},
    "context": {"context": INTEGER, "place": TEXT},
    # from the client, the first message of a transfer
    "array": {"session": TEXT, "array": INTEGER, "size": INTEGER, "context": INTEGER} | PLACED,
    "program": {"session": TEXT, "program": INTEGER, "size": INTEGER, "form": TEXT}
    | {"options": OPTIONS},
    "download": {"session": TEXT, "array": INTEGER},
    # from the server
    "welcome": {"version": INTEGER, "session": TEXT, "weft": TEXT, "limits": OPTIONS},
    "done": {"op": INTEGER, "sizes": INTEGERS},  # bytes of the small results behind it
    "failed": {"op": INTEGER} | ERROR,
    "value": {"op": INTEGER, "size": INTEGER},
    "compiled": {"op": INTEGER},
}


@dataclass(frozen=True, slots=True)
class WireMessage:
    """A message: its kind, its fields, and the bytes behind them."""

    kind: str
    fields: Mapping[str, Any]
    body: bytes | memoryview = b""

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]


def encoded(kind: str, body: bytes | memoryview = b"", **fields: Any) -> bytes:
    """A message as bytes."""
    fields["kind"] = kind
    header = _ENCODER(fields).encode()
    return b"".join((_LENGTHS.pack(len(header), len(body)), header, body))


class Outgoing(Protocol):
    """A queue of messages, up to None."""

    def get(self) -> bytes | None: ...
    def empty(self) -> bool: ...


def batches(outgoing: Outgoing) -> Iterator[bytes]:
    """The messages of a queue up to None; those that wait together are joined."""
    while (data := outgoing.get()) is not None:
        size, batch = len(data), [data]
        while size < CHUNK and not outgoing.empty():  # this thread alone takes from it
            following = outgoing.get()
            if following is None:
                yield b"".join(batch)
                return
            size += len(following)
            batch.append(following)
        yield data if len(batch) == 1 else b"".join(batch)


def messages(data: bytes, *kinds: str) -> Iterator[WireMessage]:
    """The messages of a batch."""
    at = 0
    while at < len(data):
        if len(data) - at < 8:
            raise _malformed("it is cut off")
        # Lengths come from the other side: nothing is allocated by them, and slices are checked
        # against the bytes that are there.
        header, body = _LENGTHS.unpack_from(data, at)
        end = at + 8 + header + body
        if end > len(data):
            raise _malformed(f"it is cut off: {end - at:,} bytes, {len(data) - at:,} are there")
        yield _message(data, at + 8, header, body, kinds)
        at = end


def decoded(data: bytes, *kinds: str) -> WireMessage:
    """The only message of a batch."""
    found = [*messages(data, *kinds)]
    if len(found) != 1:
        raise _malformed(f"{len(found)} messages, expected 1")
    return found[0]


def _message(data: bytes, at: int, header: int, body: int, kinds: tuple[str, ...]) -> WireMessage:
    """A message that was received, of one of these kinds; an error if it has another form."""
    if not 2 <= header <= LARGEST_HEADER:
        raise _malformed(f"its header cannot have {header:,} bytes")
    end = at + header
    try:
        fields = json.loads(str(data[at:end], "utf-8"))
    except (ValueError, RecursionError) as error:  # ValueError: invalid JSON or UTF-8
        raise _malformed(f"its header is not JSON: {error}"[:200]) from None
    kind = fields.pop("kind", None) if isinstance(fields, dict) else None
    if kind not in kinds:
        raise _malformed(f"its kind is {kind!r}, expected {' or '.join(kinds)}"[:300])
    for name, form in KINDS[kind].items():
        if not _has_form(fields.get(name), form):
            raise _malformed(f"{name} of {kind} is not {form}: {fields.get(name)!r}"[:200])
    return WireMessage(kind, fields, memoryview(data)[end : end + body])


def _has_form(value: object, form: str) -> bool:
    match form:
        case "integer":
            return _is_number(value)
        case "text":
            return isinstance(value, str)
        case "integers":
            return isinstance(value, list) and all(map(_is_number, value))
        case _:
            plain = (str, int, float, bool, type(None))
            return isinstance(value, dict) and all(isinstance(v, plain) for v in value.values())


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < MOST_NUMBER


def _malformed(what: str) -> WeftError:
    return WeftError(
        f"a malformed message: {what}", help="client and server must both be Weft's proxy"
    )


def agreed_version(oldest: int, newest: int, peer: str) -> int:
    """The newest protocol version that both sides speak."""
    version = min(newest, NEWEST)
    if version < max(oldest, OLDEST):
        raise WeftError(
            f"the client speaks versions {oldest} to {newest} of the protocol, and the server "
            f"{OLDEST} to {NEWEST}",
            help=f"install the same Weft on both sides: the other one is {peer[:40]}",
        )
    return version


# Errors


def failed(op: int, error: BaseException) -> bytes:
    """The `failed` message of an error."""
    if not isinstance(error, WeftError):
        memory = isinstance(error, MemoryError)
        message = "the server is out of memory" if memory else f"{type(error).__name__}: {error}"
        help = "free arrays" if memory else "this is a bug in weft; please report it"
        error = WeftError(message, help=help)
    loc = error.loc.text if error.loc is not None else ""
    name = "Unsupported" if isinstance(error, Unsupported) else "WeftError"
    texts = {"message": error.message, "help": error.help, "loc": loc, "node": error.node or ""}
    # A line each at most of a long text: an error must fit into a message.
    fields: dict[str, Any] = {key: text[: 1 << 14] for key, text in texts.items()}
    return encoded("failed", op=op, error=name, **fields)


def failure_of(message: WireMessage) -> WeftError:
    """The error that a `failed` message has."""
    kind = Unsupported if message["error"] == "Unsupported" else WeftError
    loc = Location(message["loc"]) if message["loc"] else None
    return kind(message["message"], help=message["help"], loc=loc, node=message["node"] or None)


# Arrays


def placed_fields(
    shape: Sequence[int], dtype: DType, sharding: Sharding | None, mesh: Mesh | None
) -> dict[str, str]:
    """The fields of an array's type and place."""
    return {"type": str(TensorType(tuple(shape), dtype))} | place_fields(sharding, mesh)


def place_fields(sharding: Sharding | None, mesh: Mesh | None) -> dict[str, str]:
    """The fields of a sharding and its mesh; both are empty where the receiver may choose."""
    if sharding is None or mesh is None:
        return {"sharding": "", "mesh": ""}
    return {"sharding": replace(sharding, mesh=_MESH).body(), "mesh": str(mesh)}


def type_in(message: WireMessage) -> TensorType:
    """The type in a message."""
    try:
        return tensor_type(message["type"])
    except (WeftError, ValueError, KeyError, IndexError, TypeError, OverflowError):
        raise _malformed(f"{message['type'][:80]!r} is not a tensor type") from None


def place_in(message: WireMessage, rank: int) -> tuple[Sharding, Mesh] | None:
    """The sharding and mesh in a message; None if the receiver may choose."""
    if not message["mesh"]:
        return None
    try:
        mesh = parse_mesh(message["mesh"])
        sharding = parse_sharding(message["sharding"])
        return as_sharding(replace(sharding, mesh=mesh), rank, mesh), mesh
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, AttributeError):
        shown = f"{message['sharding'][:80]!r} on {message['mesh'][:80]!r}"
        raise _malformed(f"{shown} is not a sharding") from None


def elements_of(array: Numpy, dtype: DType) -> memoryview:
    """The elements of an array as they travel: row-major, little-endian, a byte or more each."""
    assert sys.byteorder == "little", "connect and serve refuse other machines"
    held = np.ascontiguousarray(array)
    flat: Numpy = held.reshape(-1).view(np.uint8)
    if dtype.bits < 8 and dtype.kind != "bool":
        flat = flat & ((1 << dtype.bits) - 1)
    return flat.data


def small_elements(array: Array) -> bytes:
    """The elements of a small array; empty if it is not that small, or gone."""
    if not 0 < array.nbytes <= SMALL or array.is_deleted:
        return b""
    return bytes(elements_of(array.numpy(), array.element_type))


def room_for(type: TensorType) -> Numpy:
    """Memory for the elements of an array, as bytes."""
    room: Numpy = aligned_bytes(size_of(type))
    return room


def size_of(type: TensorType) -> int:
    """The bytes of the elements of an array as they travel."""
    return type.size * type.dtype.numpy.itemsize


def array_from(room: Numpy, type: TensorType) -> Numpy:
    """The array whose elements were received; an error if they are no values of its type."""
    bits = type.dtype.bits
    # Types of less than a byte take one each: bits beyond them are no value of the type, and come
    # from a damaged or a forged message.
    if bits < 8 and room.size and int(room.max()) >> bits:
        raise _malformed(f"elements that are not {type.dtype}")
    array = room.view(type.dtype.numpy).reshape(type.sizes)
    array.flags.writeable = False
    return array


def check_byte_order() -> None:
    """Refuse machines whose numbers have another byte order than messages."""
    if sys.byteorder != "little":
        raise Unsupported(
            "the proxy runs on little-endian machines only", help="use another machine"
        )
