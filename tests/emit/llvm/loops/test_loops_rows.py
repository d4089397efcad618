"""Rows: their largest elements, what is special in them, single elements, narrow ones kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emit.llvm.launching import check, launch
from tests.kernels.building import Building
from tests.kernels.chains import CHAINS
from weft.emit.llvm.emit import emit
from weft.emit.llvm.jit.engine import load
from weft.emit.llvm.pool.commands import CommandList
from weft.ir.types import F32, I32, Array, dtype
from weft.kernels.kernel import Combine
from weft.ops.elementwise.pointwise import Compare, Multiply, Select, Subtract
from weft.ops.elementwise.transcendental import Exponential

SPECIAL = (0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1.0, -1.0, 1e-45, -1e-45)


def extremes(how: Combine, rows: int, row: int, kind: str) -> Building:
    b = Building(i=rows, j=row)
    b.write("i", b.reduce(how, b.read("ij", dtype(kind)), "j"))
    return b


def exact_extreme(how: Combine, row: Array) -> float:
    """NaN if there is one, and zeros by their signs."""
    if np.isnan(row).any():
        return np.nan
    best = row.max() if how == "max" else row.min()
    if best == 0:
        zeros = row[row == 0]
        negative = np.signbit(zeros).all() if how == "max" else np.signbit(zeros).any()
        return -0.0 if negative else 0.0
    return float(best)


@settings(max_examples=60)
@given(
    st.sampled_from(["max", "min"]),
    st.sampled_from([16, 40, 64, 100, 128, 200]),
    st.lists(st.sampled_from(SPECIAL), min_size=1, max_size=8),
    st.sampled_from(SPECIAL),
    st.sampled_from(["f32", "f64", "bf16"]),
    st.integers(0, 1 << 20),
)
def test_extremes_of_special_values(
    how: Combine, row: int, some: list[float], most: float, kind: str, seed: int
):
    rng = np.random.default_rng(seed)
    x = np.full((8, row), most).astype(dtype(kind).numpy)
    for n, value in enumerate(some):
        x[n % 8, rng.integers(row)] = value
    (found,) = launch(extremes(how, 8, row, kind).kernel(), [x])
    expected = [exact_extreme(how, one) for one in x.astype(np.float64)]
    np.testing.assert_array_equal(found.astype(np.float64), expected)
    numbers = ~np.isnan(expected)
    assert (np.signbit(found)[numbers] == np.signbit(expected)[numbers]).all()


@pytest.mark.parametrize("kind", ["f32", "bf16"])
@pytest.mark.parametrize("row", [100, 1024])
def test_softmax_of_special_values(row: int, kind: str):
    b = CHAINS["softmax"](6, row, dtype(kind))
    x = np.random.default_rng(0).standard_normal((6, row))
    x[0, 3] = np.nan
    x[1, 5] = np.inf
    x[2, 7:] = -np.inf
    x[3] = -np.inf
    x[4, row - 1] = 1e30
    (found,) = launch(b.kernel(), [x.astype(dtype(kind).numpy)])
    found = found.astype(np.float64)
    assert np.isnan(found[[0, 1, 3]]).all(), "inf - inf is NaN, and so is the sum"
    assert (found[2, 7:] == 0).all() and found[4, row - 1] == 1
    np.testing.assert_allclose(found[[2, 4, 5]].sum(1), 1, rtol=1e-5 if kind == "f32" else 0.02)


def chosen(
    rows: int, row: int, kind: str, *, swapped: bool = False, init: bool = False
) -> Building:
    """2x where j is the row's index, summed."""
    b, to = Building(i=rows, j=row), dtype(kind)
    x, index = b.read("ij", to), b.read("i", I32)
    place = b.position(b.affine(j=1), I32)
    hit = b.apply(Compare("EQ"), *((index, place) if swapped else (place, index)))
    twice = b.apply(Multiply(), x, b.fill(2.0, to))
    first = b.fill(3.0, to) if init else None
    b.write("i", b.reduce("add", b.apply(Select(), hit, twice, b.fill(0.0, to)), "j", first))
    return b


@pytest.mark.parametrize("init", [False, True])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("kind", ["f32", "bf16"])
@pytest.mark.parametrize("row", [1, 2, 70, 300])
def test_the_element_at_an_index(row: int, kind: str, swapped: bool, init: bool):
    b = chosen(9, row, kind, swapped=swapped, init=init)
    x = np.random.default_rng(0).standard_normal((9, row)).astype(dtype(kind).numpy)
    x[0, 0] = -0.0
    index = np.array([0, row - 1, row // 2, -1, row, 1 << 30, -(1 << 31), 1, 0], np.int32)
    (found,) = check(b.kernel(), [x, index], 2)
    if not init:
        assert not np.signbit(found[[3, 4, 5, 6]].astype(np.float32)).any()


def test_a_row_that_is_only_looked_up_is_not_read():
    text = emit(chosen(9, 4096, "f32").kernel()).text
    assert "masked.gather" in text and "phi" not in text, "rows in lanes, and no loop"


def test_an_element_is_read_before_a_result_takes_its_place():
    """What is as large as a result may be its memory: then it is a sum as any other."""
    b = Building(i=2, j=50_000)
    x, index = b.read("ij"), b.read("i", I32)
    hit = b.apply(Compare("EQ"), b.position(b.affine(j=1), I32), index)
    one = b.reduce("add", b.apply(Select(), hit, x, b.fill(0.0)), "j")
    b.write("ij", b.apply(Subtract(), x, one))
    (loaded,) = load([emit(b.kernel(task=500))])
    given, at = b.arrays()[0], np.array([3, 49_000], np.int32)
    expected = given - given[[0, 1], at][:, None]
    commands = CommandList()
    commands.kernel(loaded, [given.ctypes.data, at.ctypes.data, given.ctypes.data])
    commands.run()
    np.testing.assert_array_equal(given, expected)


def test_sums_of_several_elements_are_sums():
    b = Building(i=5, j=200)
    x, index = b.read("ij"), b.read("i", I32)
    hit = b.apply(Compare("LE"), b.position(b.affine(j=1), I32), index)
    b.write("i", b.reduce("add", b.apply(Select(), hit, x, b.fill(0.0)), "j"))
    check(b.kernel(), [*b.arrays()[:1], np.arange(5, dtype=np.int32) * 40], 200)


def test_narrow_rows_are_read_once():
    """What several passes read is kept as registers have it."""
    b = CHAINS["layer_norm"](8, 512, dtype("bf16"))
    kernel = b.kernel()
    assert emit(kernel).scratch >= 512 * 4
    check(kernel, b.arrays(), 512)
    assert emit(CHAINS["layer_norm"](8, 512, F32).kernel()).scratch == 0


@pytest.mark.parametrize("row", [16, 70, 1000, 9000])
@pytest.mark.parametrize("rows", [1, 40])
def test_narrow_elements_that_rows_share(rows: int, row: int):
    """Those of short rows are read once for all rows."""
    for name in ("bias+gelu+residual", "rms_norm"):
        b = CHAINS[name](rows, row, dtype("bf16"))
        check(b.kernel(task=500), b.arrays(), row)


@pytest.mark.parametrize("row", [64, 1000])
def test_powers_of_distances_from_the_largest(row: int):
    """Nothing there is above 0, but from another row's largest it may be."""
    b = Building(i=4, j=row)
    x, y = b.read("ij"), b.read("ij")
    top = b.reduce("max", x, "j")
    for one in (x, y):
        b.write("ij", b.apply(Exponential(), b.apply(Subtract(), one, top)))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((4, row)).astype(np.float32) for _ in range(2)]
    arrays[1] *= 100
    arrays[1][:, 0] = [np.inf, -np.inf, np.nan, 1e4]
    check(b.kernel(), arrays)
