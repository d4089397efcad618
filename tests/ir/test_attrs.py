"""Attribute codecs: what an op's fields look like in MLIR, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest

from weft.errors import WeftError
from weft.ir.attrs import (
    BOOLEAN,
    DENSE,
    DTYPE,
    FLOAT32,
    I1S,
    I64S,
    INT32,
    INT64,
    MATRIX,
    STRING,
    SYMBOL,
    TEXT,
    UNIT,
    Codec,
    array_of,
    codec_of,
    enum,
    struct,
)
from weft.ir.dense import Dense
from weft.ir.op import infer, read_op
from weft.ir.types import DTYPES, DType, tensor
from weft.ops.elementwise.pointwise import Compare
from weft.ops.shape import Transpose


@dataclass(frozen=True)
class Window:
    """A struct attribute as ops declare them."""

    size: int = 0
    dims: tuple[int, ...] = ()
    flipped: bool = False


WINDOW = struct("test.window")(Window)
WAY = enum("way", "UP", "DOWN", dialect="test")


@pytest.mark.parametrize(
    "codec, value, text",
    [
        (INT64, -3, "-3 : i64"),
        (INT32, 7, "7 : i32"),
        (BOOLEAN, True, "true"),
        (STRING, 'a "b"\n\\é', r'"a \22b\22\0A\5C\C3\A9"'),
        (SYMBOL, "main", "@main"),
        (SYMBOL, "a b", '@"a b"'),
        (TEXT, "#foo<bar>", "#foo<bar>"),
        (I64S, (), "array<i64>"),
        (I64S, (1, -2), "array<i64: 1, -2>"),
        (I1S, (True, False), "array<i1: true, false>"),
        (I1S, (), "array<i1>"),
        (MATRIX, ((0, 1), (2, 3)), "dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>"),
        (MATRIX, ((5, 5), (5, 5)), "dense<5> : tensor<2x2xi64>"),
        (MATRIX, (), "dense<> : tensor<0x2xi64>"),
        (DENSE, Dense(np.array([1, 2], np.int8)), "dense<[1, 2]> : tensor<2xi8>"),
        (DTYPE, DTYPES["bf16"], "bf16"),
        (FLOAT32, 0.5, "5.000000e-01 : f32"),
        (UNIT, True, "unit"),
        (WAY, "UP", "#test<way UP>"),
        (array_of(WAY), ("UP", "DOWN"), "[#test<way UP>, #test<way DOWN>]"),
        (array_of(INT64), (), "[]"),
        (WINDOW, Window(), "#test.window<>"),
        (WINDOW, Window(3, (1, 2), True), "#test.window<size = 3, dims = [1, 2], flipped = true>"),
    ],
)
def test_values_are_written_and_read_back(codec: Codec, value: Any, text: str):
    assert codec.write(value) == text
    assert codec.read(text) == value


def test_what_a_struct_leaves_out_is_the_default():
    assert WINDOW.read("#test.window<dims = [4]>") == Window(0, (4,), False)
    with pytest.raises(WeftError, match="has no 'colour'"):
        WINDOW.read("#test.window<colour = 1>")


def test_unknown_words_are_refused_with_the_known_ones():
    with pytest.raises(WeftError, match="is not a way") as caught:
        WAY.read("#test<way LEFT>")
    assert caught.value.help == "known: UP, DOWN"


@pytest.mark.parametrize(
    "hint, codec",
    [(int, INT64), (bool, BOOLEAN), (str, STRING), (Dense, DENSE), (DType, DTYPE),
     (tuple[int, ...], I64S), (tuple[bool, ...], I1S), (tuple[tuple[int, int], ...], MATRIX),
     (int | None, INT64), (Annotated[int, INT32], INT32), (Annotated[str, WAY] | None, WAY)],
)  # fmt: skip
def test_annotations_pick_the_codec(hint: object, codec: Codec):
    assert codec_of(hint) is codec


def test_annotations_without_a_form_are_our_mistake():
    with pytest.raises(AssertionError, match="no attribute form"):
        codec_of(set)


# Ops read their fields


def test_an_op_is_read_from_attributes():
    given = {
        "comparison_direction": "#stablehlo<comparison_direction LT>",
        "my.note": '"kept"',
    }
    op, rest = read_op(Compare, given, ())
    assert op is Compare("LT") and rest == (("my.note", '"kept"'),)
    assert op.attributes() == (("comparison_direction", "#stablehlo<comparison_direction LT>"),)


def test_a_missing_attribute_is_named():
    with pytest.raises(WeftError, match="attribute 'permutation' is missing"):
        read_op(Transpose, {}, ())


@pytest.mark.parametrize("text", ["5", "dense<1>", "array<i64: x>", "unit"])
def test_an_attribute_of_another_form_is_refused(text: str):
    with pytest.raises(WeftError, match=r"has the wrong form|is not a permutation"):
        op, _ = read_op(Transpose, {"permutation": text}, ())
        infer(op, (tensor(2, 2),))
