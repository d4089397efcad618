"""Programs for 64-bit ARM under Linux without a linker or a C library: objects made into one file.

Enough of ELF and of its relocations for what LLVM makes of kernels: one segment that holds all
sections of all objects, at a fixed address, and no symbols from elsewhere.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

BASE = 0x400000
_HEAD = 0x1000  # bytes of headers before the first section
_NOBITS, _RELA, _SYMTAB = 8, 4, 2
_ALLOC = 2


class Symbol(NamedTuple):
    """A symbol of an object: where it is, if it is there."""

    name: str
    section: int
    value: int


class Relocation(NamedTuple):
    """A place of a section where an address is to be written."""

    section: int
    offset: int
    kind: int
    symbol: int
    addend: int


@dataclass
class Object:
    """The parts of a relocatable ELF file that linking needs."""

    data: bytes
    sections: dict[int, tuple[int, bytes]] = field(default_factory=dict)  # alignment and bytes
    symbols: list[Symbol] = field(default_factory=list)
    relocations: list[Relocation] = field(default_factory=list)

    def __post_init__(self) -> None:
        start, size, count = (*struct.unpack_from("<Q", self.data, 40), *self._halves())
        heads = [
            struct.unpack_from("<IIQQQQIIQQ", self.data, start + n * size) for n in range(count)
        ]
        for number, (_, kind, flags, _, at, length, link, info, align, _) in enumerate(heads):
            body = bytes(length) if kind == _NOBITS else self.data[at : at + length]
            if flags & _ALLOC:
                self.sections[number] = (max(1, align), body)
            if kind == _SYMTAB:
                strings = heads[link][4]
                self.symbols = [
                    self._symbol(body[n : n + 24], strings) for n in range(0, length, 24)
                ]
            if kind == _RELA and heads[info][2] & _ALLOC:
                for offset, packed, addend in struct.iter_unpack("<QQq", body):
                    kind_of, symbol = packed & 0xFFFFFFFF, packed >> 32
                    self.relocations.append(Relocation(info, offset, kind_of, symbol, addend))

    def _halves(self) -> tuple[int, int]:
        size, count = struct.unpack_from("<HH", self.data, 58)
        return size, count

    def _symbol(self, entry: bytes, strings: int) -> Symbol:
        name, _, _, section, value, _ = struct.unpack("<IBBHQQ", entry)
        end = self.data.index(b"\0", strings + name)
        return Symbol(self.data[strings + name : end].decode(), section, value)

    @property
    def missing(self) -> set[str]:
        """The names of symbols that other objects have to define."""
        return {s.name for s in self.symbols if s.section == 0 and s.name}


def link(objects: Sequence[bytes], entry: str, aliases: Mapping[str, str]) -> bytes:
    """A file that Linux runs, from a function of that name; some have other names, too."""
    read = [Object(data) for data in objects]
    image = bytearray(_HEAD)
    places: dict[tuple[int, int], int] = {}  # by object and section
    for number, one in enumerate(read):
        for section, (align, body) in one.sections.items():
            image += bytes(-len(image) % max(align, 16))
            places[number, section] = BASE + len(image)
            image += body
    known = {
        s.name: places[n, s.section] + s.value
        for n, one in enumerate(read)
        for s in one.symbols
        if (n, s.section) in places and s.name
    }
    known |= {alias: known[name] for alias, name in aliases.items()}
    for number, one in enumerate(read):
        for relocation in one.relocations:
            symbol = one.symbols[relocation.symbol]
            at = places.get((number, symbol.section))
            target = known[symbol.name] if at is None else at + symbol.value
            place = places[number, relocation.section] + relocation.offset
            _relocate(image, relocation.kind, place, target + relocation.addend)
    image[:_HEAD] = _headers(known[entry], len(image)).ljust(_HEAD, b"\0")
    return bytes(image)


def _headers(entry: int, size: int) -> bytes:
    ident = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    head = struct.pack("<HHIQQQIHHHHHH", 2, 183, 1, entry, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    # Read, write and execute: what is written to lies beside the code.
    return ident + head + struct.pack("<IIQQQQQQ", 1, 7, 0, BASE, BASE, size, size, 0x1000)


def _relocate(image: bytearray, kind: int, place: int, target: int) -> None:
    at = place - BASE
    if kind == 257:  # the address itself
        struct.pack_into("<Q", image, at, target)
        return
    if kind in (260, 261):  # the distance to it, in 8 or 4 bytes
        struct.pack_into("<q" if kind == 260 else "<i", image, at, target - place)
        return
    (word,) = struct.unpack_from("<I", image, at)
    if kind in (282, 283):  # a jump or a call
        word |= (target - place >> 2) & 0x3FFFFFF
    elif kind == 275:  # the page of an address
        pages = (target >> 12) - (place >> 12)
        word |= (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
    elif kind == 277:  # the rest of it, added
        word |= (target & 0xFFF) << 10
    elif 263 <= kind <= 269:  # 16 bits of an address
        word |= (target >> 16 * ((kind - 263) // 2) & 0xFFFF) << 5
    elif kind in _SHIFTS:  # the rest of it, in units of what is loaded
        word |= (target & 0xFFF) >> _SHIFTS[kind] << 10
    else:
        raise NotImplementedError(f"relocations of kind {kind}")
    struct.pack_into("<I", image, at, word)


_SHIFTS = {278: 0, 284: 1, 285: 2, 286: 3, 299: 4}
