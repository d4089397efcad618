"""Kernels without a product: chains, reductions, places, tails, tasks."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emit.llvm.launching import check, launch
from tests.kernels.building import Building
from tests.kernels.chains import CHAINS
from weft.emit.llvm.emit import emit
from weft.emit.llvm.jit.engine import load
from weft.emit.llvm.pool.commands import CommandList
from weft.ir.types import BOOL, F32, I32, Array, dtype
from weft.kernels.interpret import interpret
from weft.kernels.kernel import Kernel, Shift
from weft.ops.elementwise.pointwise import Add, Divide, Maximum, Multiply, Negate, Subtract
from weft.ops.elementwise.transcendental import Tanh

COMPLEX = dtype("complex<f32>")


@pytest.mark.parametrize("kind", ["f32", "bf16"])
@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("shape", [(3, 16), (7, 48), (5, 1000), (33, 128)], ids=str)
def test_chains(name: str, kind: str, shape: tuple[int, int]):
    rows, row = shape[0], -(-shape[1] // 16) * 16 if name == "rotary" else shape[1]
    b = CHAINS[name](rows, row, dtype(kind))
    arrays = b.arrays()
    if name == "cross_entropy":
        arrays[1] = np.arange(rows, dtype=np.int32) * 3 % row
    check(b.kernel(), arrays, row)


def reduction(how: str, over: str, kept: str, init: bool, **sizes: int) -> Building:
    b = Building(**sizes)
    x = b.read("".join(sizes))
    b.write(kept, b.reduce(how, x, over, b.fill(2.0) if init else None))  # type: ignore[arg-type]
    return b


@pytest.mark.parametrize("task", [50, 1 << 14])
@pytest.mark.parametrize("kind", ["rows", "columns"])
@pytest.mark.parametrize(
    ("over", "kept"),
    [("k", "ij"), ("i", "jk"), ("j", "ik"), ("ik", "j"), ("ij", "k"), ("jk", "i"), ("ijk", "")],
)
@pytest.mark.parametrize("how", ["add", "max"])
def test_reductions_along_any_factors(how: str, over: str, kept: str, kind: str, task: int):
    b = reduction(how, over, kept, init=True, i=9, j=20, k=70)
    check(b.kernel(kind, task=task), b.arrays(), 9 * 20 * 70)


def test_rows_of_sums_lie_in_scratch_memory():
    b = reduction("add", "k", "j", init=True, k=500, j=130)
    made = emit(b.kernel("columns"))
    assert made.scratch >= 130 * 4
    check(b.kernel("columns"), b.arrays(), 500)


def test_rows_and_columns_at_once():
    """The backward pass of a layer norm: row sums inside, column sums outside."""
    b = Building(i=300, j=130)
    x, g = b.read("ij"), b.read("ij")
    mean = b.apply(Multiply(), b.reduce("add", x, "j"), b.fill(1 / 130))
    product = b.apply(Multiply(), g, b.apply(Subtract(), x, mean))
    b.write("j", b.reduce("add", product, "i"))
    b.write("ij", product)
    for task in (200, 1 << 14):
        check(b.kernel(task=task), b.arrays(), 300)


def test_sums_of_sums():
    b = Building(i=4, j=9, k=70)
    x = b.read("ijk")
    inner = b.reduce("add", x, "k")
    best = b.reduce("max", inner, "j")
    b.write("ijk", b.apply(Subtract(), x, b.apply(Subtract(), inner, best)))
    check(b.kernel(), b.arrays(), 70)


def test_a_small_product():
    b = Building(i=13, j=9, k=70)
    x, y = b.read("ik"), b.read("kj")
    b.write("ij", b.contract(x, y, "k"))
    check(b.kernel(), b.arrays(), 70)


@pytest.mark.parametrize("kind", ["f32", "bf16", "i8", "ui16", "f64", "i64"])
@pytest.mark.parametrize("task", [20, 1 << 14])
def test_picks(kind: str, task: int):
    b = Building(i=6, j=100)
    x = b.read("ij", dtype(kind))
    for how in ("max", "min"):
        b.write("i", b.pick(how, x, b.position(b.affine(j=1)), "j"))
        b.write("j", b.pick(how, x, b.position(b.affine(i=1)), "i"))
    check(b.kernel(task=task), b.arrays())


def test_picks_take_nan_and_then_the_first():
    b = Building(i=3, j=70)
    x = b.read("ij")
    b.write("i", b.pick("max", x, b.position(b.affine(j=1)), "j"))
    given = np.zeros((3, 70), np.float32)
    given[0, [30, 65]] = np.nan
    given[1] = -np.inf
    given[2, [5, 69]] = 7
    check(b.kernel(), [given])


@pytest.mark.parametrize("how", ["max", "min", "add"])
def test_special_values_in_reductions(how: str):
    b = reduction(how, "j", "i", init=False, i=6, j=70)
    given = np.full((6, 70), -0.0, np.float32)
    given[0, 3] = np.nan
    given[1, 69] = np.inf
    given[2] = -np.inf
    given[3, 4] = 0.0
    given[4] = 3e38
    (made,) = launch(b.kernel(), [given])
    (expected,) = interpret(b.kernel(), [given])
    np.testing.assert_array_equal(made, expected)
    np.testing.assert_array_equal(np.signbit(made[5]), np.signbit(expected[5]))


@pytest.mark.parametrize("size", [8, 64, 70])
def test_quotients_by_a_number_that_all_lanes_share(size: int):
    b = Building(i=14, j=size)
    b.write("ij", b.apply(Divide(), b.read("ij"), b.read("i")))
    x = np.random.default_rng(0).standard_normal((14, size)).astype(np.float32)
    x[:, :6] = [0.0, -0.0, np.inf, np.nan, 1e-42, 3e38]
    by = [
        0.0,
        -0.0,
        1.0,
        3.0,
        -7.0,
        1e-40,
        2e-45,
        3e38,
        -3e38,
        np.inf,
        -np.inf,
        np.nan,
        1e30,
        1e-30,
    ]
    check(b.kernel(), [x, np.array(by, np.float32)])


@pytest.mark.parametrize("kind", ["i1", "i8", "i32", "ui64", "f16", "f8E4M3FN", "complex<f32>"])
def test_transposed_operands(kind: str):
    b = Building(i=70, j=100)
    b.write("ij", b.read("ji", dtype(kind)))
    b.write("ji", b.read("ij", dtype(kind)))
    check(b.kernel(), b.arrays())


@pytest.mark.parametrize("rows", [1, 5, 16, 130])
@pytest.mark.parametrize("row", [2, 3, 7, 16, 40])
def test_short_rows(rows: int, row: int):
    b = CHAINS["softmax"](rows, row, F32)
    check(b.kernel(), b.arrays(), row)


def test_heads_moved_before_positions():
    b = Building(h=4, s=9, d=70)
    x = b.input(9, 4, 70)
    b.write("hsd", b.apply(Tanh(), b.load(x, b.affine(h=70, s=280, d=1))))
    check(b.kernel(), b.arrays())


@pytest.mark.parametrize("stride", [1, -1, 2, -3])
def test_slices(stride: int):
    b = Building(i=4, j=40)
    x = b.input(4, 130)
    start = 5 if stride > 0 else 125
    b.write("ij", b.load(x, b.affine(start, i=130, j=stride)))
    check(b.kernel(), b.arrays())


@pytest.mark.parametrize("size", [65, 70])
def test_stores_that_run_backwards(size: int):
    b = Building(i=4, j=size)
    narrow = b.convert(b.position(b.affine(i=3, j=1)), dtype("i8"))
    b.store(b.output(4, size, dtype=dtype("i8")), b.affine(size - 1, i=size, j=-1), narrow)
    check(b.kernel(), [])


def test_concatenation_and_padding():
    b = Building(i=5, j=150)
    first, second = b.input(5, 60), b.input(5, 70)
    one, two = [b.guard(0, 60, -10, j=1)], [b.guard(0, 70, -70, j=1)]
    low = b.load(first, b.affine(-10, i=60, j=1), one)
    high = b.load(second, b.affine(-70, i=70, j=1), two)
    b.write("ij", b.choose(one, low, b.choose(two, high, b.fill(9.0))))
    check(b.kernel(), b.arrays())


def test_concatenation_along_rows():
    b = Building(i=50, j=70)
    first, second = b.input(20, 70), b.input(30, 70)
    one, two = [b.guard(0, 20, i=1)], [b.guard(0, 30, -20, i=1)]
    low = b.load(first, b.affine(i=70, j=1), one)
    high = b.load(second, b.affine(-1400, i=70, j=1), two)
    b.write("ij", b.choose(one, low, high))
    for task in (100, 1 << 14):
        check(b.kernel(task=task), b.arrays())


def test_a_triangle():
    """Guards of two factors: position j is seen from i on."""
    b = Building(i=70, j=70)
    seen = [b.guard(0, 70, i=1, j=-1)]
    value = b.choose(seen, b.read("ij"), b.fill(-np.inf))
    b.write("ij", value)
    b.write("i", b.reduce("max", value, "j"))
    check(b.kernel(), b.arrays())


@pytest.mark.parametrize("clamped", [True, False])
@pytest.mark.parametrize("kind", ["i32", "i64", "ui8"])
def test_rows_looked_up(clamped: bool, kind: str):
    b = Building(i=50, j=70)
    table, rows = b.input(30, 70), b.read("i", dtype(kind))
    b.write("ij", b.load(table, b.affine(j=1), shifts=[Shift(rows, 29, 70, clamped)]))
    table = np.random.default_rng(0).standard_normal((30, 70)).astype(np.float32)
    rows = np.arange(50).astype(dtype(kind).numpy) - (0 if kind == "ui8" else 5)
    check(b.kernel(), [table, rows])


def test_elements_looked_up():
    b = Building(i=130)
    table, index = b.input(30), b.read("i", I32)
    b.write("i", b.load(table, b.affine(), shifts=[Shift(index, 29, 1)]))
    check(b.kernel(), [np.arange(30, dtype=np.float32), np.arange(130, dtype=np.int32) - 40])


@pytest.mark.parametrize("kind", ["i8", "i32", "i64", "f32", "bf16", "f16", "f64"])
def test_positions(kind: str):
    b = Building(i=3, j=300)
    b.write("ij", b.position(b.affine(-7, i=300, j=2), dtype(kind)))
    check(b.kernel(), [])


def test_complex_sums():
    b = Building(i=9, j=130)
    x = b.read("ij", COMPLEX)
    b.write("i", b.reduce("add", b.apply(Multiply(), x, x), "j"))
    b.write("j", b.reduce("add", x, "i"))
    for task in (20, 1 << 14):
        check(b.kernel(task=task), b.arrays(), 130)


@pytest.mark.parametrize("how", ["and", "or", "xor", "add", "mul"])
def test_booleans_combined(how: str):
    b = Building(i=20, j=130)
    x = b.read("ij", BOOL)
    b.write("i", b.reduce(how, x, "j"))  # type: ignore[arg-type]
    b.write("j", b.reduce(how, x, "i"))  # type: ignore[arg-type]
    for task in (20, 1 << 14):
        check(b.kernel(task=task), b.arrays())


def test_no_factors_at_all():
    b = Building()
    b.write("", b.apply(Add(), b.read(""), b.fill(1.0)))
    check(b.kernel(tasks=0), b.arrays())


def test_factors_of_no_size():
    b = Building(i=3, j=0)
    x = b.read("ij")
    b.write("i", b.reduce("add", x, "j", b.fill(2.5)))
    b.write("i", b.reduce("max", x, "j"))
    b.write("ij", x)
    check(b.kernel(), b.arrays())
    b = Building(i=0)
    b.write("i", b.read("i"))
    assert emit(b.kernel()).phases == ()


def test_values_are_computed_where_they_vary():
    """A long chain of a row's own value is outside of the row's loop."""
    b = Building(i=20, j=1000)
    scale = b.apply(Tanh(), b.apply(Tanh(), b.read("i")))
    b.write("ij", b.apply(Maximum(), b.read("ij"), scale))
    text = emit(b.kernel()).text
    assert "x float> @llvm.fma" not in text, "tanh of scalars only"
    check(b.kernel(), b.arrays())


def placed(kernel: Kernel, arrays: list[Array], away: int) -> Array:
    """The output of a kernel whose buffers are so many bytes away from a multiple of 64."""
    (loaded,) = load([emit(kernel)])
    given = iter(arrays)
    buffers: list[Array] = []
    for operand in kernel.operands:
        room = np.zeros(operand.nbytes + 192, np.uint8)
        start = -room.ctypes.data % 64 + away
        held = room[start : start + operand.nbytes].view(operand.dtype.numpy)
        if not operand.output:
            held[:] = np.ravel(next(given))
        buffers.append(held)
    commands = CommandList()
    commands.kernel(loaded, [b.ctypes.data for b in buffers])
    commands.run()
    return buffers[-1].reshape(kernel.operands[-1].shape)


@pytest.mark.parametrize("away", [0, 4, 32])
@pytest.mark.parametrize("row", [64, 1000, 1024])
def test_writing_past_the_caches(away: int, row: int):
    b = CHAINS["bias+gelu+residual"](20, row, F32)
    kernel, arrays = b.kernel(stream=1), b.arrays()
    assert ("nontemporal" in emit(kernel).text) == (row % 16 == 0)
    plain = placed(b.kernel(), arrays, 0)
    np.testing.assert_array_equal(placed(kernel, arrays, away), plain)


@pytest.mark.parametrize("size", [70, 1000, 40000])
def test_an_output_may_take_the_place_of_an_input(size: int):
    b = Building(i=size)
    b.write("i", b.apply(Add(), b.apply(Negate(), b.read("i")), b.fill(1.0)))
    (loaded,) = load([emit(b.kernel(task=500))])
    x = np.arange(size, dtype=np.float32)
    expected = 1 - x
    commands = CommandList()
    commands.kernel(loaded, [x.ctypes.data] * 2)
    commands.run()
    np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize("kind", ["f64", "bf16", "i32", "i8", "ui16", "i1", "f8E5M2"])
def test_tails_of_every_length(kind: str):
    for size in (1, 2, 3, 15, 16, 17, 31, 33, 63, 65, 127, 129):
        b = Building(i=3, j=size)
        x = b.read("ij", dtype(kind))
        b.write("ij", b.apply(Add(), x, x))
        b.write("ij", b.convert(x, F32))
        b.write("ij", b.convert(b.position(b.affine(i=1, j=1)), dtype(kind)))
        b.write("i", b.reduce("or" if kind == "i1" else "max", x, "j"))
        check(b.kernel(), b.arrays(), size)
