"""Small damages to programs, as text and as bytes; each a function of a program and a generator."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from weft.ops import BY_NAME

_TOKEN = re.compile(r'"[^"\n]*"|%[\w#]+|@\w+|![\w.]+|#[\w.]+|[A-Za-z_][\w.]*|-?\d+(?:\.\d+)?|\S')
_TYPE = re.compile(r"tensor<[^<>]*(?:<[^<>]*>)?[^<>]*>")
_NUMBER = re.compile(r"(?<![\w%#])-?\d+(?![\w.])")
_OP = re.compile(r"\b(?:stablehlo|chlo|sdy|check|func)\.[a-z_]+\b")
_KEY = re.compile(r"\b[a-z_]+(?= = )")

TYPES = (
    "tensor<f32>", "tensor<0xf32>", "tensor<2x3xi8>", "tensor<?xf32>", "tensor<*xf32>",
    "tensor<4xcomplex<f64>>", "tensor<3xi1>", "tensor<7x0xui64>", "tensor<1x1x1xbf16>",
    "tensor<?x4xf32, #stablehlo.bounds<8, ?>>", "tensor<2x!quant.uniform<i8:f32, 1.0:0>>",
    "!stablehlo.token", "tuple<tensor<f32>, tensor<i32>>", "i32", "none", "memref<2xf32>",
    "tensor<2xindex>", "vector<2xf32>", "tensor<9223372036854775807xf32>", "tensor<3xi3>",
    "tensor<4xf8E4M3FN>", "!stablehlo.future<tensor<f32>>", "tensor<99999x99999xf64>",
)  # fmt: skip
NUMBERS = ("0", "-1", "1", "2", "7", "2147483648", "9223372036854775807", "-9223372036854775808",
           "99999999999999999999999", "1.5", "0xFF", "true")  # fmt: skip
WORDS = ("", "dense<>", "dense<[]>", '"', "{", "}", "(", ")", "<", ">", "loc(unknown)", "%0", "@f",
         "#map", "\\", "//", "\x00", "é", "unit", "[]", "array<i64>", "()", "->")  # fmt: skip

TextMutator = Callable[[str, random.Random], str]
BytesMutator = Callable[[bytes, random.Random], bytes]


def truncate(text: str, chance: random.Random) -> str:
    """Cut off the end."""
    return text[: chance.randrange(len(text) + 1)]


def flip_character(text: str, chance: random.Random) -> str:
    """Another character somewhere."""
    place = chance.randrange(len(text))
    return text[:place] + chr(chance.randrange(1, 256)) + text[place + 1 :]


def delete_line(text: str, chance: random.Random) -> str:
    """One line less."""
    lines = text.split("\n")
    del lines[chance.randrange(len(lines))]
    return "\n".join(lines)


def duplicate_line(text: str, chance: random.Random) -> str:
    """One line twice, maybe elsewhere."""
    lines = text.split("\n")
    lines.insert(chance.randrange(len(lines) + 1), chance.choice(lines))
    return "\n".join(lines)


def swap_lines(text: str, chance: random.Random) -> str:
    """Two lines in each other's place."""
    lines = text.split("\n")
    a, b = chance.randrange(len(lines)), chance.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    return "\n".join(lines)


def _at_one_match(
    pattern: re.Pattern[str], text: str, chance: random.Random, new: Callable[[str], str]
) -> str:
    found = list(pattern.finditer(text))
    if not found:
        return text
    match = chance.choice(found)
    return text[: match.start()] + new(match[0]) + text[match.end() :]


def swap_tokens(text: str, chance: random.Random) -> str:
    """One token becomes another of the same text."""
    tokens = _TOKEN.findall(text)
    return _at_one_match(_TOKEN, text, chance, lambda _: chance.choice(tokens))


def delete_token(text: str, chance: random.Random) -> str:
    """One token less."""
    return _at_one_match(_TOKEN, text, chance, lambda _: "")


def insert_word(text: str, chance: random.Random) -> str:
    """Something that does not belong there."""
    return _at_one_match(_TOKEN, text, chance, lambda old: f"{old} {chance.choice(WORDS)} ")


def change_type(text: str, chance: random.Random) -> str:
    """One type becomes another."""
    return _at_one_match(_TYPE, text, chance, lambda _: chance.choice(TYPES))


def change_all_types(text: str, chance: random.Random) -> str:
    """All uses of one type become another."""
    found = _TYPE.findall(text)
    return text.replace(chance.choice(found), chance.choice(TYPES)) if found else text


def change_number(text: str, chance: random.Random) -> str:
    """One number becomes another, maybe huge."""
    return _at_one_match(_NUMBER, text, chance, lambda _: chance.choice(NUMBERS))


def rename_op(text: str, chance: random.Random) -> str:
    """One op becomes another, known or not."""
    names = [*BY_NAME, "stablehlo.nothing", "arith.constant", "foo.bar", "func.return"]
    return _at_one_match(_OP, text, chance, lambda _: chance.choice(names))


def rename_attribute(text: str, chance: random.Random) -> str:
    """One attribute gets another name."""
    keys = [*_KEY.findall(text), "dimension", "x", "sdy.sharding", "value"]
    return _at_one_match(_KEY, text, chance, lambda _: chance.choice(keys))


def nest_deeply(text: str, chance: random.Random) -> str:
    """Brackets, types or regions, many levels deep."""
    depth = chance.choice((30, 300, 3000))
    kind = chance.randrange(4)
    if kind == 0:
        return _at_one_match(_NUMBER, text, chance, lambda n: "[" * depth + n + "]" * depth)
    if kind == 1:
        deep = "tuple<" * depth + "tensor<f32>" + ">" * depth
        return _at_one_match(_TYPE, text, chance, lambda _: deep)
    if kind == 2:
        return "module {\n" * depth + text + "}\n" * depth
    opening = '  "stablehlo.case"(%i) ({\n'
    closing = "  stablehlo.return\n  }) : (tensor<i32>) -> ()\n"
    body = f"{opening * depth}{closing * depth}  return\n}}\n"
    return f"func.func @deep(%i: tensor<i32>) {{\n{body}{text}"


TEXT: tuple[TextMutator, ...] = (
    truncate, flip_character, delete_line, duplicate_line, swap_lines, swap_tokens, delete_token,
    insert_word, change_type, change_all_types, change_number, rename_op, rename_attribute,
    nest_deeply,
)  # fmt: skip


def truncate_bytes(raw: bytes, chance: random.Random) -> bytes:
    """Cut off the end."""
    return raw[: chance.randrange(len(raw) + 1)]


def flip_byte(raw: bytes, chance: random.Random) -> bytes:
    """Another byte somewhere."""
    place = chance.randrange(len(raw))
    return raw[:place] + bytes([chance.randrange(256)]) + raw[place + 1 :]


def flip_bit(raw: bytes, chance: random.Random) -> bytes:
    """One bit of one byte, after the first few."""
    place = chance.randrange(min(4, len(raw) - 1), len(raw))
    return raw[:place] + bytes([raw[place] ^ 1 << chance.randrange(8)]) + raw[place + 1 :]


def delete_bytes(raw: bytes, chance: random.Random) -> bytes:
    """Some bytes less."""
    start = chance.randrange(len(raw))
    return raw[:start] + raw[start + chance.randrange(1, 9) :]


def duplicate_bytes(raw: bytes, chance: random.Random) -> bytes:
    """Some bytes twice, maybe elsewhere."""
    start, place = chance.randrange(len(raw)), chance.randrange(len(raw) + 1)
    return raw[:place] + raw[start : start + chance.randrange(1, 33)] + raw[place:]


def insert_bytes(raw: bytes, chance: random.Random) -> bytes:
    """Some bytes more."""
    place = chance.randrange(len(raw) + 1)
    return raw[:place] + chance.randbytes(chance.randrange(1, 9)) + raw[place:]


BYTES: tuple[BytesMutator, ...] = (
    truncate_bytes, flip_byte, flip_bit, flip_bit, delete_bytes, duplicate_bytes, insert_bytes,
)  # fmt: skip


def mutated(program: str | bytes, seed: int) -> tuple[str | bytes, str]:
    """A program with one to three damages, and their names."""
    chance = random.Random(seed)
    names = []
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        if not program:
            break
        if isinstance(program, str):
            change = chance.choice(TEXT)
            program = change(program, chance)
        else:
            alter = chance.choice(BYTES)
            program = alter(program, chance)
            change = alter  # type: ignore[assignment]
        names.append(change.__name__)
    return program, " ".join(names)
