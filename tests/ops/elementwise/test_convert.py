"""Conversions between element types: rounded once, truncated, wrapped or saturated."""

from __future__ import annotations

import numpy as np
import pytest

from weft.errors import Unsupported, WeftError
from weft.ir.op import infer
from weft.ir.types import DTYPES, Array, TensorType, tensor
from weft.ops.elementwise.convert import (
    Complex,
    Convert,
    Imag,
    Real,
    ReducePrecision,
    UniformDequantize,
    UniformQuantize,
)

NAN, INF = np.nan, np.inf


def converted(array: Array, name: str) -> Array:
    """The array in another element type."""
    dtype = DTYPES[name]
    got = Convert(TensorType(array.shape, dtype)).reference(array)
    assert got.dtype == dtype.numpy
    return np.asarray(got)


def test_floats_are_truncated_and_saturated() -> None:
    given = np.array([1.9, -1.9, NAN, INF, -INF, 3e9, -300.5])
    for name, expected in (
        ("i2", [1, -1, 0, 1, -2, 1, -2]),
        ("ui4", [1, 0, 0, 15, 0, 15, 0]),
        ("i8", [1, -1, 0, 127, -128, 127, -128]),
        ("i32", [1, -1, 0, 2**31 - 1, -(2**31), 2**31 - 1, -300]),
        ("ui32", [1, 0, 0, 2**32 - 1, 0, 3000000000, 0]),
        ("i64", [1, -1, 0, 2**63 - 1, -(2**63), 3000000000, -300]),
        ("ui64", [1, 0, 0, 2**64 - 1, 0, 3000000000, 0]),
    ):
        for source in ("f32", "f64"):
            got = converted(given.astype(source.replace("f", "float")), name)
            assert [int(v) for v in got] == expected, (source, name)


def test_integers_wrap() -> None:
    given = np.array([300, -1, 130], np.int32)
    assert converted(given, "i8").tolist() == [44, -1, -126]
    assert converted(given, "ui8").tolist() == [44, 255, 130]
    assert converted(given, "i4").astype(int).tolist() == [-4, -1, 2]
    assert converted(np.array([-1], np.int8), "ui64").tolist() == [2**64 - 1]


def test_booleans() -> None:
    assert converted(np.array([0.0, -0.0, 0.5, NAN]), "i1").tolist() == [False, False, True, True]
    assert converted(np.array([2, 256]), "i1").tolist() == [True, True]
    assert converted(np.array([True, False]), "bf16").astype(float).tolist() == [1, 0]
    assert converted(np.array([True, False]), "complex<f64>").tolist() == [1, 0]


def test_complex_numbers_lose_their_imaginary_part() -> None:
    given = np.array([2.75 + 9j, 7j, complex(NAN, 1)])
    assert converted(given, "f32").tolist()[:2] == [2.75, 0]
    assert converted(given, "i8").tolist() == [2, 0, 0]
    assert converted(given, "i1").tolist() == [True, False, True]
    held = converted(np.array([complex(INF, NAN)]), "complex<f32>")
    assert np.isinf(held.real) and np.isnan(held.imag)


def test_floats_are_rounded_once() -> None:
    tie = 1 + 2.0**-8  # between two numbers of bf16, and f32 cannot tell what is added to it
    given = np.array([tie, tie + 2.0**-40, tie - 2.0**-40, -tie - 2.0**-40])
    expected = [1, 1 + 2.0**-7, 1, -1 - 2.0**-7]
    assert converted(given, "bf16").astype(float).tolist() == expected
    quarter = 0.25 + 2.0**-40
    assert converted(np.array([quarter, 0.25]), "f4E2M1FN").astype(float).tolist() == [0.5, 0]


@pytest.mark.parametrize("source", ["int64", "uint64"])
def test_long_integers_are_rounded_once(source: str) -> None:
    tie = (1 << 62) + (1 << 54)  # between two numbers of bf16
    given = np.array([tie, tie + 1, tie - 1], source)
    step = float(1 << 55)
    expected = [2.0**62, 2.0**62 + step, 2.0**62]
    assert converted(given, "bf16").astype(float).tolist() == expected
    if source == "int64":
        assert converted(-given, "bf16").astype(float).tolist() == [-v for v in expected]


def test_what_a_type_cannot_hold() -> None:
    given = np.array([1e9, -1e9, NAN, -0.0])
    assert converted(given, "f8E5M2").astype(float).tolist()[:2] == [INF, -INF]
    assert np.isnan(converted(given, "f8E4M3FN").astype(float)).tolist() == [
        True,
        True,
        True,
        False,
    ]
    assert converted(given, "f4E2M1FN").astype(float).tolist()[:2] == [6, -6]
    assert converted(given, "f8E5M2FNUZ").view(np.uint8)[3] == 0


def test_parts() -> None:
    z = np.array([1 - 2j], np.complex64)
    assert Real().reference(z).tolist() == [1] and Imag().reference(z).tolist() == [-2]
    x = np.array([-0.0, NAN], np.float16)
    assert np.signbit(Real().reference(x)[0]) and Imag().reference(x).tolist() == [0, 0]
    inf = Complex().reference(np.array([INF]), np.array([NAN]))
    assert inf.real == INF and np.isnan(inf.imag)


def test_reduced_precision() -> None:
    given = np.array([1 + 2.0**-11, 1 + 3 * 2.0**-11, 70000, 1e-8, -1e-8, NAN, -INF], np.float32)
    got = ReducePrecision(5, 10).reference(given)
    expected = np.array([1, 1 + 2.0**-9, INF, 0, -0.0, NAN, -INF], np.float32)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(expected))
    np.testing.assert_array_equal(ReducePrecision(8, 23).reference(given), given)
    assert ReducePrecision(8, 7).reference(np.array([1e-45], np.float32))[0] == 0


def test_refusals() -> None:
    with pytest.raises(WeftError, match="e0m3 is not a float format"):
        infer(ReducePrecision(0, 3), (tensor(2),))
    with pytest.raises(WeftError, match=r"the parts are tensor<2xbf16>"):
        infer(Complex(), (tensor(2, dtype="bf16"),) * 2)
    with pytest.raises(WeftError, match="but the result is tensor<3xf32>"):
        infer(Convert(tensor(3)), (tensor(2, dtype="i8"),))


@pytest.mark.parametrize("op", [UniformQuantize(), UniformDequantize()])
def test_quantized_types_are_refused_by_name(op: UniformQuantize | UniformDequantize) -> None:
    with pytest.raises(Unsupported, match=f"{op.name}: quantized types are not supported"):
        infer(op, (tensor(2),))
