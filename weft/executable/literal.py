"""Literals in the text of an executable: plain Python values that round-trip exactly."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import TypeAlias

from weft.errors import WeftError

Literal: TypeAlias = "bool | int | float | str | bytes | tuple[Literal, ...] | None"
_PLAIN = {type(None), bool, int, float, str, bytes}
_WORDS: dict[str, Literal] = {
    "None": None,
    "True": True,
    "False": False,
    "inf": math.inf,
    "-inf": -math.inf,
}
_TOKEN = re.compile(
    r'\s*(?:(?P<text>"[^"\\]*(?:\\.[^"\\]*)*")|(?P<bytes>0x(?:[0-9a-f]{2})*)'
    r"|(?P<float>-?\d+(?:\.\d+(?:e[+-]?\d+)?|e[+-]?\d+))|(?P<int>-?\d+)"
    r"|(?P<word>-?[^\W\d]\w*)|(?P<mark>[()\[\]{},:=*]))"
)
MOST_DEPTH = 100  # nesting depth, far below Python's recursion limit
_WIDEST = 1 << 63  # larger integers can be chosen to collide in a dict


def is_literal(value: object, depth: int = 0) -> bool:
    """Whether a value has a literal form; NaN has none, as it is not equal to itself."""
    kind = type(value)
    if kind is tuple:
        assert isinstance(value, tuple)
        return depth < MOST_DEPTH and all(is_literal(part, depth + 1) for part in value)
    if kind is int:
        assert isinstance(value, int)
        return -_WIDEST <= value < _WIDEST
    return kind in _PLAIN and value == value


def literal_text(value: Literal) -> str:
    """A literal as text: strings as in JSON, bytes in hexadecimal, the rest as in Python."""
    match value:
        case str():
            return json.dumps(value)
        case bytes():
            return f"0x{value.hex()}"
        case tuple():
            listed = ", ".join(map(literal_text, value))
            return f"({listed},)" if len(value) == 1 else f"({listed})"
    return repr(value)


class Tokens:
    """The tokens of a text, read one after another."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self._next()

    def _next(self) -> None:
        """Scan the next token."""
        match = _TOKEN.match(self.text, self.at)
        self.start = self.at
        if match is None:
            if self.text[self.at :].strip():
                raise self.wrong("a value")
            self.kind, self.token = "end", ""
            return
        self.at = match.end()
        self.kind, self.token = str(match.lastgroup), match[match.lastgroup or 0]

    def take(self) -> str:
        """Consume the current token."""
        token = self.token
        self._next()
        return token

    def accept(self, mark: str) -> bool:
        """Consume this mark if it is the current token."""
        if self.kind == "mark" and self.token == mark:
            self._next()
            return True
        return False

    def expect(self, mark: str) -> None:
        """Consume this mark, or fail."""
        if not self.accept(mark):
            raise self.wrong(repr(mark))

    def finish(self) -> None:
        """Fail unless all tokens are consumed."""
        if self.kind != "end":
            raise self.wrong("the end")

    def wrong(self, wanted: str, start: int | None = None) -> WeftError:
        """The syntax error at the current token, or at an earlier start."""
        start = self.start if start is None else start
        here = self.text[start : start + 30].strip()
        return WeftError(
            f"expected {wanted} at column {start + 1}, found {here!r}",
            help="the text is corrupt or was edited: write it again from the program",
        )

    def literal(self, depth: int = 0) -> Literal:
        """The literal here."""
        kind = self.kind
        if kind == "mark" and self.token == "(":
            if depth >= MOST_DEPTH:
                raise self.wrong(f"at most {MOST_DEPTH} levels of nesting")
            self.take()
            parts: list[Literal] = []
            while not self.accept(")"):
                parts.append(self.literal(depth + 1))
                if not self.accept(","):
                    self.expect(")")
                    break
            return tuple(parts)
        if kind == "word" and self.token in _WORDS:
            return _WORDS[self.take()]
        if kind not in _READ:
            raise self.wrong("a literal")
        try:
            value: Literal = _READ[kind](self.token)
        except ValueError:  # an integer with thousands of digits, an unknown escape
            raise self.wrong("a literal") from None
        if not is_literal(value):
            raise self.wrong("a literal")
        self._next()
        return value


_READ: dict[str, Callable[[str], Literal]] = {
    "text": json.loads,
    "bytes": lambda token: bytes.fromhex(token[2:]),
    "float": float,
    "int": int,
}


def parse_literal(text: str) -> Literal:
    """Parse a literal."""
    tokens = Tokens(text)
    value = tokens.literal()
    tokens.finish()
    return value
