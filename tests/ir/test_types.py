"""Types: interned, sized, printed, and refused where they mean nothing."""

from __future__ import annotations

import pickle

import ml_dtypes
import numpy as np
import pytest

from weft.errors import Unsupported, WeftError
from weft.ir.scan import parse_signature, parse_type
from weft.ir.types import (
    DTYPES,
    F32,
    I32,
    TOKEN,
    FutureType,
    Symbol,
    TensorType,
    TupleType,
    dtype,
    dtype_of,
    tensor,
    type_of,
)

BOUNDED = "tensor<?x4xf32, #stablehlo.bounds<8, ?>>"


def test_equal_types_are_one_object():
    assert tensor(2, 3) is TensorType((2, 3), F32)
    assert tensor(2, 3) is not tensor(3, 2)
    assert tensor(2, 3) is not tensor(2, 3, dtype="f64")
    assert pickle.loads(pickle.dumps(tensor(2, 3))) is tensor(2, 3)


@pytest.mark.parametrize("name", DTYPES)
def test_every_element_type_prints_parses_and_fits_numpy(name: str):
    row = DTYPES[name]
    assert dtype(name) is row and repr(row) == name
    assert parse_type(f"tensor<3x{name}>") is TensorType((3,), row)
    if name != "index":  # which numpy holds as i64
        assert dtype_of(row.numpy) is row
    assert type_of(np.zeros((2,), row.numpy)).shape == (2,)


def test_element_types_know_what_they_are():
    assert DTYPES["i8"].is_integer and DTYPES["ui4"].is_integer and not DTYPES["i1"].is_integer
    assert DTYPES["bf16"].is_float and not DTYPES["complex<f32>"].is_float
    assert DTYPES["complex<f64>"].real is DTYPES["f64"] and F32.real is F32
    assert [DTYPES[n].mantissa for n in ("f32", "bf16", "f8E4M3FN", "complex<f64>")] == [
        *(23, 7, 3, 52)
    ]
    assert DTYPES["bf16"].numpy == np.dtype(ml_dtypes.bfloat16)


@pytest.mark.parametrize(
    "shape, name, size, nbytes",
    [((), "f32", 1, 4), ((3, 0), "f64", 0, 0), ((5,), "i4", 5, 3), ((9,), "i1", 9, 2)],
)
def test_sizes_are_counted_packed(shape: tuple[int, ...], name: str, size: int, nbytes: int):
    type = TensorType(shape, DTYPES[name])
    assert (type.size, type.nbytes, type.rank) == (size, nbytes, len(shape))


def test_bounded_dims_print_and_parse():
    type = parse_type(BOUNDED)
    assert isinstance(type, TensorType)
    assert type is TensorType((Symbol(8), 4), F32)
    assert str(type) == BOUNDED
    assert type.bounds == (8, 4) and type.size == 32 and not type.is_static
    assert repr(type.shape[0]) == "?<=8"
    with pytest.raises(WeftError, match="known only at run time") as caught:
        assert type.sizes
    assert "at most 8" in caught.value.help


@pytest.mark.parametrize(
    "text",
    ["tensor<f32>", "tensor<2x0x3xi1>", "!stablehlo.token", "tuple<>", BOUNDED,
     "tuple<tensor<f32>, tuple<!stablehlo.token>>", "!stablehlo.future<tensor<2xf32>, tensor<i1>>",
     "tensor<2xcomplex<f32>>"],
)  # fmt: skip
def test_types_are_read_back(text: str):
    assert str(parse_type(text)) == text
    assert parse_type(text) == parse_type(f" {text} ")


def test_types_hold_types():
    pair = TupleType((tensor(2), TOKEN))
    assert parse_type(str(pair)) == pair
    assert FutureType((tensor(2),)) != TupleType((tensor(2),))


def test_signatures_are_read():
    assert parse_signature("(tensor<f32>, !stablehlo.token) -> ()") == ((tensor(), TOKEN), ())
    assert parse_signature("() -> tensor<2xi32>") == ((), (tensor(2, dtype=I32),))
    one, two = parse_signature("(tuple<tensor<f32>>) -> (tensor<f32>, tensor<f32>)")
    assert len(one) == 1 and len(two) == 2


@pytest.mark.parametrize(
    "text, message",
    [
        ("tensor<3xi3>", "unknown element type 'i3'"),
        ("tensor<?xf32>", "without a bound"),
        ("tensor<*xf32>", "without a rank"),
        ("memref<2xf32>", "not one of StableHLO's"),
        ("tensor<2xf32, #foo.bar<1>>", "encoding"),
        ("tensor<2x!quant.uniform<i8:f32, 1.0>>", "quantized"),
    ],
)
def test_unknown_types_are_refused(text: str, message: str):
    with pytest.raises(WeftError, match=message) as caught:
        parse_type(text)
    assert caught.value.help


def test_unbounded_dims_are_unsupported_rather_than_wrong():
    with pytest.raises(Unsupported):
        parse_type("tensor<?x4xf32>")


def test_numpy_types_without_a_meaning_are_refused():
    with pytest.raises(WeftError, match="no StableHLO element type"):
        dtype_of(np.dtype("U3"))


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("i1", (False, True)),
        ("i4", (-8, 7)),
        ("ui16", (0, 65535)),
        ("bf16", (-np.inf, np.inf)),
        ("f8E5M2", (-np.inf, np.inf)),
        ("f8E4M3FN", (-448, 448)),
        ("f4E2M1FN", (-6, 6)),
        ("complex<f32>", (-np.inf, np.inf)),
    ],
)
def test_limits(name: str, limits: tuple[float, float]):
    assert dtype(name).limits == limits
