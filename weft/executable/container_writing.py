"""Writing of containers: the table, and sections aligned so that constants can be mapped."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from weft.errors import WeftError
from weft.executable.container import (
    ALIGNED,
    FEATURES,
    FORMAT,
    KINDS,
    MAGIC,
    MAIN,
    NAME,
    OLDEST_READER,
    constants_path,
)
from weft.ir.types import Array, DType, type_of
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Section:
    """A section to write: bytes or a constant, by kind and name."""

    kind: str
    data: bytes | Array
    name: str = MAIN


def container_bytes(
    sections: Sequence[Section], features: Sequence[str] = (), made_by: str = "weft"
) -> bytes:
    """Serialize a container; deterministic for the same sections."""
    return b"".join(_pieces(sections, features, made_by))


def write_container(
    path: str | os.PathLike[str],
    sections: Sequence[Section],
    features: Sequence[str] = (),
    made_by: str = "weft",
) -> None:
    """Write to a temporary file and rename it: readers see the old file or the new one."""
    place = Path(path)
    pieces = _pieces(sections, features, made_by)
    draft = place.parent / f".{place.name}.{os.getpid()}.{os.urandom(4).hex()}"
    try:
        with open(draft, "xb") as file:
            try:
                file.writelines(pieces)
                file.flush()
                # Before the rename: after a crash a renamed file without its contents would look
                # complete.
                os.fsync(file.fileno())
                os.replace(draft, place)
            except BaseException:
                with contextlib.suppress(OSError):
                    draft.unlink()
                raise
    except (OSError, ValueError) as error:  # ValueError: an invalid file name
        raise WeftError(
            f"cannot write {place}: {getattr(error, 'strerror', None) or error}",
            help="name a file in a folder of yours that has room",
        ) from None


def write_constants(text: str | os.PathLike[str], constants: Mapping[str, Array]) -> None:
    """Write the constants that a text refers to by name into the file next to it."""
    sections = [Section("constant", held, name) for name, held in constants.items()]
    write_container(constants_path(text), sections)


def _pieces(
    sections: Sequence[Section], features: Sequence[str], made_by: str
) -> list[bytes | memoryview]:
    """The bytes of a container, piece by piece; constants are not copied."""
    unknown = [name for name in features if name not in FEATURES]
    assert not unknown, f"features {unknown} are in no list of weft/executable/container.py"
    assert made_by.isascii() and made_by.isprintable(), f"made by {made_by!r}"
    lines = [f"made-by {made_by}", *[f"feature {name}" for name in sorted({*features})]]
    pieces: list[bytes | memoryview] = []
    at, seen = 0, set[tuple[str, str]]()
    for section in sections:
        assert section.kind in KINDS, f"{section.kind} is not a kind of section"
        key = (section.kind, section.name)
        if key in seen or not NAME.fullmatch(section.name):
            raise WeftError(
                f"a {section.kind} cannot be called {section.name!r}: no name, or there twice",
                help="names are distinct: letters, digits and . : / @ + - _, 200 of them at most",
            )
        seen.add(key)
        data, type = _encoded(section)
        digest = hashlib.sha256(data).hexdigest()
        lines.append(f"section {section.kind} {section.name} {at} {len(data)} {digest}{type}")
        pad = -len(data) % ALIGNED
        at += len(data) + pad
        pieces += [data, bytes(pad)]
    if pieces:
        pieces.pop()  # no padding after the last section
    return [*head_bytes(FORMAT, OLDEST_READER, lines), *pieces]


def head_bytes(format: int, reader: int, lines: Sequence[str]) -> list[bytes | memoryview]:
    """The magic bytes, the first line and the table."""
    table = "".join([f"{line}\n" for line in lines]).encode("ascii")
    first_line = f"format {format} reader {reader} header {len(table)}".encode()
    digest = hashlib.sha256(first_line + b"\n" + table).hexdigest().encode()
    head = MAGIC + first_line + b" sha256 " + digest + b"\n" + table
    return [head, bytes(-len(head) % ALIGNED)]


def _encoded(section: Section) -> tuple[bytes | memoryview, str]:
    """A section's bytes, and its type column in the table."""
    if isinstance(section.data, bytes):
        assert section.kind != "constant", "a constant is an array"
        return section.data, ""
    assert section.kind == "constant", f"a {section.kind} is bytes"
    type = type_of(section.data)
    held = _stored(np.ascontiguousarray(section.data), type.dtype)
    return held.reshape(-1).view(np.uint8).data, f" {type}"


def _stored(array: Array, dtype: DType) -> Array:
    """The file encoding of an array: little-endian, sub-byte elements in the low bits."""
    if sys.byteorder == "big":
        array = array.byteswap()
    if dtype.bits >= 8:
        return array
    # Readers check that the upper bits are 0; in memory they may hold the sign.
    held = array.view(np.uint8)
    return (held != 0).view(np.uint8) if dtype.kind == "bool" else held & ((1 << dtype.bits) - 1)
