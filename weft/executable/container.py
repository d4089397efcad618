"""The file format of executables: named sections behind a text table that `head` can show.

    \\xf7weft\\r\\n\\n
    format 1 reader 1 header 421 sha256 6c41...
    made-by weft 0.2.0
    feature loops
    section signature main 0 812 e3b0...
    section constant w0 4096 65536 9f86... tensor<128x128xf32>

`format` is the version of the file, and `reader` the oldest reader version that can load it. Every
version begins with the magic bytes and that line, and has a `feature` line for everything that a
reader must support. Offsets count from the end of the table, rounded up; sections are aligned to
64 bytes, so that constants can be memory-mapped. Nothing is compressed and nothing is executed: a
length in the file is checked against the file's size.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import TypeAlias

import numpy as np

from weft.array.host import aligned_bytes
from weft.errors import WeftError
from weft.executable.signature import Signature, parse_signature, tensor_type
from weft.ir.types import Array, TensorType
from weft.records import dataclass

FORMAT = 2  # version written: tiled texts have the words `argument`, `result`, `stacked`
OLDEST_READER = 2  # oldest version that can read it; format 1 had `take`, `give`, `digits`
MAGIC = b"\xf7weft\r\n\n"  # invalid as UTF-8, and damaged by newline translation
ALIGNED = 64  # bytes: a cache line, and the widest vector
LARGEST_TABLE = 1 << 26
MAIN = "main"
TARGET = "target"  # the note with the program's target
# Kinds of sections; a `note` is metadata of a front end.
KINDS = ("signature", "tiled", "constant", "note", "emitted", "code")
TRUSTED = ("emitted", "code")  # native code, read for trusted files only
# Features that the first readers lack, by name.
FEATURES: dict[str, str] = {
    "asynchronous": "collectives that begin at one place and are waited for at another",
    "flows": "kernels that are loops and branches of others",
}

FileSource: TypeAlias = str | os.PathLike[str] | bytes
_FIRST = re.compile(r"format (\d{1,9}) reader (\d{1,9})( [^\n]*)?\n")
_REST = re.compile(r" header (\d{1,9}) sha256 ([0-9a-f]{64})")
NAME = re.compile(r"[\w.:/@+-]{1,200}", re.A)
_SECTION = re.compile(
    rf"([a-z][a-z0-9_-]{{0,60}}) ({NAME.pattern}) (\d{{1,18}}) (\d{{1,18}}) ([0-9a-f]{{64}})"
    r"( tensor<.+>)?",
    re.A,
)
_ANEW = "it is corrupt or was changed: copy it again, or save the program again"


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the section table."""

    kind: str
    name: str
    offset: int  # from the start of the file
    length: int
    digest: str
    type: TensorType | None = None  # of a constant


@dataclass(frozen=True, eq=False)
class Container:
    """An open container: its table is parsed, its sections are read on demand."""

    where: str  # the file's name, for errors
    format: int
    made_by: str
    features: tuple[str, ...]
    entries: Mapping[tuple[str, str], Entry]
    trusts: bool
    data: bytes | mmap.mmap = field(repr=False)
    _checked: set[tuple[str, str]] = field(default_factory=set, repr=False)

    def names(self, kind: str) -> list[str]:
        """The names of all sections of a kind, in the order of the file."""
        return [name for other, name in self.entries if other == kind]

    def read(self, kind: str, name: str = MAIN) -> bytes:
        """The bytes of a section, checked."""
        entry = self._entry(kind, name)
        # A copy: a mapped file may change after the checksum was verified.
        data = self.data[entry.offset : entry.offset + entry.length]
        self._compare(entry, data)
        return data

    def digest(self, kind: str, name: str = MAIN) -> str:
        """The checksum of a section, from the table."""
        return self._entry(kind, name).digest

    def text(self, kind: str, name: str = MAIN) -> str:
        """A section that is text."""
        try:
            return self.read(kind, name).decode()
        except UnicodeDecodeError as error:
            raise WeftError(
                f"{self.where}: the {kind} {name} is not valid UTF-8 at byte {error.start}",
                help=_ANEW,
            ) from None

    def signature(self) -> Signature:
        """The program's signature; no other section is read."""
        try:
            return parse_signature(self.text("signature"))
        except WeftError as error:
            if error.message.startswith(self.where):
                raise
            raise WeftError(f"{self.where}: {error.message}", help=error.help) from None

    def constant(self, name: str) -> Array:
        """A constant: read-only, and memory-mapped if the container is a file."""
        entry = self._entry("constant", name)
        self._check(entry)
        type = entry.type
        assert type is not None, "the table gives every constant a type"
        held = np.frombuffer(self.data, np.uint8, entry.length, entry.offset)
        # Sub-byte elements have a byte each; bits above their width would be no value of the type.
        if type.dtype.bits < 8 and held.size and int(held.max()) >> type.dtype.bits:
            raise WeftError(
                f"{self.where}: the constant {name} has bytes that are not valid {type.dtype}",
                help=_ANEW,
            )
        # A mapped file is aligned; the bytes of a container in memory may lie anywhere.
        if entry.length and held.ctypes.data % ALIGNED:
            held, packed = aligned_bytes(entry.length), held
            held[:] = packed
        array = held.view(type.dtype.numpy).reshape(type.sizes)
        if sys.byteorder == "big":
            array = array.byteswap()
        array.flags.writeable = False
        return array

    @property
    def constants(self) -> Constants:
        """All constants by name, loaded on demand."""
        return Constants(self)

    def check(self) -> Container:
        """Verify the checksum of every section; returns the container."""
        for entry in self.entries.values():
            self._check(entry)
        return self

    def _entry(self, kind: str, name: str) -> Entry:
        if kind in TRUSTED and not self.trusts:
            raise WeftError(
                f"{self.where}: its {kind} for {name} is native code",
                help="pass trust=True to use it, for files whose origin you trust",
            )
        entry = self.entries.get((kind, name))
        if entry is None:
            known = ", ".join(self.names(kind)) or "none"
            raise WeftError(
                f"{self.where} has no {kind} {name}",
                help=f"known: {known}"[:300] + "; is it the file that you mean?",
            )
        return entry

    def _check(self, entry: Entry) -> None:
        """Verify a section's checksum, once."""
        key = (entry.kind, entry.name)
        if key not in self._checked:
            end = entry.offset + entry.length
            with memoryview(self.data) as view, view[entry.offset : end] as part:
                self._compare(entry, part)
            self._checked.add(key)

    def _compare(self, entry: Entry, data: bytes | memoryview) -> None:
        if hashlib.sha256(data).hexdigest() != entry.digest:
            raise WeftError(
                f"{self.where}: the {entry.kind} {entry.name} does not match its checksum",
                help=_ANEW,
            )


class Constants(Mapping[str, Array]):
    """A container's constants, loaded on demand."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._names = container.names("constant")

    def __getitem__(self, name: str) -> Array:
        if name not in self:
            raise KeyError(name)
        return self._container.constant(name)

    def __contains__(self, name: object) -> bool:
        return ("constant", name) in self._container.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def read_constants(text: str | os.PathLike[str]) -> Constants:
    """The constants in the file next to a text."""
    return open_container(constants_path(text)).constants


def constants_path(text: str | os.PathLike[str]) -> str:
    """The path of a text's constants."""
    return f"{os.fspath(text)}.constants"


def open_container(source: FileSource, *, trust: bool = False) -> Container:
    """Open a container (a file or its bytes) and parse its table; no section is read."""
    if isinstance(source, bytes):
        return _opened("the program", source, trust)
    where = os.fspath(source)
    try:
        return _opened(where, _mapped(where), trust)
    except (OSError, ValueError) as error:  # ValueError: an invalid file name
        raise WeftError(
            f"cannot read {where!s}: {getattr(error, 'strerror', None) or error}",
            help="name a file that compiled.save has written",
        ) from None


def _mapped(path: str) -> bytes | mmap.mmap:
    """The memory-mapped bytes of a file."""
    with open(path, "rb", opener=_regular) as file:
        if os.fstat(file.fileno()).st_size == 0:
            return b""  # an empty file cannot be mapped
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _regular(path: str, flags: int) -> int:
    """Open a regular file; a pipe or a device is refused without blocking."""
    # Opening a pipe would block until something writes to it.
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise WeftError(
            f"{path} is not a regular file", help="name a file that compiled.save has written"
        )
    return os.open(path, flags)


def _opened(where: str, data: bytes | mmap.mmap, trust: bool) -> Container:
    format, reader, lines, start = _table(where, data)
    features = [line[8:] for line in lines if line.startswith("feature ")]
    made_by = next((line[8:] for line in lines if line.startswith("made-by ")), "an unknown Weft")
    _check_readable(where, format, reader, features, made_by)
    entries: dict[tuple[str, str], Entry] = {}
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "section":
            entry = _entry(where, rest, start, is_newer=format > FORMAT)
            if (entry.kind, entry.name) in entries:
                raise _damaged(where, f"it has two sections {entry.kind} {entry.name}")
            entries[entry.kind, entry.name] = entry
        # Unknown lines of a newer format may be skipped: else it would have a higher `reader`.
        elif word not in ("feature", "made-by") and format <= FORMAT:
            raise _damaged(where, f"its table has a line {line[:60]!r}")
    _check_places(where, [*entries.values()], start, len(data))
    return Container(where, format, made_by, tuple(features), entries, trust, data)


def _table(where: str, data: bytes | mmap.mmap) -> tuple[int, int, list[str], int]:
    """The format version, the reader version, the table's lines, and the offset of the sections."""
    if data[: len(MAGIC)] != MAGIC:
        raise _not_ours(where, data[: len(MAGIC)])
    begin = len(MAGIC)
    first = _FIRST.match(data[begin : begin + 256].decode("latin-1"))
    if first is None:
        raise _damaged(where, "its first line cannot be read")
    format, reader = int(first[1]), int(first[2])
    begin += first.end()
    rest = _REST.fullmatch(first[3] or "")
    if rest is None:  # a later format may have another rest of the line: say that first
        _check_readable(where, format, reader, [], "a newer Weft")
        raise _damaged(where, "its first line cannot be read")
    length = int(rest[1])
    # Checked before anything is read by it: a damaged number must not allocate gigabytes.
    if length > min(LARGEST_TABLE, len(data) - begin):
        if length <= LARGEST_TABLE:
            raise _cut(where, begin + length, len(data))
        raise _damaged(where, f"its table has {length:,} bytes, more than any has")
    table = data[begin : begin + length]
    # The checksum covers the numbers of the first line as well.
    first_line = f"format {first[1]} reader {first[2]} header {rest[1]}\n".encode()
    if hashlib.sha256(first_line + table).hexdigest() != rest[2]:
        raise _damaged(where, "its table does not match its checksum")
    if not 0 < reader <= format or not table.isascii():
        raise _damaged(where, f"it is of format {format} for readers from {reader}")
    end = begin + length
    return format, reader, table.decode("ascii").splitlines(), end + -end % ALIGNED


def _check_readable(
    where: str, format: int, reader: int, features: Sequence[str], made_by: str
) -> None:
    """Raise if this version cannot read the file, with the missing features."""
    lacking = [name for name in features if name not in FEATURES]
    named = f"{', '.join(lacking[:12])}{', ...' if len(lacking) > 12 else ''}"
    if reader > FORMAT:
        using = f", with {named}" if lacking else ""
        message = (
            f"{where} is of format {format}{using}: it needs a reader of format {reader}, "
            f"and this Weft reads formats up to {FORMAT}"
        )
    elif lacking:
        message = f"{where} uses what this Weft does not know: {named}"
    else:
        return
    version = f" ({made_by[:60]} has written it)" if made_by.isprintable() else ""
    raise WeftError(
        message, help=f"install a newer Weft{version}, or save the program with this one"
    )


def _entry(where: str, rest: str, start: int, *, is_newer: bool) -> Entry:
    match = _SECTION.fullmatch(rest)
    if match is None:
        raise _damaged(where, f"its table has a line {f'section {rest}'[:80]!r}")
    kind, name, offset, length, digest, typed = match.groups()
    if kind not in KINDS and not is_newer:
        raise _damaged(where, f"it has a section of kind {kind}")
    at, size = int(offset), int(length)
    type = None
    if kind == "constant":
        type = _constant_type(typed or "")
        if type is None or type.size * type.dtype.numpy.itemsize != size:
            raise _damaged(where, f"the constant {name} is no{typed} of {size:,} bytes"[:200])
    return Entry(kind, name, start + at, size, digest, type)


def _constant_type(text: str) -> TensorType | None:
    try:
        return tensor_type(text[1:])
    except (WeftError, ValueError):
        return None


def _check_places(where: str, entries: Sequence[Entry], start: int, size: int) -> None:
    """Raise if sections overlap, or do not end with the file."""
    at = start
    for entry in sorted(entries, key=lambda entry: (entry.offset, entry.length)):
        if entry.offset % ALIGNED:
            raise _damaged(where, f"the {entry.kind} {entry.name} is not aligned to 64 bytes")
        if entry.offset < at:
            raise _damaged(where, f"the {entry.kind} {entry.name} overlaps the section before it")
        at = entry.offset + entry.length
    if at > size:
        raise _cut(where, at, size)
    if at < size:
        raise _damaged(where, f"it has {size - at:,} bytes after its last section")


def _damaged(where: str, what: str) -> WeftError:
    return WeftError(f"{where} is damaged: {what}", help=_ANEW)


def _cut(where: str, wanted: int, size: int) -> WeftError:
    return WeftError(
        f"{where} is cut off: it has {size:,} of {wanted:,} bytes",
        help="copy it again, whole, or save the program again",
    )


def _not_ours(where: str, begin: bytes) -> WeftError:
    if 0 < len(begin) < len(MAGIC) and MAGIC.startswith(begin):
        return _cut(where, len(MAGIC), len(begin))
    if begin.startswith(MAGIC[:5]):
        return _damaged(where, "the ends of its lines were changed, as by a copy as text")
    return WeftError(
        f"{where} is not a Weft executable" if begin else f"{where} is empty",
        help="name a file that compiled.save has written",
    )
