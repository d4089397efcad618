from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.building import Building
from tests.tolerance import assert_close
from weft.ir.types import F32, I32, dtype
from weft.kernels.interpret import interpret
from weft.kernels.kernel import Shift
from weft.ops.elementwise.pointwise import Add, Divide, Multiply, Subtract
from weft.ops.elementwise.transcendental import Exponential

BF16 = dtype("bf16")


def test_softmax():
    b = Building(i=5, j=7)
    x = b.read("ij")
    top = b.reduce("max", x, "j")
    e = b.apply(Exponential(), b.apply(Subtract(), x, top))
    b.write("ij", b.apply(Divide(), e, b.reduce("add", e, "j")))
    (x,) = arrays = b.arrays()
    (out,) = interpret(b.kernel(), arrays)
    e = np.exp(x - x.max(1, keepdims=True))
    assert_close(out, e / e.sum(1, keepdims=True), 7)


def test_a_product():
    b = Building(i=3, j=4, k=5)
    x, y = b.read("ik"), b.read("kj")
    b.write("ij", b.contract(x, y, "k"))
    x, y = arrays = b.arrays()
    assert_close(interpret(b.kernel("packed", tasks=0), arrays)[0], x @ y, 5)


def test_narrow_floats_are_rounded_once():
    b = Building(i=64)
    x, y = b.read("i", BF16), b.read("i", BF16)
    b.write("i", b.apply(Add(), b.apply(Multiply(), x, y), y))
    x, y = arrays = b.arrays()
    wide = x.astype(np.float32) * y.astype(np.float32) + y.astype(np.float32)
    np.testing.assert_array_equal(interpret(b.kernel(), arrays)[0], wide.astype(BF16.numpy))


def test_guards_read_nothing():
    b = Building(i=6)
    x = b.input(4)
    inner = b.load(x, b.affine(-1, i=1), [b.guard(0, 4, -1, i=1)])
    b.write("i", b.choose([b.guard(0, 4, -1, i=1)], inner, b.fill(7.0)))
    (x,) = arrays = b.arrays()
    np.testing.assert_array_equal(interpret(b.kernel(), arrays)[0], [7, *x, 7])


@pytest.mark.parametrize("clamped", [True, False])
def test_shifts_are_known_at_run_time(clamped: bool):
    b = Building(i=5, j=3)
    table, rows = b.input(4, 3), b.read("i", I32)
    shift = Shift(rows, 3, 3, clamped)
    b.write("ij", b.load(table, b.affine(j=1), shifts=[shift]))
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    rows = np.array([0, 3, -1, 9, 2], np.int32)
    expected = table[np.clip(rows, 0, 3)]
    if not clamped:
        expected[[2, 3]] = 0
    np.testing.assert_array_equal(interpret(b.kernel(), [table, rows])[0], expected)


def test_pick_takes_nan_and_then_the_first():
    b = Building(i=3, j=4)
    x = b.read("ij")
    b.write("i", b.pick("max", x, b.position(b.affine(j=1)), "j"))
    b.write("i", b.pick("min", x, b.position(b.affine(j=1)), "j"))
    x = np.array([[1, 3, 3, 0], [0, np.nan, 9, np.nan], [5, 5, 5, 5]], np.float32)
    top, low = interpret(b.kernel(), [x])
    assert list(top) == [1, 1, 0] and list(low) == [3, 1, 0]


def test_a_reduction_of_nothing_is_its_init():
    b = Building(i=3, j=0)
    b.write("i", b.reduce("add", b.read("ij"), "j", b.fill(2.5)))
    np.testing.assert_array_equal(interpret(b.kernel(), b.arrays())[0], [2.5] * 3)


def test_no_factors_at_all():
    b = Building()
    b.write("", b.apply(Add(), b.read("", F32), b.fill(1.0)))
    assert interpret(b.kernel(tasks=0), [np.float32(2)])[0] == 3
