"""Lexical elements of tiled text: lines, slots, masks, locations, attributes and types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.executable.items import Slot, Slots
from weft.ir.attrs import Attrs
from weft.ir.location import UNKNOWN, Location
from weft.ir.scan import dictionary, parse_type
from weft.ir.types import Type
from weft.kernels.tokens import Line, syntax_error
from weft.varying.masks import Mask, Masks

MOST_SLOTS = 1 << 24  # a damaged number must not allocate gigabytes: frames have one entry a slot


def is_slot(token: str) -> bool:
    """Whether a token is a slot."""
    return token[:1] == "b" and token[1:].isdecimal()


def slot_of(line: Line) -> Slot:
    """`b12`."""
    if not is_slot(line.token):
        raise syntax_error(f"expected a value such as b12, found {line.token!r}")
    slot = int(line.take()[1:])
    if slot >= MOST_SLOTS:
        raise syntax_error(f"b{slot} is out of range")
    return slot


def slots(line: Line) -> Slots:
    """`b1, b2` up to the end of the line."""
    listed = tuple(line.separated(lambda: slot_of(line)))
    line.finish()
    return listed


def mask(line: Line) -> Mask:
    """`d0.d2`, `-`, or parts in brackets."""
    if line.token == "(":
        return tuple(line.listed("(", ")", lambda: mask(line)))
    if line.accept("-"):
        return 0
    bits = 0
    for part in line.take().split("."):
        dim = int(part.removeprefix("d"))
        if not 0 <= dim < 64:
            raise syntax_error(f"unknown leading dim {part!r}")
        bits |= 1 << dim
    return bits


def masks(line: Line) -> Masks:
    """`[d0, -]`."""
    return tuple(line.listed("[", "]", lambda: mask(line)))


def location(line: Line) -> Location:
    """`loc(...)` at the end of a line; an abbreviated one is informative only."""
    if line.token == ";" or not line.token:
        return UNKNOWN
    line.expect("loc")
    text = line.brackets()[1:-1]
    line.finish()
    return Location(text)


def attributes(line: Line) -> Attrs:
    """`{name = value}`."""
    return tuple(dictionary(line.brackets()).items()) if line.token == "{" else ()


def symbol(line: Line) -> str:
    """`@main`, quoted if not an identifier."""
    line.expect("@")
    if line.token == '"':
        start = line.text.index('"')
        end = line.text.index('"', start + 1) + 1
        while line.token != "on":
            line.take()
        return f"@{line.text[start:end]}"
    return f"@{line.take()}"


def type_of(line: Line) -> Type:
    """A type in MLIR's text."""
    text = line.take()
    while line.token in (".", "!"):
        text += line.take()
    if text == "!":
        text += line.take()
    return parse_type(text + (line.brackets() if line.token == "<" else ""))


def pair(line: Line) -> tuple[int, int]:
    """`0=1`."""
    first = line.integer()
    line.expect("=")
    return first, line.integer()


def branch_way(line: Line) -> Any:
    """The kind of a branch."""
    if line.token not in ("if", "case"):
        raise syntax_error(f"a branch is an if or a case, not {line.token!r}")
    return line.take()


class IndentedLines:
    """The lines of a text; those indented more than a line belong to it."""

    def __init__(self, text: str, at: int = 0) -> None:
        self.all = [line for line in text.splitlines() if line.strip()]
        self.at = at

    @property
    def next(self) -> str:
        """The current line; empty at the end."""
        return self.all[self.at] if self.at < len(self.all) else ""

    def line(self) -> Line:
        """Consume a line."""
        text = self.next.strip()
        self.at += 1
        return Line(text)

    def after(self, *words: str) -> Line:
        """Consume a line after its leading words."""
        line = self.line()
        line.expect(*words)
        return line

    def after_any(self, *words: str) -> Line:
        """Consume a line after a leading word, one of these."""
        line = self.line()
        if not line.accept(*words):
            line.expect(words[0])
        return line

    def begins(self, *words: str) -> bool:
        """Whether the current line begins with a word, one of these."""
        return self.next.strip().partition(" ")[0] in words

    def below(self) -> list[str]:
        """Consume the lines nested under the last one."""
        return self.deeper(self.depth)

    @property
    def depth(self) -> int:
        """The indentation of the last line."""
        return _depth(self.all[self.at - 1])

    def deeper(self, depth: int) -> list[str]:
        """Consume the lines with more than this indentation."""
        lines = list[str]()
        while self.next and _depth(self.next) > depth:
            lines.append(self.next)
            self.at += 1
        return lines


def _depth(text: str) -> int:
    return len(text) - len(text.lstrip(" "))


def dedented(lines: Sequence[str]) -> list[str]:
    """The lines without their common indentation."""
    depth = _depth(lines[0]) if lines else 0
    return [line[depth:] for line in lines]
