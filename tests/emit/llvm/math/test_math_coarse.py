"""Functions of floats that have few bits, and sums that are shorter than their parts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import special

from tests.emit.llvm.functions import patterns, ulps
from tests.emit.llvm.jit import Compiled
from weft.emit.llvm.jit.processor import Processor, host
from weft.emit.llvm.math.exponential import coarse_exp
from weft.emit.llvm.math.logistic import coarse_logistic, coarse_one_plus_tanh, one_plus_tanh
from weft.emit.llvm.math.pointwise import apply
from weft.emit.llvm.writer.storage import Held
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.ir.types import F32, F64, Array, DType, dtype
from weft.ops.elementwise.pointwise import Add, Divide, Negate
from weft.ops.elementwise.transcendental import Exponential, Tanh

ours = pytest.mark.skipif(not host().triple.startswith("x86_64"), reason="runs x86 instructions")
PROCESSORS = [
    pytest.param(host(), id="host"),
    pytest.param(Processor(host().triple, "haswell"), id="haswell", marks=ours),
]
BF16 = dtype("bf16")
EVERY = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)  # bf16, as registers have them
COARSE = {
    "exp": (coarse_exp, np.exp),
    "logistic": (coarse_logistic, special.expit),
    "one_plus_tanh": (coarse_one_plus_tanh, lambda x: 2 * special.expit(2 * x)),
}


def run_of(
    function: Callable[[Vectors, Vector], Vector], kind: DType, processor: Processor | None = None
) -> Compiled:
    def body(v: Vectors, args: list[Held]) -> Held:
        return (function(v, args[0][0]),)

    return Compiled(body, [kind], kind, 32, processor)


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("name", COARSE)
def test_coarse_functions_of_every_number(name: str, processor: Processor) -> None:
    """They are wrong by little of what bf16 can tell; what is special is right."""
    function, exact = COARSE[name]
    with np.errstate(all="ignore"):
        found, expected = run_of(function, F32, processor)(EVERY), exact(EVERY.astype(np.float64))
        apart = np.abs(found - expected) / np.maximum(np.abs(expected), 2.0**-126)
        near = (expected < 2.0**-124) & (found < 2.0**-124) & (name == "one_plus_tanh")
        same = (
            near | (found == expected.astype(np.float32)) | (np.isnan(found) & np.isnan(expected))
        )
    assert (same | (apart <= 2.0**-13)).all(), EVERY[~(same | (apart <= 2.0**-13))]


@pytest.mark.parametrize(("kind", "limit"), [(F32, 2.5), (F64, 2.5)], ids=str)
def test_one_plus_tanh_is_exact_below_0(kind: DType, limit: float) -> None:
    run = run_of(one_plus_tanh, kind)
    wide = np.float64 if kind is F32 else np.longdouble
    rng = np.random.default_rng(0)
    for x in (patterns(kind, 50_000, 0), rng.uniform(-30, 12, 50_000).astype(kind.numpy)):
        with np.errstate(all="ignore"):
            small = np.exp(-2 * np.abs(x.astype(wide)))
            exact = 2 * np.where(x < 0, small, 1) / (1 + small)
        found, border = run(x), 4 * np.finfo(kind.numpy).tiny
        near = (exact < border) & (found < border)  # 0, or a normal number
        assert ulps(found[~near], exact[~near]).max() <= limit


@pytest.mark.parametrize("kind", [F32, F64, BF16], ids=str)
@pytest.mark.parametrize("first", [True, False])
def test_one_plus_tanh_is_found(kind: DType, first: bool) -> None:
    """1 + tanh(x) of a program; tanh(x) itself stays what it is."""

    def body(v: Vectors, args: list[Held]) -> Held:
        tanh = apply(v, Tanh(), args, [kind], kind)
        one: Held = (v.constant(1.0, tanh[0].kind),)
        pair = [one, tanh] if first else [tanh, one]
        return apply(v, Add(), pair, [kind, kind], kind)

    run = Compiled(body, [kind], kind, 16)
    x = np.linspace(-20, 20, 1001).astype(kind.numpy)
    assert "scale" in run.text
    tolerance = {"f32": 1e-6, "f64": 1e-14, "bf16": 2**-7}[kind.name]
    expected = 2 * special.expit(2 * x.astype(np.float64))
    np.testing.assert_allclose(run(x).astype(np.float64), expected, rtol=tolerance)


@pytest.mark.parametrize("kind", [F32, F64, BF16], ids=str)
@pytest.mark.parametrize("negated", [True, False])
@pytest.mark.parametrize("times", [True, False])
def test_logistic_functions_are_found(kind: DType, negated: bool, times: bool) -> None:
    """1 / (1 + e^-x), 1 / (1 + e^x), x / (1 + e^-x) of a program."""

    def body(v: Vectors, args: list[Held]) -> Held:
        one: Held = (v.constant(1.0, args[0][0].kind),)
        x = apply(v, Negate(), args, [kind], kind) if negated else args[0]
        power = apply(v, Exponential(), [x], [kind], kind)
        below = apply(v, Add(), [one, power], [kind, kind], kind)
        return apply(v, Divide(), [args[0] if times else one, below], [kind, kind], kind)

    run = Compiled(body, [kind], kind, 16)
    x = np.linspace(-30, 30, 1001).astype(kind.numpy)
    assert "estimate" in run.text
    wide = x.astype(np.float64)
    expected = special.expit(wide if negated else -wide) * (wide if times else 1)
    tolerance = {"f32": 1e-6, "f64": 1e-14, "bf16": 2**-7}[kind.name]
    np.testing.assert_allclose(run(x).astype(np.float64), expected, rtol=tolerance)
    ends = np.array([np.inf, -np.inf, np.nan], kind.numpy)
    with np.errstate(all="ignore"):
        exact = (ends if times else 1) / (1 + np.exp(-ends if negated else ends))
    np.testing.assert_array_equal(run(ends).astype(np.float64), exact.astype(np.float64))


def test_other_sums_are_sums() -> None:
    def body(v: Vectors, args: list[Held]) -> Held:
        tanh = apply(v, Tanh(), args, [F32], F32)
        return apply(v, Add(), [tanh, (v.constant(2.0),)], [F32, F32], F32)

    x: Array = np.linspace(-3, 3, 64).astype(np.float32)
    np.testing.assert_allclose(Compiled(body, [F32], F32, 16)(x), np.tanh(x) + 2, rtol=1e-6)
