"""Arrays of the command line: random arguments of every type, and arrays as JSON."""

from __future__ import annotations

import math

import numpy as np
import pytest

from weft.cli.arrays import plain, random_arguments
from weft.ir.types import DTYPES, TOKEN, TensorType


def drawn(name: str, *shape: int) -> np.ndarray:
    (made,) = random_arguments([TensorType(shape, DTYPES[name])], 3)
    assert made is not None and made.shape == shape and made.dtype == DTYPES[name].numpy
    return made


@pytest.mark.parametrize(
    ("name", "top"), [("i1", 2), ("i32", 8), ("ui8", 8), ("i4", 8), ("i2", 2), ("ui2", 2)]
)
def test_integers_are_small_and_all_of_them_occur(name, top):
    assert {*drawn(name, 40, 10).reshape(-1).astype(int).tolist()} == {*range(top)}


@pytest.mark.parametrize("name", ["f32", "bf16", "f64"])
def test_floats_are_normal(name):
    made = drawn(name, 100, 40).astype(np.float64)
    assert abs(made.mean()) < 0.1 and abs(made.std() - 1) < 0.1


def test_the_parts_of_complex_numbers_differ():
    made = drawn("complex<f32>", 100, 40)
    assert abs(np.corrcoef(made.real.reshape(-1), made.imag.reshape(-1))[0, 1]) < 0.1
    for part in (made.real, made.imag):
        assert abs(part.std() - 1) < 0.1


def test_seeds_and_types_without_elements():
    type = TensorType((4,), DTYPES["f32"])
    one, other, token = random_arguments([type, type, TOKEN], 0)
    assert token is None and not np.array_equal(one, other)
    again, _ = random_arguments([type, type], 0)
    another, _ = random_arguments([type, type], 1)
    assert np.array_equal(one, again) and not np.array_equal(one, another)


def test_arrays_as_json():
    assert plain(None) is None
    assert plain(np.array([[1, 2], [3, 4]], np.int8)) == [[1, 2], [3, 4]]
    assert plain(np.array([1 - 2j, 0])) == [[1.0, -2.0], [0.0, 0.0]]
    assert plain(np.array([True, False])) == [True, False]
    found = plain(np.array([math.nan, math.inf, -math.inf, 0.5], np.float32))
    assert found[3] == 0.5 and all(isinstance(x, str) for x in found[:3])
    assert len({*found[:3]}) == 3
