"""Cache entries: keys, and a checksummed encoding."""

from __future__ import annotations

import hashlib
import json
import time
from functools import cached_property

from weft.records import dataclass

_MAGIC = b"weft-cache-1"
HEADER_LIMIT = 1 << 16  # bytes; upper bound of a header


@dataclass(frozen=True)
class Key:
    """The cache key: all inputs of an entry, part by part; the name is informative."""

    kind: str  # kernel, groups, texts, program, native, digest or choice: docs/cache.md
    name: str
    parts: tuple[tuple[str, str], ...]

    @cached_property
    def digest(self) -> str:
        """The digest of all parts."""
        text = json.dumps([self.kind, self.parts])
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Record:
    """An entry's metadata: its key and creation time (in seconds since 1970)."""

    key: Key
    made: float


def encode(key: Key, data: bytes) -> bytes:
    """Encode an entry: a line with a checksum of the rest, a line of JSON, and the data."""
    record = {"kind": key.kind, "name": key.name, "made": time.time(), "parts": dict(key.parts)}
    rest = json.dumps(record).encode() + b"\n" + data
    return _MAGIC + b" " + hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest


def decode(content: bytes, key: Key) -> bytes | None:
    """The data of an entry; None if it is corrupt, or of another key."""
    head, newline, rest = content.partition(b"\n")
    if not newline or head != _MAGIC + b" " + hashlib.sha256(rest).hexdigest().encode():
        return None
    line, _, data = rest.partition(b"\n")
    record = _record(line)
    # A digest of the whole key: the name of the file, too, may be wrong, as of a copy.
    return data if record is not None and record.key.digest == key.digest else None


def record_of(content: bytes) -> Record | None:
    """The metadata from an entry's first lines; None if malformed."""
    head, *lines = content.split(b"\n", 2)
    return _record(lines[0]) if lines and head.startswith(_MAGIC) else None


def _record(line: bytes) -> Record | None:
    try:
        content = json.loads(line)
        parts = tuple((str(name), str(value)) for name, value in content["parts"].items())
        return Record(
            Key(str(content["kind"]), str(content["name"]), parts), float(content["made"])
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
