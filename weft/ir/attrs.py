"""Codecs between the fields of an op and MLIR attribute text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from weft.errors import WeftError
from weft.ir.dense import Dense, parse_dense, scalar_text
from weft.ir.location import escape, unescape
from weft.ir.scan import dictionary, integers, items, split
from weft.ir.types import F32, I64, DType, TensorType, dtype
from weft.records import dataclass

Attrs = tuple[tuple[str, str], ...]  # attributes kept as MLIR text, by name


@dataclass(frozen=True, slots=True)
class Codec:
    """The writer and the reader of one field's attribute text."""

    read: Callable[[str], Any]
    write: Callable[[Any], str]


def integer(width: str) -> Codec:
    """`3 : i32`."""
    return Codec(lambda text: int(text.partition(":")[0]), lambda value: f"{value} : {width}")


def enum(kind: str, *known: str, dialect: str = "stablehlo") -> Codec:
    """`#stablehlo<comparison_direction LT>`, one of the known words."""
    pattern = re.compile(rf"#{dialect}<{kind} (\w+)>")

    def read(text: str) -> str:
        match = pattern.fullmatch(text)
        if match is None or match[1] not in known:
            raise WeftError(f"{text} is not a {kind}", help=f"known: {', '.join(known)}")
        return match[1]

    return Codec(read, lambda value: f"#{dialect}<{kind} {value}>")


def struct(name: str) -> Callable[[type], Codec]:
    """`#stablehlo.dot<a = [0], b = 1>` for a dataclass; fields at their default are left out."""

    def make(cls: type) -> Codec:
        hints = get_type_hints(cls)

        def read(text: str) -> Any:
            body = text[text.index("<") :]
            members = dictionary(body)
            unknown = set(members) - set(hints)
            if unknown:
                raise WeftError(
                    f"#{name} has no {min(unknown)!r}", help=f"known: {', '.join(hints)}"
                )
            return cls(**{k: _read_member(hints[k], v) for k, v in members.items()})

        def write(value: Any) -> str:
            parts = [
                f"{f.name} = {_write_member(getattr(value, f.name))}"
                for f in fields(cls)
                if getattr(value, f.name) != f.default
            ]
            return f"#{name}<{', '.join(parts)}>"

        return Codec(read, write)

    return make


def _read_member(hint: object, text: str) -> Any:
    if hint is int:
        return int(text)
    if hint is bool:
        return text == "true"
    if hint is str:
        return text
    return integers(text)


def _write_member(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def array_of(element: Codec) -> Codec:
    """`[a, b]`, each element by its own codec."""
    return Codec(
        lambda text: tuple(element.read(part) for part in items(text)),
        lambda value: f"[{', '.join(element.write(part) for part in value)}]",
    )


def _read_dense_array(text: str) -> tuple[int, ...]:
    body = text[6:-1].partition(":")[2]
    return tuple(_number(part) for part in split(body))


def _number(text: str) -> int:
    return {"true": 1, "false": 0}.get(text) if text in ("true", "false") else int(text)  # type: ignore[return-value]


def _read_float32(text: str) -> float:
    digits = text.partition(":")[0].strip()
    if digits.startswith("0x"):  # infinities and NaN are written as their bits
        return float(np.frombuffer(bytes.fromhex(digits[2:]), ">f4")[0])
    return float(np.float32(digits))


def _write_matrix(rows: tuple[tuple[int, ...], ...]) -> str:
    width = len(rows[0]) if rows else 2
    array = np.array(rows, np.int64).reshape(len(rows), width)
    return Dense(array, TensorType((len(rows), width), I64)).text


INT64 = integer("i64")
INT32 = integer("i32")
BOOLEAN = Codec(lambda text: text == "true", lambda value: "true" if value else "false")
UNIT = Codec(lambda text: text in ("unit", "true"), lambda value: "unit" if value else "false")
STRING = Codec(lambda text: unescape(text[1:-1]), lambda value: f'"{escape(value)}"')
# `@main`, or `@"a name"` if it has other characters.
SYMBOL = Codec(
    lambda text: unescape(text[2:-1]) if text.startswith('@"') else text[1:],
    lambda value: f"@{value}" if re.fullmatch(r"[\w.$-]+", value) else f'@"{escape(value)}"',
)
TEXT = Codec(str, str)  # kept as MLIR text
# `array<i64: 1, 2>`, and booleans likewise.
I64S = Codec(
    _read_dense_array, lambda v: f"array<i64: {', '.join(map(str, v))}>" if v else "array<i64>"
)
I1S = Codec(
    lambda text: tuple(bool(x) for x in _read_dense_array(text)),
    lambda v: f"array<i1: {', '.join('true' if x else 'false' for x in v)}>" if v else "array<i1>",
)
DENSE = Codec(parse_dense, lambda value: value.text)
DTYPE = Codec(dtype, str)
# `dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>` as rows of integers
MATRIX = Codec(
    lambda text: tuple(tuple(int(x) for x in row) for row in parse_dense(text).array),
    _write_matrix,
)
FLOAT32 = Codec(_read_float32, lambda value: f"{scalar_text(np.float32(value), F32)} : f32")

_PLAIN: dict[object, Codec] = {
    int: INT64,
    bool: BOOLEAN,
    str: STRING,
    Dense: DENSE,
    DType: DTYPE,
    tuple[int, ...]: I64S,
    tuple[bool, ...]: I1S,
    tuple[tuple[int, ...], ...]: MATRIX,
    tuple[tuple[int, int], ...]: MATRIX,
}


def codec_of(hint: object) -> Codec:
    """The codec for a field's annotation: `Annotated[..., codec]` or one of the plain types."""
    if get_origin(hint) is Annotated:
        return next(extra for extra in get_args(hint) if isinstance(extra, Codec))
    if get_origin(hint) in (Union, UnionType):
        (inner,) = [arm for arm in get_args(hint) if arm is not NoneType]
        return codec_of(inner)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if is_dataclass(hint) and hasattr(hint, "codec"):
        codec = hint.codec
        assert isinstance(codec, Codec)
        return codec
    raise AssertionError(f"no attribute form for a field of type {hint}")
