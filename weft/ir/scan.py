"""Lexing MLIR text: balanced brackets, strings, lists, dictionaries and types."""

from __future__ import annotations

import re
from functools import lru_cache

from weft.errors import Unsupported, WeftError
from weft.ir.location import unescape
from weft.ir.types import (
    TOKEN,
    Dim,
    FutureType,
    Symbol,
    TensorType,
    TupleType,
    Type,
    Types,
    dtype,
)

_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'  # the bytes of a constant may be megabytes long
# An arrow is matched as a whole: its > closes nothing.
_INTERESTING = re.compile(_STRING + r"|->|[(\[{<>}\])]")
_SPLIT = re.compile(_STRING + r"|->|[(\[{<>}\]),]")
_BOUNDS = re.compile(r"#stablehlo\.(?:bounds|type_extensions)<(?:bounds = \[)?([^\]>]*)\]?>")
_TENSOR = re.compile(r"tensor<((?:(?:\d+|\?)x)*)([^,]+?)(?:, (.*))?>", re.S)
_KEY = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([\w.$-]+))\s*(=)?\s*')


def balanced(text: str, start: int) -> int:
    """The position after the bracket that closes the one at `start`."""
    depth = 0
    for match in _INTERESTING.finditer(text, start):
        mark = match[0]
        if mark in "([{<":
            depth += 1
        elif mark in ")]}>":
            depth -= 1
            if depth == 0:
                return match.end()
    raise WeftError(
        f"unbalanced {text[start : start + 40]!r}", help="the text is cut off or damaged"
    )


def split(text: str) -> list[str]:
    """The parts between top-level commas, trimmed; none for empty text."""
    parts: list[str] = []
    depth = start = 0
    for match in _SPLIT.finditer(text):
        mark = match[0]
        if mark == "," and depth == 0:
            parts.append(text[start : match.start()].strip())
            start = match.end()
        elif mark in "([{<":
            depth += 1
        elif mark in ")]}>":
            depth -= 1
    last = text[start:].strip()
    return [*parts, last] if parts or last else []


def items(text: str) -> list[str]:
    """The elements of a bracketed list, `[a, b]` or `{a, b}` or `<a, b>`."""
    return split(text.strip()[1:-1])


def dictionary(text: str) -> dict[str, str]:
    """`{a = 1 : i64, b}` as a dict of texts; a key alone is a unit attribute."""
    attrs: dict[str, str] = {}
    for part in items(text):
        match = _KEY.match(part)
        if match is None:
            raise WeftError(f"not an attribute: {part!r}", help="expected `name = value`")
        name = unescape(match[1]) if match[1] is not None else match[2]
        attrs[name] = part[match.end() :] if match[3] else "unit"
    return attrs


def integers(text: str) -> tuple[int, ...]:
    """`[1, 2]` as integers."""
    return tuple(int(part) for part in items(text))


@lru_cache(maxsize=65536)
def parse_type(text: str) -> Type:
    """One type from its MLIR text."""
    text = text.strip()
    if text.startswith("tensor<*"):
        raise Unsupported(f"{text}: a tensor without a rank", help="give the tensor a shape")
    if match := _TENSOR.fullmatch(text):
        return _tensor(text, match)
    if text == "!stablehlo.token":
        return TOKEN
    if text.startswith("tuple<"):
        return TupleType(tuple(parse_type(part) for part in items(text[5:])))
    if text.startswith("!stablehlo.future<"):
        return FutureType(tuple(parse_type(part) for part in items(text[17:])))
    raise Unsupported(
        f"type {text} is not one of StableHLO's", help="use tensors, tokens or tuples"
    )


def _tensor(text: str, match: re.Match[str]) -> TensorType:
    sizes, elements = match[1].split("x")[:-1], dtype(match[2])
    bounds = _BOUNDS.fullmatch(match[3]) if match[3] else None
    if match[3] and not bounds:
        raise Unsupported(f"{text}: encoding {match[3]} is unknown", help="remove the encoding")
    limits = bounds[1].split(",") if bounds else ["?"] * len(sizes)
    shape: list[Dim] = []
    for size, limit in zip(sizes, limits, strict=True):
        if size != "?":
            shape.append(int(size))
        elif limit.strip() == "?":
            raise Unsupported(
                f"{text}: a dim of unknown size without a bound",
                help="give it a size, or a bound with #stablehlo.bounds<...>",
            )
        else:
            shape.append(Symbol(int(limit)))
    return TensorType(tuple(shape), elements)


@lru_cache(maxsize=65536)
def parse_signature(text: str) -> tuple[Types, Types]:
    """`(a, b) -> c` as operand and result types."""
    end = balanced(text, text.index("("))
    left = text[text.index("(") : end]
    arrow = text[end:].strip()
    right = arrow[2:].strip()
    if right.startswith("("):
        right = right[1:-1]
    return (
        tuple(parse_type(part) for part in items(left)),
        tuple(parse_type(part) for part in split(right)),
    )
