"""Products whose result is reduced: along rows, columns and batch, beside it and instead of it."""

from __future__ import annotations

from dataclasses import replace

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
from weft.emit.llvm.jit.processor import host
from weft.emit.llvm.product.blocking.blocking import Chip, chip_of
from weft.emit.llvm.product.product import supports
from weft.ir.types import DTYPES, F32, F64, I32, DType
from weft.kernels.kernel import Kernel
from weft.ops.elementwise.pointwise import Add, Multiply, Subtract

PLAIN = ("mk", "kn", "mn")
U8, U32, I64 = DTYPES["ui8"], DTYPES["ui32"], DTYPES["i64"]


def reduced(
    dims: tuple[str, str, str],
    sizes: dict[str, int],
    over: str,
    how: str = "add",
    types: tuple[DType, DType, DType] = (F32, F32, F32),
    beside: bool = True,
) -> Building:
    """bias added to a product, that reduced, and twice of it stored; with it the product or not."""
    b, total = product(dims, sizes, *types)
    biased = b.apply(Add(), total, b.read("n", types[2]))
    if beside:
        b.write(dims[2], biased)
    made = b.reduce(how, biased, over)
    b.write("".join(n for n in dims[2] if n not in over), b.apply(Add(), made, made))
    return b


def sized(m: int, n: int, k: int, **more: int) -> dict[str, int]:
    return {"m": m, "n": n, "k": k, **more}


@pytest.mark.parametrize("over", ["m", "n", "mn"])
@pytest.mark.parametrize("shape", [(29, 33, 17), (100, 130, 70), (200, 3, 40), (30, 40, 9000)])
def test_shapes(shape: tuple[int, int, int], over: str):
    for how, beside in (("add", True), ("max", False)):
        b = reduced(PLAIN, sized(*shape), over, how, beside=beside)
        check(b.kernel("packed"), b.arrays())


@settings(max_examples=10, deadline=None)
@given(
    st.tuples(st.integers(2, 70), st.integers(2, 70), st.integers(1, 40)),
    st.sampled_from(["m", "n", "mn"]),
    st.sampled_from(["add", "max", "min"]),
    st.sampled_from([(F32, F32, F32), (BF16, F32, BF16), (I8, I32, I32)]),
    st.booleans(),
    st.sampled_from([{}, {"rhs": 2}, {"lhs": 1, "rhs": 1, "block_k": 16}]),
)
def test_any_shape(shape, over: str, how: str, types, beside: bool, options: dict[str, int]):
    b = reduced(PLAIN, sized(*shape), over, how, types, beside)
    check(b.kernel("packed", **options), b.arrays())


@pytest.mark.parametrize(
    "types",
    [
        (F64, F64, F64),
        (BF16, F32, BF16),
        (F16, F32, F16),
        (I8, I32, I32),
        (I8, I32, I8),
        (U8, U32, U8),
        (I64, I64, I64),
    ],
    ids=str,
)
def test_dtypes(types: tuple[DType, DType, DType]):
    ways = ["and", "or", "mul"] if types[1].is_integer else ["max"]
    for over, how in zip(["m", "n", "mn"], ["add", "min", *ways], strict=False):
        b = reduced(PLAIN, sized(53, 75, 67), over, how, types)
        check(b.kernel("packed"), b.arrays())
    for how in ways:
        b = reduced(PLAIN, sized(20, 36, 19), "m", how, types, beside=False)
        check(b.kernel("packed"), b.arrays())


@pytest.mark.parametrize("over", ["m", "n", "mn", "bm", "bn", "bmn"])
@pytest.mark.parametrize(
    "dims",
    [("bmk", "bkn", "bmn"), ("bmk", "kn", "bmn"), ("mk", "bkn", "mbn"), ("bkm", "nk", "bnm")],
    ids=str,
)
def test_batches(dims: tuple[str, str, str], over: str):
    for options in ({}, {"rhs": 2}):
        b = reduced(dims, sized(40, 50, 30, b=3), over, beside=not options)
        check(b.kernel("packed", **options), b.arrays())


@pytest.mark.parametrize("chip", [NARROW, MIDDLE], ids=["narrow", "middle"])
def test_other_machines(chip: Chip):
    for over, how, types in (
        ("m", "add", (F32, F32, F32)),
        ("n", "max", (BF16, F32, BF16)),
        ("mn", "min", (F64, F64, F64)),
    ):
        b = reduced(PLAIN, sized(37, 41, 50), over, how, types)
        check(b.kernel("packed"), b.arrays(), chip)


@pytest.mark.parametrize("zero", ["m", "n"])
def test_nothing_to_reduce(zero: str):
    for how in ("add", "max"):
        b = reduced(PLAIN, sized(5, 7, 3) | {zero: 0}, zero, how)
        check(b.kernel("packed"), b.arrays())


def test_several_reductions_of_one_product():
    b, total = product(PLAIN, sized(60, 90, 40))
    square = b.apply(Multiply(), total, total)
    b.write("m", b.reduce("max", total, "n"))
    b.write("n", b.reduce("add", square, "m"))
    b.write("", b.reduce("add", total, "mn"))
    mean, squares = b.reduce("add", total, "n"), b.reduce("add", square, "n")
    b.write("m", b.apply(Subtract(), squares, b.apply(Multiply(), mean, mean)))
    check(b.kernel("packed"), b.arrays())


@pytest.mark.parametrize("how", ["add", "max", "min"])
def test_special_values(how: str):
    b = reduced(PLAIN, sized(50, 70, 20), "n", how, beside=False)
    lhs, rhs, bias = b.arrays()
    lhs[3, 2], lhs[7, 1], lhs[11, 0] = np.nan, np.inf, -np.inf
    with np.errstate(all="ignore"):
        (got,) = run_kernel(b.kernel("packed"), [lhs, rhs, bias])
        ufunc = {"add": np.add, "max": np.maximum, "min": np.minimum}[how]
        want = 2 * ufunc.reduce(lhs @ rhs + bias, -1)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    sure = ~np.isnan(want)
    np.testing.assert_allclose(got[sure], want[sure], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("over", ["m", "n", "mn"])
def test_the_order_does_not_depend_on_threads(over: str):
    b = reduced(PLAIN, sized(300, 200, 64), over)
    kernel, chip = b.kernel("packed"), chip_of(host())
    found = [
        run_kernel(kernel, b.arrays(), replace(chip, threads=threads))[1]
        for threads in (1, 2, 2, 16)
    ]
    assert all(np.array_equal(found[0], other) for other in found[1:])


def refused(write: str, *, again: bool = False, twice: bool = False) -> Kernel:
    """A product with something after it that blocks cannot do."""
    b, total = product(PLAIN, sized(20, 30, 10))
    made = b.reduce("add", total, "n")
    if again:
        made = b.apply(Subtract(), total, made)
    if twice:
        made = b.reduce("max", made, "m")
    b.write(write, made)
    return b.kernel("packed")


def test_what_is_refused():
    assert "needed again" in (supports(refused("mn", again=True)) or "")
    assert "reduced already" in (supports(refused("", twice=True)) or "")
