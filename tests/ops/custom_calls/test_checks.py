"""The checks of StableHLO's conformance files: bounds in ulps, tolerances, defaults."""

from __future__ import annotations

import numpy as np
import pytest

from weft.errors import WeftError
from weft.ir.dense import Dense
from weft.ir.types import Array, type_of
from weft.ops.custom_calls.checks import (
    ExpectAlmostEq,
    ExpectAlmostEqConst,
    ExpectClose,
    ExpectCloseConst,
    expect_almost_equal,
    expect_close,
    ulps,
)


def off_by(steps: int, dtype: type = np.float32) -> Array:
    """A number that many steps above 1."""
    bits = np.uint32 if dtype is np.float32 else np.uint64
    return (np.array([1.0, 1.0], dtype).view(bits) + np.array([0, steps], bits)).view(dtype)


def constant(array: Array) -> Dense:
    return Dense(array, type_of(array))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("least", "most"), [(0, 3), (0, 0), (2, 5)])
@pytest.mark.parametrize("apart", range(7))
def test_a_distance_within_its_bounds(dtype, least, most, apart):
    ones = np.ones(1, dtype)
    found = off_by(apart, dtype)[1:]
    for ours, theirs in ((found, ones), (ones, found), (-found, -ones)):
        if least <= apart <= most:
            expect_close(ours, theirs, least, most)
            continue
        with pytest.raises(WeftError, match=f"is more than {most} ulp off"):
            expect_close(ours, theirs, least, most)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_distances_across_zero_count_every_number_between(dtype):
    least = np.array([np.finfo(dtype).smallest_subnormal])
    zeros = np.zeros(1, dtype)
    for ours, theirs, apart in ((-least, least, 2), (least, zeros, 1), (-zeros, least, 1),
                                (-zeros, zeros, 0), (-2 * least, least, 3)):  # fmt: skip
        assert ulps(ours.astype(dtype), theirs.astype(dtype))[0] == apart


def test_the_defaults_are_three_ulps_and_none():
    ones = np.ones(2, np.float32)
    for apart in (0, 1, 3):
        assert ExpectClose().reference(off_by(apart), ones) == ()
        assert ExpectCloseConst(constant(ones)).reference(off_by(apart)) == ()
        expect_close(off_by(apart), ones)
    for check in (
        lambda: ExpectClose().reference(off_by(4), ones),
        lambda: ExpectCloseConst(constant(ones)).reference(off_by(4)),
        lambda: expect_close(off_by(4), ones),
    ):
        with pytest.raises(WeftError, match="more than 3 ulp"):
            check()
    with pytest.raises(WeftError):
        ExpectClose(9, 1).reference(ones, ones)
    ExpectCloseConst(constant(ones), 9, 0).reference(off_by(9))


def test_parts_of_complex_numbers_nan_and_integers():
    whole = (off_by(2) + 1j * off_by(3)).astype(np.complex64)
    expect_close(whole, np.full(2, 1 + 1j, np.complex64), 0, 3)
    with pytest.raises(WeftError):
        expect_close(whole, np.full(2, 1 + 1j, np.complex64), 0, 2)
    nan = np.array([np.nan, np.inf], np.float32)
    expect_close(nan, nan)
    with pytest.raises(WeftError):
        expect_close(nan, nan[::-1].copy())
    numbers = np.array([3, -4])
    expect_close(numbers, numbers, 1, 1)
    with pytest.raises(WeftError):
        expect_close(numbers, numbers + 1)


def test_tolerances_are_relative_above_one():
    small, large = np.array([0.5]), np.array([1000.0])
    ExpectAlmostEq().reference(small + 0.9e-4, small)
    ExpectAlmostEq().reference(large + 0.09, large)
    ExpectAlmostEqConst(constant(large)).reference(large + 0.09)
    ExpectAlmostEq(0.25).reference(small + 0.24, small)
    expect_almost_equal(small * 1j, small * 1j)
    for ours, theirs in ((small + 1.1e-4, small), (large + 0.11, large)):
        for check in (
            lambda ours=ours, theirs=theirs: ExpectAlmostEq().reference(ours, theirs),
            lambda ours=ours, theirs=theirs: expect_almost_equal(ours, theirs),
            lambda ours=ours, theirs=theirs: ExpectAlmostEqConst(constant(theirs)).reference(ours),
        ):
            with pytest.raises(WeftError, match=r"differs by more than 0\.0001"):
                check()
