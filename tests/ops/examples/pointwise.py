"""Examples of elementwise arithmetic, bits, comparison and choice."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy, composite

from tests.ops.draw import EVERY, dtypes, seeds, shapes
from tests.ops.example import Example
from tests.ops.program import region, scalar
from weft.ir.op import Op
from weft.ir.types import BOOL, DTYPES, Array, DType
from weft.ops.elementwise import pointwise
from weft.ops.elementwise.pointwise import COMPARE_TYPES, Clamp, Compare, Map, Pointwise, Select

# Powers of two without zero and sign are not numbers to compute with; tests of their own use them.
NAMES = tuple(name for name in EVERY if name != "f8E8M0FNU")
# Narrow floats that hold infinities and NaN, and the wider ones, which all do.
INFINITE = ("f8E5M2", "f8E4M3", "f8E3M4", "bf16", "f16", "f32", "f64")
SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-30)


def names(kinds: str) -> tuple[str, ...]:
    """The element types of these kinds."""
    return tuple(name for name in NAMES if DTYPES[name].kind in kinds.split())


def numbers(shape: tuple[int, ...], dtype: DType, seed: int, *, special: bool = False) -> Array:
    """Integers of all sizes; halves between -4 and 4, and special values among them if wanted."""
    random = np.random.default_rng(seed)
    if dtype.kind == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if dtype.is_integer:
        bits = random.integers(0, 256, (*shape, 8)).astype(np.uint8).view(np.uint64)
        return bits.reshape(shape).astype(dtype.numpy)
    halves = random.integers(-8, 9, shape) / 2
    if dtype.is_complex:
        return (halves + 0.5j * random.integers(-8, 9, shape)).astype(dtype.numpy)
    if special and dtype.name in INFINITE:
        halves = np.where(random.random(shape) < 0.3, random.choice(SPECIAL, shape), halves)
    return np.asarray(halves).astype(dtype.numpy)


@composite
def drawn(
    draw: DrawFn,
    op: type[Pointwise],
    kinds: tuple[str, ...] = (),
    *,
    special: bool = True,
    nonzero: bool = False,
) -> Example:
    """An op on arrays of one type that it takes."""
    shape, dtype = draw(shapes()), draw(dtypes(kinds or names(op.kinds)))
    wild = special and draw(st.booleans())
    arrays = [numbers(shape, dtype, draw(seeds), special=wild) for _ in range(op.arity)]
    if nonzero:
        arrays = [np.where(a == 0, np.ones_like(a), a) for a in arrays]
    return Example(op(), tuple(arrays))


@composite
def shift(draw: DrawFn, op: type[Pointwise]) -> Example:
    shape, dtype = draw(shapes()), draw(dtypes(names(op.kinds)))
    amounts = np.random.default_rng(draw(seeds)).integers(0, dtype.bits + 2, shape)
    return Example(op(), (numbers(shape, dtype, draw(seeds)), amounts.astype(dtype.numpy)))


@composite
def compare(draw: DrawFn) -> Example:
    shape, dtype = draw(shapes()), draw(dtypes(NAMES))
    kinds = (None, "NOTYPE", *COMPARE_TYPES[dtype.kind])
    directions = ("EQ", "NE", "GE", "GT", "LE", "LT")
    kind, direction = draw(st.sampled_from(kinds)), draw(st.sampled_from(directions))
    arrays = (numbers(shape, dtype, draw(seeds), special=True) for _ in range(2))
    return Example(Compare(direction, kind), tuple(arrays))


@composite
def select(draw: DrawFn) -> Example:
    shape, dtype = draw(shapes()), draw(dtypes())
    pred = numbers(draw(st.sampled_from(((), shape))), BOOL, draw(seeds))
    choices = [numbers(shape, dtype, draw(seeds), special=True) for _ in range(2)]
    return Example(Select(), (pred, *choices))


@composite
def clamp(draw: DrawFn) -> Example:
    shape, dtype = draw(shapes()), draw(dtypes(NAMES))
    low, high = (numbers(draw(st.sampled_from(((), shape))), dtype, draw(seeds)) for _ in range(2))
    return Example(Clamp(), (low, numbers(shape, dtype, draw(seeds), special=True), high))


@composite
def mapped(draw: DrawFn) -> Example:
    shape, dtype = draw(shapes()), draw(dtypes(("f32", "bf16", "i8", "complex<f32>")))
    count = draw(st.integers(1, 3))
    arrays = tuple(numbers(shape, dtype, draw(seeds)) for _ in range(count))
    add, less = pointwise.Add(), Compare("NE")
    body = region(
        (scalar(dtype),) * count,
        (add, (0, count - 1)),
        (less, (0, count)),
        results=(draw(st.sampled_from((count, count + 1))),),
    )
    return Example(Map(tuple(range(len(shape)))), arrays, (body,))


SHIFTS = (pointwise.ShiftLeft, pointwise.ShiftRightLogical, pointwise.ShiftRightArithmetic)
_ROUNDED = ("f8E5M2", "f8E4M3FN", "f8E4M3B11FNUZ", "bf16", "f16", "f32", "f64")
_WIDE = ("f16", "bf16", "f32", "f64")

EXAMPLES: dict[type[Op], SearchStrategy[Example]] = {
    op: drawn(op) for op in pointwise.OPS if issubclass(op, Pointwise) and op not in SHIFTS
}
EXAMPLES |= {op: shift(op) for op in SHIFTS}
# StableHLO's interpreter stops at a zero divisor, and its narrow floats round otherwise.
EXAMPLES |= {
    op: drawn(op, ("f8E5M2", *_WIDE, *names("int uint complex")), special=False, nonzero=True)
    for op in (pointwise.Divide, pointwise.Power)
}
EXAMPLES |= {
    pointwise.Remainder: drawn(
        pointwise.Remainder, (*_WIDE, *names("int uint")), special=False, nonzero=True
    ),
    Compare: compare(),
    Select: select(),
    Clamp: clamp(),
    Map: mapped(),
}
EXAMPLES |= {
    op: drawn(op, _ROUNDED)
    for op in (
        pointwise.Ceil,
        pointwise.Floor,
        pointwise.RoundNearestAfz,
        pointwise.RoundNearestEven,
    )
}
