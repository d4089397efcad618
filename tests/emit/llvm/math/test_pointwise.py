"""Every elementwise op of every element type, emitted, against its reference."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emit.llvm.jit import Compiled
from tests.emit.llvm.values import operands
from tests.tolerance import difference
from weft.emit.llvm.math.pointwise import EMIT, UNSUPPORTED, apply
from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.storage import load
from weft.emit.llvm.writer.vector import Vectors
from weft.errors import Unsupported, WeftError
from weft.ir.dense import Dense
from weft.ir.op import Op
from weft.ir.types import BOOL, DTYPES, Array, DType, dtype_of, tensor
from weft.ops import OPS, shape
from weft.ops.elementwise import broadcasting, convert, pointwise, special, transcendental

DIRECTIONS = ("EQ", "NE", "GE", "GT", "LE", "LT")
FORMATS = ((5, 10), (8, 7), (4, 3), (2, 1), (11, 52), (3, 0))
CONSTANTS = {shape.Constant, special.ChloConstant, special.ConstantLike}
# What is approximated: near the reference, not equal to it. Everything else is exact.
FUNCTIONS = {*transcendental.OPS, *special.OPS[: special.OPS.index(special.Conj)], pointwise.Power}
OF_COMPLEX = {pointwise.Abs, pointwise.Divide, pointwise.Sign}


def polygamma(n: Array, x: Array) -> Array:
    """The reference with exact factorials."""
    counts = [int(k) if 0 < k < 171 else 0 if k == 0 else 171 for k in n]
    scale = [float(math.factorial(k)) if k < 171 else math.inf for k in counts]
    found = (2 * (n % 2) - 1) * scale * special.Zeta().reference(n + 1, x)
    found = np.where(n == 0, special.Digamma().reference(x), found)
    return np.where((n < 0) | (n != np.floor(n)), np.nan, found)


# The kernels are more exact than these references: others stand in, or they are computed in f64.
STAND_INS = {special.Erf: np.vectorize(math.erf), special.Erfc: np.vectorize(math.erfc)}
STAND_INS |= {special.Polygamma: polygamma, broadcasting.BroadcastPolygamma: polygamma}
IN_DOUBLE = {special.Lgamma, special.Digamma, special.BesselI1e}
# Near their zeros these have an error that is relative to this.
LEAST = {special.Lgamma: 4.0, special.Digamma: 4.0, special.BesselI1e: 0.1}
USUAL = ("i1", "i4", "ui8", "i32", "ui64", "f8E4M3FN", "bf16", "f16", "f32", "f64")
USUAL += ("complex<f32>", "complex<f64>")


def instances(kind: type[Op]) -> Iterator[tuple[Op, int]]:
    """Ops of a class with some of their attributes, and how many operands they take."""
    if kind is pointwise.Compare:
        for direction in DIRECTIONS:
            yield pointwise.Compare(direction), 2
            yield pointwise.Compare(direction, "TOTALORDER"), 2
    elif kind is broadcasting.BroadcastCompare:
        yield broadcasting.BroadcastCompare("LT"), 2
    elif kind is convert.ReducePrecision:
        for exponent, mantissa in FORMATS:
            yield convert.ReducePrecision(exponent, mantissa), 1
    elif issubclass(kind, pointwise.Pointwise | broadcasting.Broadcasting):
        yield kind(), kind.arity
    elif kind in (pointwise.Select, pointwise.Clamp):
        yield kind(), 3
    elif kind is convert.Complex:
        yield kind(), 2


def types_of(op: Op, arity: int, dtype: DType) -> tuple[list[DType], DType] | None:
    """The types of operands and result, if the op takes that type."""
    given = [dtype] * arity
    if isinstance(op, pointwise.Select | broadcasting.BroadcastSelect):
        given[0] = BOOL
    try:
        made = op.infer(*[tensor(dtype=d) for d in given])
    except WeftError:
        return None
    return given, made.dtype


def check(op: Op, given: list[DType], made: DType, arrays: list[Array], width: int = 16) -> None:
    """Compare with the reference; ops that have no kernel for a type say so."""

    def body(v: Vectors, args: list[tuple]) -> tuple:
        return apply(v, op, args, given, made)

    try:
        run = Compiled(body, given, made, width)
    except Unsupported:
        return
    with np.errstate(all="ignore"):
        actual, expected = run(*arrays), reference(op, arrays)
        meant = op.applied() if isinstance(op, broadcasting.Broadcasting) else op
        if isinstance(meant, pointwise.Power) and given[0].is_complex:
            # An angle of millions of turns has no digits left in double precision; in f64 the
            # error of either side grows with the logarithm of the power, and of an infinite one
            # near an axis the signs are those of rounding errors.
            turns = arrays[1].astype(np.complex128) * np.log(arrays[0].astype(np.complex128))
            kept = ~(np.abs(turns) > 1e6)
            if given[0].bits == 128:
                kept &= ~(turns.real > 700)
            actual, expected, turns = actual[kept], expected[kept], turns[kept]
            if given[0].bits == 128:
                closer = expected + (actual - expected) / (1 + np.abs(turns))
                actual = np.where(np.isfinite(closer), closer, actual)
    approximate = type(meant) in (FUNCTIONS | OF_COMPLEX if given[0].is_complex else FUNCTIONS)
    approximate &= not made.is_integer
    least = LEAST.get(type(op), 0.0)
    found = near(actual, expected, least) if approximate else exact(actual, expected)
    assert found is None, f"{op} of {given[0]}: {found}"


def reference(op: Op, arrays: list[Array]) -> Array:
    """What the op should give."""
    if type(op) not in STAND_INS.keys() | IN_DOUBLE:
        return np.asarray(op.reference(*arrays))
    function = STAND_INS.get(type(op), op.reference)
    wide = function(*(x.astype(np.float64) for x in arrays))
    return np.asarray(wide).astype(arrays[0].dtype)


def near(actual: Array, expected: Array, least: float) -> str | None:
    """Where arrays differ by more than the tolerance; of infinite complex numbers each part."""
    if actual.dtype.kind != "c":
        return difference(actual, expected, least=least)
    finite = np.isfinite(expected)
    a, e = actual[~finite], expected[~finite]
    parts = difference(a.real, e.real) or difference(a.imag, e.imag)
    return difference(actual[finite], expected[finite], least=least) or parts


def exact(actual: Array, expected: Array) -> str | None:
    """Where arrays differ: NaN equals NaN, -0 is not 0 (but in types without NaN)."""
    assert actual.dtype == expected.dtype
    if actual.dtype.kind == "c":
        return exact(actual.real, expected.real) or exact(actual.imag, expected.imag)
    same = np.asarray(actual == expected)
    dtype = dtype_of(actual.dtype)
    if dtype.is_float:
        a, e = (x.astype(np.float64) for x in (actual, expected))
        alike = (np.signbit(a) == np.signbit(e)) | (dtype.bits < 8)
        same = ((a == e) & alike) | (np.isnan(a) & np.isnan(e))
    if same.all():
        return None
    place = int(np.argmin(same))
    return f"element {place} is {actual[place]}, expected {expected[place]} ({(~same).sum()} wrong)"


def test_tables_are_complete() -> None:
    """Every elementwise op is in one table, and in one only."""
    elementwise = {op for op in OPS if op.elementwise}
    assert elementwise - set(EMIT) - set(UNSUPPORTED) == set()
    assert set(EMIT) & set(UNSUPPORTED) == set()
    assert set(EMIT) - elementwise == {shape.BitcastConvert}
    assert all(len(why) > 5 for why in UNSUPPORTED.values())


SPECIAL_CASES = {*CONSTANTS, convert.Convert, shape.BitcastConvert}
KINDS = [op for op in EMIT if op not in SPECIAL_CASES]


@pytest.mark.parametrize("kind", KINDS, ids=lambda op: op.name)
def test_usual_types(kind: type[Op]) -> None:
    cases = [(op, types_of(op, n, DTYPES[d])) for op, n in instances(kind) for d in USUAL]
    kept = [(op, types) for op, types in cases if types is not None]
    assert kept or kind in (special.AsinAcosKernel, special.Conj)
    for op, types in kept:
        check(op, *types, operands(types[0]))


@pytest.mark.long
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_all_types(dtype: DType) -> None:
    for kind in KINDS:
        for op, arity in instances(kind):
            if (types := types_of(op, arity, dtype)) is not None:
                check(op, *types, operands(types[0], 3000, seed=1))


@pytest.mark.parametrize("width", [1, 4, 24, 64])
def test_widths(width: int) -> None:
    """Vectors of any width, scalars too."""
    for name, dtype in (("tanh", "f32"), ("sine", "f32"), ("log", "f64"), ("tanh", "bf16")):
        kind = next(op for op in OPS if op.name == f"stablehlo.{name}")
        check(kind(), [DTYPES[dtype]], DTYPES[dtype], operands([DTYPES[dtype]]), width)
    for kind in (pointwise.Divide, pointwise.Power, pointwise.Remainder, pointwise.ShiftLeft):
        check(kind(), [DTYPES["i32"]] * 2, DTYPES["i32"], operands([DTYPES["i32"]] * 2), width)


FROM = ("i1", "i4", "i8", "ui16", "i32", "i64", "ui64", "f8E5M2", "f8E8M0FNU", "bf16", "f16")
FROM += ("f32", "f64", "complex<f32>")


@pytest.mark.parametrize("made", DTYPES.values(), ids=str)
def test_convert(made: DType) -> None:
    for name in FROM:
        (x,) = operands([DTYPES[name]])
        op = convert.Convert(out=tensor(x.size, dtype=made))
        check(op, [DTYPES[name]], made, [x])


@pytest.mark.parametrize("made", DTYPES.values(), ids=str)
def test_bitcast(made: DType) -> None:
    for dtype in DTYPES.values():
        if dtype.bits == made.bits and dtype.is_complex == made.is_complex:
            (x,) = operands([dtype])
            op = shape.BitcastConvert(out=tensor(x.size, dtype=made))
            check(op, [dtype], made, [x])


def test_constants() -> None:
    x = np.zeros(5, np.float32)
    for value in (np.float32(1.5), np.int32(-7), np.bool_(True), np.complex64(1 - 2j)):
        op = special.ConstantLike(Dense(np.asarray(value)))
        made = op.infer(tensor(5)).dtype
        check(op, [DTYPES["f32"]], made, [x])


# What has no kernel, by type: scales that nothing computes with, odd formats, and the functions of
# complex numbers that no program needs to be fast.
OF_COMPLEX_TOO = {
    *(transcendental.Exponential, transcendental.ExponentialMinusOne, transcendental.Log),
    *(transcendental.Sqrt, transcendental.Rsqrt, transcendental.Tan, transcendental.Tanh),
    *(pointwise.Abs, pointwise.Divide, pointwise.Sign, special.Conj, special.Square),
    *(special.ChloTan, special.Cosh, special.Sinh, pointwise.Power),
    *(transcendental.Cosine, transcendental.LogPlusOne, transcendental.Sine),
    *(special.Acos, special.Acosh, special.Asin, special.Asinh, special.Atan, special.Atanh),
}


def is_refused(op: Op, dtype: DType) -> bool:
    """Whether an op is expected to have no kernel for a type."""
    if isinstance(op, broadcasting.Broadcasting):
        return is_refused(op.applied(), dtype)
    if dtype.is_complex:
        return type(op) in FUNCTIONS - OF_COMPLEX_TOO
    if isinstance(op, special.NextAfter):
        return dtype.bits < 16
    if isinstance(op, convert.ReducePrecision):
        return dtype.bits < 8 or dtype.name == "f8E8M0FNU"
    asks = (pointwise.IsFinite, special.IsInf, special.IsPosInf, special.IsNegInf)
    computes = isinstance(op, pointwise.Pointwise | pointwise.Clamp) and not isinstance(op, asks)
    return dtype.name == "f8E8M0FNU" and computes


@pytest.mark.parametrize("kind", KINDS, ids=lambda op: op.name)
def test_only_these_are_refused(kind: type[Op]) -> None:
    for op, arity in instances(kind):
        for dtype in DTYPES.values():
            if (types := types_of(op, arity, dtype)) is None:
                continue
            v = Vectors(Writer("f", ["ptr %p"]), 4)
            args = [load(v, "%p", 0, d) for d in types[0]]
            refused = False
            try:
                apply(v, op, args, *types)
            except Unsupported:
                refused = True
            assert refused == is_refused(op, dtype), (op, dtype)


def test_differing_constants_are_refused() -> None:
    op = shape.Constant(Dense(np.arange(3.0)))
    with pytest.raises(Unsupported, match="elements that differ"):
        Compiled(lambda v, args: apply(v, op, args, (), DTYPES["f64"]), [], DTYPES["f64"])


def test_refused_ops_say_why() -> None:
    for kind, why in UNSUPPORTED.items():
        with pytest.raises(Unsupported) as error:
            apply(Vectors(Writer("f", []), 1), kind(), [], (), BOOL)
        assert why in str(error.value)


CHOSEN = [DTYPES[d] for d in ("i8", "ui16", "i32", "f16", "bf16", "f32", "f64")]
BINARY = [op for op in KINDS if issubclass(op, pointwise.Pointwise) and op.arity == 2]


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(BINARY), st.sampled_from(CHOSEN), st.integers(0, 2**31), st.integers(0, 40))
def test_random_operands(kind: type[Op], dtype: DType, seed: int, count: int) -> None:
    op = kind()
    if (types := types_of(op, 2, dtype)) is not None:
        arrays = [x[-count:] if count else x[:0] for x in operands(types[0], 40, seed)]
        check(op, *types, arrays)
