"""How element types lie in memory: every pattern of bits, every way to load and store."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests.emit.llvm.jit import Compiled
from tests.emit.llvm.values import random, special
from weft.emit.llvm.emitted import symbol
from weft.emit.llvm.jit.linking import Linked
from weft.emit.llvm.jit.machine_code import compile_text
from weft.emit.llvm.writer.code import Writer, module_text
from weft.emit.llvm.writer.storage import (
    Held,
    fill,
    gather,
    load,
    load_splat,
    memory_kind,
    parts,
    register_kind,
    registers,
    scatter,
    store,
)
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.ir.types import DTYPES, F32, Array, DType

NARROW = [d for d in DTYPES.values() if d.is_float and d.bits < 32]
EVERY = list(DTYPES.values())


def same(v: Vectors, args: list[Held]) -> Held:
    return args[0]


def bits(array: Array) -> Array:
    return array.view(f"u{array.dtype.itemsize}")


def run(code: Writer, *arrays: Array) -> None:
    """Call a function of pointers to arrays."""
    text = module_text(code)
    linked = Linked([compile_text(text)])
    (address,) = linked.addresses([symbol(code.name, text)])
    kinds = [ctypes.c_void_p] * len(arrays)
    ctypes.CFUNCTYPE(None, *kinds)(address)(*(a.ctypes.data for a in arrays))


# Narrow floats


@pytest.mark.parametrize("width", [1, 16])
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_every_pattern_is_decoded(dtype: DType, width: int) -> None:
    stored = np.arange(1 << dtype.bits, dtype=f"u{dtype.numpy.itemsize}").view(dtype.numpy)
    actual, expected = Compiled(same, [dtype], F32, width)(stored), stored.astype(np.float32)
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(actual), nan)
    np.testing.assert_array_equal(np.signbit(actual), np.signbit(expected))
    np.testing.assert_array_equal(bits(actual[~nan]), bits(expected[~nan]))


def near_the_numbers_of(dtype: DType) -> Array:
    """f32 on, between and around the numbers of a type, and anywhere."""
    stored = np.arange(1 << dtype.bits, dtype=f"u{dtype.numpy.itemsize}").view(dtype.numpy)
    with np.errstate(all="ignore"):
        exact = stored.astype(np.float32)
        between = exact[1:] / 2 + exact[:-1] / 2
        places = np.concatenate([exact, between])
        around = [np.nextafter(places, np.float32(end)) for end in (np.inf, -np.inf)]
        beyond = exact * np.float32(1.5)
    rng = np.random.default_rng(0)
    anywhere = rng.integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
    tiny = rng.integers(0, 1 << 23, 10_000, dtype=np.uint32).view(np.float32)
    moderate = (rng.standard_normal(50_000) * 8).astype(np.float32)
    return np.concatenate([places, *around, beyond, anywhere, tiny, -tiny, moderate, special(F32)])


@pytest.mark.parametrize("width", [1, 16])
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_rounding_is_that_of_ml_dtypes(dtype: DType, width: int) -> None:
    x = near_the_numbers_of(dtype)
    with np.errstate(all="ignore"):
        expected = x.astype(dtype.numpy)
    actual = Compiled(same, [F32], dtype, width)(x)
    wrong = bits(actual) != bits(expected)
    if dtype.bits == 16:  # of NaN only the sign is kept
        wrong &= ~(np.isnan(x) & np.isnan(actual.astype(np.float32)))
    assert not wrong.any(), (x[wrong][:5], actual[wrong][:5], expected[wrong][:5])


def test_rounding_twice_is_rounding_once() -> None:
    """What was just rounded or loaded is stored as it is."""
    bf16 = DTYPES["bf16"]
    copied = Compiled(same, [bf16], bf16)
    assert "lshr" not in copied.text
    x = np.arange(1 << 16, dtype=np.uint16).view(bf16.numpy)
    np.testing.assert_array_equal(bits(copied(x)), bits(x))


# Loads and stores


@pytest.mark.parametrize("width", [1, 8, 32])
@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_copy(dtype: DType, width: int) -> None:
    x = np.concatenate([special(dtype), random(dtype, 100)])
    np.testing.assert_array_equal(
        Compiled(same, [dtype], dtype, width)(x).view(np.uint8), x.view(np.uint8)
    )


@pytest.mark.parametrize("width", [1, 4, 16])
@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_masked(dtype: DType, width: int) -> None:
    """Lanes outside of the mask are neither read nor written; loads give 0 there."""
    code = Writer("masked", ["ptr %x", "ptr %y", "ptr %z", "ptr %m"])
    v = Vectors(code, width)
    (mask,) = load(v, "%m", 0, DTYPES["i1"])
    found = load(v, "%x", 1, dtype, mask)
    store(v, found, "%y", 1, dtype, mask)
    store(v, found, "%z", 0, dtype)
    x = random(dtype, width + 1)
    given = x.copy()
    keep = np.random.default_rng(1).integers(0, 2, width).astype(bool)
    y, z = random(dtype, width + 1, 7), random(dtype, width, 8)
    expected_y, expected_z = y.copy(), np.where(keep, x[1:], np.zeros_like(x[1:]))
    expected_y[1:] = np.where(keep, x[1:], y[1:])
    run(code, x, y, z, keep)
    np.testing.assert_array_equal(x.view(np.uint8), given.view(np.uint8))
    np.testing.assert_array_equal(y.view(np.uint8), expected_y.view(np.uint8))
    same_zero = dtype.name != "f8E8M0FNU"  # its bits 0 are a power of two
    if same_zero:
        np.testing.assert_array_equal(z.view(np.uint8), expected_z.view(np.uint8))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("width", [1, 4, 16])
@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_gather_and_scatter(dtype: DType, width: int, masked: bool) -> None:
    code = Writer("moved", ["ptr %x", "ptr %y", "ptr %from", "ptr %to", "ptr %m"])
    v = Vectors(code, width)
    mask = load(v, "%m", 0, DTYPES["i1"])[0] if masked else None
    places = [load(v, name, 0, DTYPES["i64"])[0] for name in ("%from", "%to")]
    scatter(v, gather(v, "%x", places[0], dtype, mask), "%y", places[1], dtype, mask)
    rng = np.random.default_rng(2)
    x, y = random(dtype, 40), random(dtype, 40, 3)
    source, target = (rng.permutation(40)[:width].astype(np.int64) for _ in range(2))
    keep = rng.integers(0, 2, width).astype(bool)
    expected = y.copy()
    chosen = keep if masked else np.ones(width, bool)
    expected[target[chosen]] = x[source[chosen]]
    run(code, x, y, source, target, keep)
    np.testing.assert_array_equal(y.view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_splat(dtype: DType) -> None:
    code = Writer("splat", ["ptr %x", "ptr %y"])
    v = Vectors(code, 8)
    store(v, load_splat(v, "%x", 3, dtype), "%y", 0, dtype)
    x, y = random(dtype, 8), random(dtype, 8, 5)
    run(code, x, y)
    np.testing.assert_array_equal(y.view(np.uint8), np.repeat(x[3:4], 8).view(np.uint8))


def test_streaming() -> None:
    code = Writer("streaming", ["ptr %x", "ptr %y"])
    v = Vectors(code, 64)
    store(v, load(v, "%x", 0, F32), "%y", 0, F32, streaming=True)
    assert "!nontemporal" in module_text(code)
    room = np.empty(64 + 16, np.float32)
    first = -room.ctypes.data % 64 // 4
    x, y = np.arange(64, dtype=np.float32), room[first : first + 64]
    run(code, x, y)
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_fill(dtype: DType) -> None:
    for value in special(dtype)[:12]:
        filled = Compiled(lambda v, args, x=value: fill(v, x, dtype), [F32], dtype, 4)
        expected = np.full(5, value)
        np.testing.assert_array_equal(
            filled(np.zeros(5, np.float32)).view(np.uint8), expected.view(np.uint8)
        )


def test_kinds() -> None:
    table = {d.name: (register_kind(d), memory_kind(d), parts(d)) for d in EVERY}
    assert table["bf16"] == ("float", "i16", 1)
    assert table["i1"] == ("i1", "i8", 1)
    assert table["ui4"] == ("i8", "i8", 1)
    assert table["complex<f64>"] == ("double", "double", 2)
    assert registers(DTYPES["complex<f32>"], 4) == ("<4 x float>", "<4 x float>")
    assert Vector("%x", "i1", 2).type == "<2 x i1>"
