"""The tokenizer of kernel text, line by line."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any, TypeVar

from weft.errors import WeftError
from weft.ir.scan import balanced
from weft.ir.types import DTYPES, DType

T = TypeVar("T")
# The empty match at the end is a token: there is always a current one, and one to look ahead at.
_TOKEN = re.compile(
    r" *(complex<f\d+>|[A-Za-z_][\w.]*|\d+(?:\.\d+)?(?:e[+-]?\d+)?|[<>=!]=|%\d+|[^ ]|$)",
    re.ASCII,
)


class Line:
    """One line, tokenized."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._read(0)

    def _read(self, begin: int) -> None:
        """Tokenize up to the next quote: quoted resources are long and often skipped."""
        self.begin = begin
        self.end = self.text.find('"', begin) + 1 or len(self.text)
        self.tokens = _TOKEN.findall(self.text, begin, self.end)
        self.at = 0
        self.token: str = self.tokens[0]  # the current token; empty at the end of the line

    def take(self) -> str:
        """Consume a token."""
        token = self.token
        if token:
            self.at += 1
            self.token = self.tokens[self.at]
            if not self.token and self.end < len(self.text):
                self._read(self.end)
        return token

    def brackets(self) -> str:
        """Consume up to the bracket that closes the current one, verbatim."""
        matches = _TOKEN.finditer(self.text, self.begin, self.end)
        # Tokens have no positions: match again, up to the current one.
        begin = next(itertools.islice(matches, self.at, None)).start(1)
        end = balanced(self.text, begin)
        self._read(end)
        return self.text[begin:end]

    def accept(self, *tokens: str) -> str:
        """Consume the current token if it is one of these; else return an empty string."""
        return self.take() if self.token in tokens else ""

    def expect(self, *tokens: str) -> None:
        """Consume these tokens, or fail."""
        for token in tokens:
            if self.token != token:
                raise syntax_error(
                    f"expected {token!r}, found {self.token or 'the end of the line'!r}"
                )
            self.take()

    def name(self) -> str:
        """A name."""
        if not self.token.isidentifier():
            raise syntax_error(f"expected a name, found {self.token or 'the end of the line'!r}")
        return self.take()

    def integer(self) -> int:
        """An integer with its sign."""
        sign = -1 if self.accept("-") else 1
        if not self.token.isdecimal():
            raise syntax_error(
                f"expected an integer, found {self.token or 'the end of the line'!r}"
            )
        return sign * int(self.take())

    def number(self) -> bool | int | float | complex | None:
        """A Python number as `number_text` formats it; None if there is none."""
        if self.token in ("true", "false"):
            return self.take() == "true"
        if self.token == "c" and self.tokens[self.at + 1] == "(":
            self.take()
            real, imaginary = self.listed("(", ")", self.real)
            return complex(real, imaginary)
        if self.token in ("-", "inf", "nan") or self.token[:1].isdigit():
            return self.real()
        return None

    def real(self) -> int | float:
        """An integer or a float."""
        sign, token = "-" if self.accept("-") else "", self.take()
        return int(sign + token) if token.isdecimal() else float(sign + token)

    def listed(self, begin: str, end: str, read: Callable[[], T]) -> list[T]:
        """A bracketed, comma-separated list."""
        self.expect(begin)
        items: list[T] = []
        while not self.accept(end):
            if items:
                self.expect(",")
            items.append(read())
        return items

    def separated(self, read: Callable[[], T]) -> list[T]:
        """A comma-separated list of at least one item."""
        items = [read()]
        while self.accept(","):
            items.append(read())
        return items

    def options(self) -> tuple[tuple[str, int], ...]:
        """`task=4 width=16` up to the end of the line."""
        pairs = []
        while self.token:
            name = self.name()
            self.expect("=")
            pairs.append((name, self.integer()))
        return tuple(pairs)

    def dtype(self) -> DType:
        """An element type."""
        return (
            DTYPES[self.take()]
            if self.token in DTYPES
            else raise_unknown_name("element type", self.token)
        )

    def finish(self) -> None:
        """Fail unless the line is consumed."""
        if self.token:
            raise syntax_error(f"unexpected {self.token!r}")


def syntax_error(message: str) -> WeftError:
    """The syntax error with this message."""
    return WeftError(message, help="the text is damaged, or of another version of weft")


def raise_unknown_name(what: str, name: str) -> Any:
    """Raise for an unknown name."""
    raise syntax_error(f"unknown {what} {name!r}")
