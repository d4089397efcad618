"""Constants: their text for every element type, interned by content."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ops.draw import EVERY, array, dtypes, seeds, shapes
from weft.capture import parse
from weft.errors import Unsupported, WeftError
from weft.ir.dense import HEX_LIMIT, Dense, parse_dense
from weft.ir.types import DTYPES, F32, Array, DType, TensorType, tensor


def specials(dtype: DType) -> Array:
    """The values of a type whose text is not plain digits."""
    if dtype.kind == "bool":
        return np.array([True, False])
    if dtype.is_integer:
        limits = (0, 2**dtype.bits - 1)
        if dtype.kind == "int":
            limits = (-(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1)
        return np.array([0, 1, *limits], object).astype(dtype.numpy)
    if dtype.is_complex:
        return np.array([0j, 1 - 2j, complex("inf-nanj"), -0.0 + 1j], dtype.numpy)
    with np.errstate(all="ignore"):
        given = np.array([0.0, -0.0, 1.0, 0.1, 3e-8, np.inf, -np.inf, np.nan])
        return given.astype(dtype.numpy)


def same_bits(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("repeat", [1, HEX_LIMIT])
def test_every_type_is_read_back_by_us_and_by_mlir(name: str, repeat: int):
    value = np.tile(specials(DTYPES[name]), repeat)
    held = Dense(value)
    assert same_bits(parse_dense(held.text).array.copy(), value)
    line = f"func.func @main() {{\n  %0 = stablehlo.constant {held.text}\n  return\n}}\n"
    (node,) = parse(line).nodes()
    assert same_bits(node.op.value.array.copy(), value)  # type: ignore[attr-defined]


@given(shapes(), dtypes(), seeds)
def test_arrays_are_read_back(shape: tuple[int, ...], dtype: DType, seed: int):
    value = Dense(array(shape, dtype, seed))
    assert parse_dense(value.text) is value
    assert value.array.shape == shape
    assert pickle.loads(pickle.dumps(value)) is value


@given(st.floats(width=32, allow_nan=False))
def test_floats_keep_all_their_bits(number: float):
    value = np.array([number, 1.0], np.float32)
    assert same_bits(parse_dense(Dense(value).text).array, value)


def test_equal_contents_are_one_object():
    ones = Dense(np.ones((2, 3), np.float32))
    assert ones is Dense(np.ones((1,), np.float32), tensor(2, 3))
    assert ones is not Dense(np.ones((3, 2), np.float32))
    assert Dense(np.array([0.0])) is not Dense(np.array([-0.0]))


def test_a_splat_is_kept_as_one_element():
    big = Dense(np.float32(7).reshape(1), TensorType((1 << 40,), F32))
    assert big.is_splat and big.elements.size == 1
    assert big.text == "dense<7.000000e+00> : tensor<1099511627776xf32>"


def test_values_cannot_be_changed():
    value = Dense(np.arange(3.0))
    with pytest.raises(ValueError, match="read-only"):
        value.array[0] = 5
    given = np.arange(3.0)
    kept = Dense(given)
    given[0] = 9
    assert kept.array[0] == 0


def test_text_is_what_mlir_writes():
    assert Dense(np.array([[1, 2], [3, 4]], np.int32)).text == (
        "dense<[[1, 2], [3, 4]]> : tensor<2x2xi32>"
    )
    assert Dense(np.array([True, False])).text == "dense<[true, false]> : tensor<2xi1>"
    assert Dense(np.zeros((0, 3), np.int8)).text == "dense<> : tensor<0x3xi8>"
    assert Dense(np.array(np.inf, np.float32)).text == "dense<0x7F800000> : tensor<f32>"
    assert Dense(np.array(1 + 2j, np.complex64)).text == (
        "dense<(1.000000e+00, 2.000000e+00)> : tensor<complex<f32>>"
    )
    many = Dense(np.arange(HEX_LIMIT + 1, dtype=np.uint8)).text
    assert many.startswith('dense<"0x000102') and many.endswith('"> : tensor<101xui8>')


def test_wrong_constants_are_refused():
    with pytest.raises(WeftError, match="has 2 elements"):
        Dense(np.arange(2, dtype=np.float32), tensor(3))
    with pytest.raises(Unsupported, match="dense_resource"):
        parse_dense("dense_resource<blob> : tensor<2xf32>")
    with pytest.raises(WeftError, match="a constant of type"):
        parse_dense("dense<1> : !stablehlo.token")


def test_large_constants_are_known_by_their_content():
    """Equal bits are one object, whatever the size; -0.0, 0.0 and NaNs of other bits differ."""
    zeros = np.zeros(5000, np.float32)
    mixed = zeros.copy()
    mixed[-1] = -0.0
    assert Dense(zeros).is_splat and not Dense(mixed).is_splat
    numbers = np.arange(5000.0)
    assert Dense(numbers) is Dense(numbers.copy())
    assert Dense(numbers) is not Dense(numbers.reshape(50, 100))
    bits = np.full(5000, 0x7FC00000, np.uint32)
    other = bits.copy()
    other[7] += 1
    assert Dense(bits.view(np.float32)).is_splat and not Dense(other.view(np.float32)).is_splat
    before = numbers.copy()
    kept = Dense(numbers)
    numbers[0] = 9
    np.testing.assert_array_equal(kept.array, before)
