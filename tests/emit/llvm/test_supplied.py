"""Functions whose bodies come with the compiler: the same on every processor."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from tests.emit.llvm.functions import patterns
from tests.emit.llvm.jit import Compiled
from weft.emit.llvm.jit import supplied
from weft.emit.llvm.jit.machine_code import assembly
from weft.emit.llvm.jit.processor import Processor, host
from weft.emit.llvm.writer.code import Writer, module_text
from weft.emit.llvm.writer.storage import Held, load, store
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.ir.types import F32, F64, Array, DType, dtype

BF16, UI16 = dtype("bf16"), dtype("ui16")
WIDTHS = [1, 4, 16, 64]
ours = pytest.mark.skipif(not host().triple.startswith("x86_64"), reason="runs x86 instructions")
PROCESSORS = [
    pytest.param(host(), id="host"),
    pytest.param(Processor(host().triple, "haswell"), id="haswell", marks=ours),
]


def compiled(
    function: Callable[..., Vector],
    given: DType,
    made: DType,
    arity: int,
    width: int,
    processor: Processor,
) -> Compiled:
    def body(v: Vectors, args: list[Held]) -> Held:
        return (function(v, *(arg[0] for arg in args)),)

    return Compiled(body, [given] * arity, made, width, processor)


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", [F32, F64], ids=str)
def test_scale_rounds_once(kind: DType, width: int, processor: Processor) -> None:
    info = np.finfo(kind.numpy)
    n = np.arange(info.minexp - info.nmant - 2, info.maxexp + 2)
    rng = np.random.default_rng(0)
    x = rng.uniform(0.7, 1.5, (16, n.size)).astype(kind.numpy)
    x[0], x[1], x[2] = 1.0, 0.5, -0.75
    run = compiled(supplied.scale, kind, kind, 2, width, processor)
    whole = np.broadcast_to(n, x.shape)
    with np.errstate(all="ignore"):
        expected = np.ldexp(x, whole)
    np.testing.assert_array_equal(
        run(x.ravel(), whole.astype(kind.numpy).ravel()), expected.ravel()
    )
    nan = np.full(3, np.nan, kind.numpy)
    assert np.isnan(run(nan, nan)).all()


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", [F32, F64], ids=str)
def test_larger_and_smaller(kind: DType, width: int, processor: Processor) -> None:
    a, b = (patterns(kind, 4096, seed) for seed in (1, 2))
    numbers = ~(np.isnan(a) | np.isnan(b))
    a, b = a[numbers], b[numbers]
    a[:4], b[:4] = [0.0, -0.0, 0.0, -0.0], [0.0, 0.0, -0.0, -0.0]
    for function, exact in ((supplied.larger, np.maximum), (supplied.smaller, np.minimum)):
        found = compiled(function, kind, kind, 2, width, processor)(a, b)
        np.testing.assert_array_equal(found, exact(a, b))
    above = compiled(supplied.larger, kind, kind, 2, width, processor)(a[:4], b[:4])
    below = compiled(supplied.smaller, kind, kind, 2, width, processor)(a[:4], b[:4])
    assert np.signbit(above).tolist() == [False, False, False, True]
    assert np.signbit(below).tolist() == [False, True, True, True]


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", [F32, F64], ids=str)
def test_estimates(kind: DType, width: int, processor: Processor) -> None:
    x = np.geomspace(1e-30, 1e30, 5000).astype(kind.numpy)
    found = compiled(supplied.estimate, kind, kind, 1, width, processor)(x)
    bits = 13.9 if kind is F32 else 50
    assert np.abs(found * x.astype(np.longdouble) - 1).max() <= 2**-bits


def rounded(x: Array) -> Array:
    with np.errstate(all="ignore"):
        return x.astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("width", [*WIDTHS, 32])
def test_bf16_of_any_number(width: int, processor: Processor) -> None:
    run = compiled(supplied.bf16_bits, F32, UI16, 1, width, processor)
    every = np.arange(1 << 16, dtype=np.uint32) << 16
    below = [every + n for n in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]
    x = np.concatenate(below).view(np.float32)
    lonely = np.ones(4096, np.float32)  # subnormal numbers that are alone in their vector
    lonely[::97] = np.arange(43, dtype=np.uint32).view(np.float32) * 1000
    for given in (x, lonely, patterns(F32, 1 << 16, 3)):
        found, expected = run(given).view(ml_dtypes.bfloat16), rounded(given)
        nan = np.isnan(given)
        np.testing.assert_array_equal(found[~nan].view(np.uint16), expected[~nan].view(np.uint16))
        assert np.isnan(found[nan].astype(np.float32)).all()
        assert (np.signbit(found[nan]) == np.signbit(given[nan])).all()


def test_one_instruction() -> None:
    """What the processor can do by itself it does, on whole registers."""
    if not host().has("avx512bf16"):
        pytest.skip("needs AVX-512 with bf16")
    code = Writer("f", ["ptr %x", "ptr %y"])
    v = Vectors(code, 32)
    (x,) = load(v, "%x", 0, F32)
    top = supplied.larger(v, x, supplied.scale(v, x, x))
    store(v, (supplied.estimate(v, top),), "%y", 0, BF16)
    made = assembly(module_text(code))
    counts = {"vrangeps": 2, "vscalefps": 2, "vrcp14ps": 2, "vcvtne2ps2bf16": 1}
    assert {name: made.count(name) for name in counts} == counts
    assert "weft" not in made, "bodies are put in the place of calls"


def test_an_intrinsic_of_both() -> None:
    """A kernel that declares what a supplied body uses, too, declares it once."""
    code = Writer("f", ["ptr %x", "ptr %y"])
    v = Vectors(code, 16)
    (x,) = load(v, "%x", 0, F32)
    store(v, (supplied.scale(v, x, x),), "%y", 0, F32)
    text = module_text(code)
    whole = supplied.supplied(text, host())
    line = next((n for n in whole.splitlines() if n.startswith("declare")), "")
    both = supplied.supplied(f"{line}\n{text}", host())
    assert both.splitlines().count(line) == 1 or not line
