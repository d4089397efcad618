"""PJRT's C API as data: its functions in order, and the layout of their argument structs.

Every function is a slot of a table and takes a pointer to one struct. Structs only grow at their
ends and slots are only appended, so the table of one version also serves later ones.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

from weft.records import dataclass

StructureType = type[ctypes.Structure]
VERSION = ("pjrt_0_112.txt", "extensions_0_112.txt")  # the version of jaxlib 0.10

_WORDS: dict[str, Any] = {
    "pointer": ctypes.c_size_t,
    "size": ctypes.c_size_t,
    "i64": ctypes.c_int64,
    "i32": ctypes.c_int32,
    "bool": ctypes.c_bool,
    "union": ctypes.c_size_t,
}
HEAD: list[tuple[str, Any]] = [
    ("struct_size", ctypes.c_size_t),
    ("extension_start", ctypes.c_size_t),
]


@dataclass(frozen=True, slots=True)
class Api:
    """One version of PJRT."""

    version: tuple[int, int]
    slots: tuple[str, ...]
    structs: dict[str, StructureType]
    extensions: dict[int, tuple[str, ...]]  # slots of each extension, by its type number

    def args(self, slot: str) -> StructureType:
        """The argument struct of a slot."""
        return self.structs[f"{slot}_Args"]

    def offset(self, slot: str, name: str) -> tuple[int, int]:
        """The offset and size of a field of a slot's arguments."""
        field = getattr(self.args(slot), name)
        return field.offset, field.size


@cache
def api() -> Api:
    """The PJRT version that Weft implements."""
    return parse("\n".join([files(__name__).joinpath(name).read_text() for name in VERSION]))


def parse(text: str) -> Api:
    """Parse a version: `version`, `slot`, `extension` and `struct` lines."""
    version, slots, structs = (0, 0), [], dict[str, StructureType]()
    extensions: dict[int, tuple[str, ...]] = {}
    for word, name, *fields in _lines(text):
        match word:
            case "version":
                major, minor = map(int, name.split("."))
                version = major, minor
            case "slot":
                slots.append(name)
            case "extension":
                extensions[int(fields[0])] = tuple(fields[1:])
            case _:
                structs[name] = _structure(name, fields, structs)
    return Api(version, tuple(slots), structs, extensions)


def _lines(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        if line and not line.startswith("#"):
            yield line.split()


def _structure(name: str, fields: list[str], known: dict[str, StructureType]) -> StructureType:
    listed: list[tuple[str, Any]] = []
    if fields[:1] == ["head"]:
        listed, fields = list(HEAD), fields[1:]
    for field in fields:
        label, _, word = field.partition(":")
        listed.append((label, _WORDS.get(word) or known[word]))
    return type(name, (ctypes.Structure,), {"_fields_": listed})
