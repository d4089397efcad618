"""How exact the functions of floats are, on random bits and where programs use them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emit.llvm.functions import FUNCTIONS, Function, errors, patterns, usual
from tests.emit.llvm.jit import Compiled
from weft.emit.llvm.jit.machine_code import assembly
from weft.emit.llvm.jit.processor import Processor, host
from weft.emit.llvm.math.exponential import exp, tanh
from weft.emit.llvm.math.logistic import logistic
from weft.emit.llvm.math.power import power
from weft.emit.llvm.writer.code import Writer, module_text
from weft.emit.llvm.writer.storage import Held, load, store
from weft.emit.llvm.writer.vector import Vectors
from weft.ir.types import F32, F64, DType

EXACT = [f for f in FUNCTIONS if f.ulps64 < 100]


def compiled(function: Function, dtype: DType, width: int = 16) -> Compiled:
    def body(v: Vectors, args: list[Held]) -> Held:
        return (function.emit(v, *(arg[0] for arg in args)),)

    return Compiled(body, [dtype] * function.arity, dtype, width)


def check(function: Function, dtype: DType, count: int, seed: int = 0) -> None:
    run = compiled(function, dtype)
    limit = function.ulps32 if dtype is F32 else function.ulps64
    bits = [patterns(dtype, count, seed + n) for n in range(function.arity)]
    common = [usual(function, dtype, count, seed + n) for n in range(function.arity)]
    for args in (bits, common):
        found = errors(function, run, *args)
        worst = int(np.argmax(found))
        at = [x[worst] for x in args]
        assert found[worst] <= limit, f"{function.name}({at}) = {run(*(x[[worst]] for x in args))}"


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("function", EXACT, ids=lambda f: f.name)
def test_error(function: Function, dtype: DType) -> None:
    check(function, dtype, 20_000)


@pytest.mark.long
@pytest.mark.parametrize("function", EXACT, ids=lambda f: f.name)
def test_error_of_ten_million(function: Function) -> None:
    for seed in range(10):
        check(function, F32, 1_000_000, seed)
        check(function, F64, 100_000, seed)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.name)
def test_widths_agree(function: Function) -> None:
    """Scalars and vectors of any width compute the same, but for estimates of quotients."""
    args = [usual(function, F32, 256, n) for n in range(function.arity)]
    runs = [compiled(function, F32, width)(*args) for width in (1, 4, 16)]
    np.testing.assert_array_equal(runs[0], runs[1])
    near = np.isclose(runs[0], runs[2], rtol=2**-21, atol=0, equal_nan=True)
    assert near.all(), (args[0][~near], runs[0][~near], runs[2][~near])


@pytest.mark.parametrize("name", ["exp", "tanh", "logistic", "erf", "erfc", "sin", "log"])
def test_without_avx512(name: str) -> None:
    """Processors without good estimates of quotients divide."""
    if not host().triple.startswith("x86_64"):
        pytest.skip("needs a processor of x86-64")
    function = next(f for f in FUNCTIONS if f.name == name)
    plain = Processor(host().triple, "haswell", "")

    def body(v: Vectors, args: list[Held]) -> Held:
        return (function.emit(v, args[0][0]),)

    run = Compiled(body, [F32], F32, 16, plain)
    for x in (patterns(F32, 20_000, 1), usual(function, F32, 20_000, 2)):
        assert errors(function, run, x).max() <= function.ulps32


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.name)
def test_other_processors(function: Function) -> None:
    """The text is for no processor in particular."""
    code = Writer("f", ["ptr %x", "ptr %y"])
    v = Vectors(code, 8)
    (x,) = load(v, "%x", 0, F32)
    store(v, (function.emit(v, *[x] * function.arity),), "%y", 0, F32)
    made = assembly(module_text(code), Processor("aarch64-unknown-linux-gnu", "generic", ""))
    assert "fmla" in made or "fsqrt" in made or "fdiv" in made


def test_known_powers() -> None:
    """A constant exponent that programs name is no power."""
    x = np.array([0.0, -0.0, 2.0, -3.0, 1.7, np.inf, -np.inf, np.nan], np.float32)
    for exponent in (1.0, 2.0, 3.0, -1.0, 0.5):

        def body(v: Vectors, args: list[Held], y: float = exponent) -> Held:
            return (power(v, args[0][0], v.constant(y)),)

        run = Compiled(body, [F32], F32, 8)
        assert "@llvm.fma" not in run.text
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(run(x), np.power(x, np.full_like(x, exponent)), rtol=1e-6)


@pytest.mark.parametrize("emit", [exp, tanh, logistic], ids=lambda f: f.__name__)
def test_text_is_short(emit: object) -> None:
    """Programs have hundreds of these; LLVM's time goes with the number of instructions."""
    code = Writer("f", [])
    v = Vectors(code, 16)
    emit(v, v.constant(1.0))  # type: ignore[operator]  # they are functions
    assert len(code.lines) <= 40
