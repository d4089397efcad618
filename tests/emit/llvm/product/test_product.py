"""Packed products against what they mean: shapes, layouts, dtypes, what comes before and after."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emit.llvm.product.products import (
    BF16,
    F16,
    I8,
    MIDDLE,
    NARROW,
    check,
    product,
    run_kernel,
)
from tests.kernels.building import Building
from tests.tolerance import assert_close
from weft.emit.llvm.product.product import supports
from weft.ir.types import DTYPES, F32, F64, I32, DType
from weft.kernels.interpret import interpret
from weft.kernels.kernel import Affine, Contract, Shift
from weft.ops.elementwise.pointwise import Add, Maximum, Multiply
from weft.ops.elementwise.transcendental import Tanh

PLAIN = ("mk", "kn", "mn")
SHAPES = [
    (1, 1, 1),
    (5, 7, 3),
    (13, 16, 5),
    (14, 32, 64),
    (29, 33, 17),
    (64, 48, 100),
    (100, 130, 70),
    (3, 200, 1),
    (200, 3, 40),
    (1, 100, 50),
    (70, 1, 50),
]


def sized(m: int, n: int, k: int) -> dict[str, int]:
    return {"m": m, "n": n, "k": k}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "dims", [PLAIN, ("km", "kn", "mn"), ("mk", "nk", "mn"), ("km", "nk", "nm")], ids=str
)
def test_layouts(shape: tuple[int, int, int], dims: tuple[str, str, str]):
    b, total = product(dims, sized(*shape))
    b.write(dims[2], total)
    check(b.kernel("packed"), b.arrays())


@pytest.mark.parametrize("lhs", [0, 1])
@pytest.mark.parametrize("rhs", [0, 1, 2])
@pytest.mark.parametrize("vectors", [1, 2, 3])
def test_options(lhs: int, rhs: int, vectors: int):
    b, total = product(PLAIN, sized(37, 75, 90))
    b.write("mn", total)
    options = {"lhs": lhs, "rhs": rhs, "vectors": vectors, "block_k": 32}
    check(b.kernel("packed", **options), b.arrays())


@pytest.mark.parametrize("chip", [NARROW, MIDDLE], ids=["narrow", "middle"])
@pytest.mark.parametrize("dtype", [F32, BF16, F64], ids=str)
def test_other_machines(chip, dtype: DType):
    held = F64 if dtype is F64 else F32
    b, total = product(PLAIN, sized(37, 41, 50), dtype, held)
    b.write("mn", total)
    check(b.kernel("packed"), b.arrays(), chip)


@pytest.mark.parametrize("zero", ["m", "n", "k"])
def test_nothing(zero: str):
    b, total = product(PLAIN, sized(5, 7, 3) | {zero: 0})
    b.write("mn", total)
    check(b.kernel("packed"), b.arrays())


@pytest.mark.parametrize(
    ("dtype", "held", "made"),
    [
        (F64, F64, F64),
        (BF16, F32, BF16),
        (BF16, F32, F32),
        (F16, F32, F16),
        (I8, I32, I32),
        (DTYPES["ui8"], DTYPES["ui32"], DTYPES["ui32"]),
        (DTYPES["i16"], I32, I32),
        (I32, I32, I32),
        (DTYPES["i64"], DTYPES["i64"], DTYPES["i64"]),
        (DTYPES["f8E4M3FN"], F32, F32),
        (I8, I32, I8),
        (F32, F64, F32),
    ],
    ids=str,
)
@pytest.mark.parametrize("dims", [PLAIN, ("km", "nk", "mn")], ids=str)
def test_dtypes(dtype: DType, held: DType, made: DType, dims: tuple[str, str, str]):
    b, total = product(dims, sized(21, 39, 67), dtype, held, made)
    b.write("mn", total)
    check(b.kernel("packed"), b.arrays())


def test_integers_are_exact_at_their_ends():
    for dtype, low, high in ((I8, -128, 127), (DTYPES["ui8"], 0, 255), (I32, -(2**31), 2**31 - 1)):
        held = I32 if dtype.kind == "int" else DTYPES["ui32"]
        b, total = product(PLAIN, sized(8, 20, 301), dtype, held, held)
        b.write("mn", total)
        rng = np.random.default_rng(1)
        arrays = [
            rng.choice([low, low + 1, -1 if low else 1, 0, high], a.shape) for a in b.arrays()
        ]
        check(b.kernel("packed"), [a.astype(dtype.numpy) for a in arrays])


def test_sums_in_parts():
    b, total = product(PLAIN, sized(30, 40, 9000))
    bias = b.read("n")
    b.write("mn", b.apply(Add(), total, bias))
    check(b.kernel("packed"), b.arrays())
    check(b.kernel("packed", block_k=64), b.arrays())


@pytest.mark.parametrize(
    "shape", [(1, 1, 5000), (3, 40, 4100), (40, 2, 3001), (70, 90, 4099)], ids=str
)
def test_long_sums(shape: tuple[int, int, int]):
    for dims in (PLAIN, ("mk", "nk", "mn"), ("km", "kn", "nm")):
        b, total = product(dims, sized(*shape))
        b.write(dims[2], b.apply(Add(), total, b.read("m")))
        check(b.kernel("packed"), b.arrays())


@pytest.mark.parametrize("kind", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("shape", [(1, 100, 70), (2, 33, 64), (4, 50, 130), (60, 1, 90)], ids=str)
def test_few_rows_or_columns(shape: tuple[int, int, int], kind: str):
    for dims in (PLAIN, ("mk", "nk", "mn")):
        b, total = product(dims, sized(*shape), DTYPES[kind])
        b.write("mn", total)
        check(b.kernel("packed"), b.arrays())


@pytest.mark.parametrize("left", ["i8", "ui8", "i16", "ui16", "i4"])
@pytest.mark.parametrize("right", ["i8", "ui8", "i16"])
@pytest.mark.parametrize("depth", [1, 3, 64, 131])
def test_small_integers(left: str, right: str, depth: int):
    b = Building(m=9, n=37, k=depth)
    x, y = b.read("mk", DTYPES[left]), b.read("nk", DTYPES[right])
    b.write("mn", b.add(Contract(x, y, b.numbers("k"), I32, I32)))
    check(b.kernel("packed"), b.arrays())


def test_batches_and_devices():
    sizes = {"d": 3, "b": 2, "m": 20, "n": 24, "k": 30}
    for dims in (("dbmk", "dbkn", "dbmn"), ("bmdk", "dbkn", "bdmn"), ("bmk", "dbkn", "dbmn")):
        b, total = product(dims, sizes)
        b.write(dims[2], total)
        check(b.kernel("packed"), b.arrays())


@pytest.mark.parametrize("columns", [3, 4, 8, 10, 16, 32, 40])
def test_columns_on_many_devices(columns: int):
    sizes = {"t": 5, "m": 20, "n": columns, "k": 30}
    b, total = product(("mk", "tkn", "tmn"), sizes)
    bias = b.read("tn")
    b.write("tmn", b.apply(Add(), total, bias))
    check(b.kernel("packed"), b.arrays())


def test_sums_over_devices():
    sizes = {"t": 4, "m": 20, "n": 50, "k": 9}
    b, total = product(("tmk", "tkn", "mn"), sizes)
    b.write("mn", total)
    check(b.kernel("packed"), b.arrays())


def test_before_and_after():
    b = Building(m=30, n=50, k=40)
    x, scale, w, bias, residual = (
        b.read("mk", BF16),
        b.read("k"),
        b.read("kn", BF16),
        b.read("n"),
        b.read("mn", BF16),
    )
    left = b.apply(Multiply(), b.apply(Maximum(), b.convert(x, F32), b.fill(0.0)), scale)
    total = b.contract(left, b.convert(w, F32), "k")
    active = b.apply(Tanh(), b.apply(Add(), total, bias))
    b.write("mn", b.apply(Add(), active, b.convert(residual, F32)), BF16)
    b.write("nm", active)
    check(b.kernel("packed"), b.arrays())


def test_large_results():
    b, total = product(PLAIN, sized(601, 519, 6))
    shifted = b.apply(Add(), b.apply(Add(), total, b.read("n")), b.read("mn", BF16))
    b.write("mn", shifted, BF16)
    check(b.kernel("packed"), b.arrays())


@pytest.mark.long
def test_right_sides_too_large_to_be_there_twice():
    for dims in (PLAIN, ("mk", "nk", "mn")):
        b, total = product(dims, sized(40, 9000, 1024))
        b.write("mn", total)
        x, y = b.arrays()
        (found,) = run_kernel(b.kernel("packed"), [x, y])
        assert_close(found, x @ (y if dims == PLAIN else y.T), 1024)


def convolution(n: int, side: int, channels: int, out: int, window: int) -> Building:
    b = Building(n=n, h=side, w=side, o=out, y=window, x=window, c=channels)
    image, weights = b.input(n, side, side, channels), b.input(window, window, channels, out)
    near = window // 2
    strides = b.rows("nhwc").strides
    places = dict(zip(b.names, strides, strict=True))
    both = places | {"y": places["h"], "x": places["w"]}
    at = Affine(tuple(both[name] for name in b.names), -near * (places["h"] + places["w"]))
    guards = [b.guard(0, side, -near, h=1, y=1), b.guard(0, side, -near, w=1, x=1)]
    left = b.load(image, at, guards)
    right = b.load(weights, b.rows("yxco"))
    b.write("nhwo", b.contract(left, right, "yxc"))
    return b


@pytest.mark.parametrize("channels", [1, 3, 16, 20, 128])
def test_convolution(channels: int):
    b = convolution(2, 7, channels, 12, 3)
    check(b.kernel("packed"), b.arrays())


@pytest.mark.parametrize("side", [4, 16, 17, 29])
@pytest.mark.parametrize("out", [1, 3, 40])
def test_convolution_of_images_with_channels_first(side: int, out: int):
    b = Building(n=2, h=side, w=side, o=out, c=3, y=3, x=3)
    image, weights = b.input(2, 3, side, side), b.input(out, 3, 3, 3)
    at = b.affine(-side - 1, n=3 * side * side, c=side * side, h=side, y=side, w=1, x=1)
    guards = [b.guard(0, side, -1, h=1, y=1), b.guard(0, side, -1, w=1, x=1)]
    doubled = b.load(image, at, guards)
    doubled = b.apply(Add(), doubled, doubled)
    b.write("nohw", b.contract(doubled, b.load(weights, b.rows("ocyx")), "cyx"))
    check(b.kernel("packed"), b.arrays())


def test_guards_and_places_after():
    b, total = product(PLAIN, sized(20, 40, 10))
    inside = [b.guard(0, 20, m=-1, n=1)]
    kept = b.choose(inside, total, b.fill(-1.0))
    out = b.output(20, 40)
    b.store(out, b.rows("mn"), kept, [b.guard(0, 35, n=1)])
    kernel, arrays = b.kernel("packed"), b.arrays()
    (found,), (expected,) = run_kernel(kernel, arrays), interpret(kernel, arrays)
    np.testing.assert_allclose(found[:, :35], expected[:, :35], 1e-5, 1e-5)


@pytest.mark.parametrize("shape", [(5, 1, 5), (1, 5, 5), (20, 40, 10), (33, 1, 40)], ids=str)
@pytest.mark.parametrize("start", [-1, 0, 2, 9])
def test_rows_chosen_at_run_time_after(shape: tuple[int, int, int], start: int):
    b, total = product(PLAIN, sized(*shape))
    index = b.load(b.input(1, dtype=I32), b.affine())
    table = b.input(4, shape[0])
    chosen = b.load(table, b.affine(m=1), shifts=[Shift(index, 3, shape[0])])
    b.write("mn", b.apply(Add(), total, chosen))
    arrays = b.arrays()
    arrays[2][...] = start
    check(b.kernel("packed"), arrays)


def test_special_values_stay_in_their_row_and_column():
    b, total = product(PLAIN, sized(17, 35, 21))
    b.write("mn", total)
    x, y = b.arrays()
    x[3, 5], x[7, 2], y[4, 34], y[20, 0] = math.inf, math.nan, -math.inf, math.nan
    check(b.kernel("packed"), [x, y])


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_any_product(data: st.DataObject):
    """Any dims on either side in any order, any sizes, any way to pack."""
    roles = {n: data.draw(st.integers(1, 6)) for n in "ab"}  # batch
    roles |= {n: data.draw(st.integers(1, 20)) for n in "mpnqkj"}
    names = [n for n in roles if n in "mnk" or data.draw(st.booleans())]
    sizes = {n: roles[n] for n in names}
    dims = []
    for wanted in ("abmpkj", "abnqkj", "abmpnq"):
        dims.append("".join(data.draw(st.permutations([n for n in names if n in wanted]))))
    lhs, rhs, out = dims
    dtype = data.draw(st.sampled_from([F32, BF16, I8]))
    held = I32 if dtype is I8 else F32
    b, total = product((lhs, rhs, out), sizes, dtype, held, held)
    if data.draw(st.booleans()):
        total = b.apply(Add(), total, b.read("".join(n for n in out if n in "amq"), held))
    b.write(out, total)
    options = {
        name: data.draw(choice)
        for name, choice in (
            ("lhs", st.integers(0, 1)),
            ("rhs", st.integers(0, 2)),
            ("vectors", st.integers(1, 3)),
            ("block_k", st.sampled_from([16, 32, 512])),
            ("parts", st.integers(1, 3)),
            ("inner", st.integers(0, 1)),
            ("unroll", st.sampled_from([1, 2, 4])),
            ("task_rows", st.integers(1, 3)),
            ("task_vectors", st.integers(1, 3)),
        )
        if data.draw(st.booleans())
    }
    check(b.kernel("packed", **options), b.arrays())


def test_what_is_refused():
    b = Building(m=4, n=4, k=4)
    total = b.contract(b.read("mk"), b.read("kn"), "k")
    b.write("mn", total)
    assert supports(b.kernel("packed")) is None
    complex64 = DTYPES["complex<f32>"]
    b = Building(m=4, n=4, k=4)
    b.write("mn", b.contract(b.read("mk", complex64), b.read("kn", complex64), "k", complex64))
    assert "complex<f32>" in str(supports(b.kernel("packed")))
    b = Building(m=4, n=4)
    b.write("mn", b.read("mn"))
    assert "one Contract" in str(supports(b.kernel("packed")))
