"""The exponential of matrices: a Taylor polynomial of a scaled matrix, squared again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from weft.capture.torch.build import (
    AtenLowering,
    Build,
    dtype_of,
    shape_of,
    type_of,
)
from weft.capture.torch.dtypes import computed_in
from weft.ir.module import Region, Value
from weft.ir.types import I32
from weft.ops.control import While
from weft.ops.elementwise.pointwise import Abs, Add, Multiply, Subtract

_DEGREE = 18
_NORM = 1.0  # up to which the polynomial is exact in f64
_BLOCK = 3  # powers of the matrix that Paterson and Stockmeyer's scheme keeps


def matrix_exp(b: Build, a: Value) -> Value:
    """exp of each matrix; its own number of squarings, so that all of a batch are as exact."""
    if 0 in shape_of(a):
        return a
    dtype = dtype_of(a)
    held = b.convert(a, computed_in(dtype))
    scaled, halvings = _scaled(b, held)
    return b.convert(_squared(b, _polynomial(b, scaled), halvings), dtype)


def _scaled(b: Build, a: Value) -> tuple[Value, Value]:
    """Matrices halved, exactly, until their norms are small; and how often."""
    rank = len(shape_of(a))
    columns = b.reduce(b.op(Abs(), a), (rank - 2,), "add", 0)
    norm = b.reduce(columns, (rank - 2,), "max", 0)
    count = b.splat(0, type_of(norm).with_dtype(I32))

    def is_large(b: Build, carry: Sequence[Value]) -> Value:
        large = b.compare("GT", carry[1], b.like(carry[1], _NORM))
        # Halving infinity never ends.
        infinite = b.compare("EQ", carry[1], b.like(carry[1], math.inf))
        return b.select(infinite, b.like(large, False), large)

    def halve(b: Build, carry: Sequence[Value]) -> Sequence[Value]:
        a, norm, count = carry
        large = is_large(b, carry)
        # By powers of two, which are exact in the matrix and are undone by squaring.
        factor = b.select(large, b.like(norm, 0.5), b.like(norm, 1))
        more = b.op(Add(), count, b.convert(large, I32))
        return _times(b, a, factor), b.op(Multiply(), norm, factor), more

    made = _while(b, is_large, halve, (a, norm, count))
    return made[0], made[2]


def _times(b: Build, a: Value, factor: Value) -> Value:
    """Matrices, each times a number."""
    spread = b.spread(b.convert(factor, dtype_of(a)), shape_of(a), range(len(shape_of(a)) - 2))
    return b.op(Multiply(), a, spread)


def _polynomial(b: Build, a: Value) -> Value:
    """The sum of a^n / n!: Horner's scheme in a^3, with 1, a and a^2 in each coefficient."""
    rank, dtype = len(shape_of(a)), dtype_of(a)
    rows, columns = (b.iota(rank - n, shape_of(a)) for n in (2, 1))
    powers = [b.convert(b.compare("EQ", rows, columns), dtype), a]
    while len(powers) <= _BLOCK:
        powers.append(b.matmul(powers[-1], a, dtype))
    total = None
    for first in range(_DEGREE - _DEGREE % _BLOCK, -1, -_BLOCK):
        if total is not None:
            total = b.matmul(total, powers[_BLOCK], dtype)
        for n in range(first, min(first + _BLOCK, _DEGREE + 1)):
            power = powers[n - first]
            term = b.op(Multiply(), power, b.like(power, 1 / math.factorial(n)))
            total = term if total is None else b.op(Add(), total, term)
    assert total is not None, "the polynomial has terms"
    return total


def _squared(b: Build, a: Value, count: Value) -> Value:
    """Matrices, each squared its own number of times."""

    def goes_on(b: Build, carry: Sequence[Value]) -> Value:
        return b.compare("GT", carry[1], b.like(carry[1], 0))

    def square(b: Build, carry: Sequence[Value]) -> Sequence[Value]:
        a, count = carry
        where = b.spread(goes_on(b, carry), shape_of(a), range(len(shape_of(a)) - 2))
        made = b.select(where, b.matmul(a, a, dtype_of(a)), a)
        return made, b.op(Subtract(), count, b.like(count, 1))

    return _while(b, goes_on, square, (a, count))[0]


def _while(
    b: Build,
    goes_on: Callable[[Build, Sequence[Value]], Value],
    step: Callable[[Build, Sequence[Value]], Sequence[Value]],
    start: Sequence[Value],
) -> tuple[Value, ...]:
    """A loop that runs while a condition holds for any element."""
    args = tuple([Value(v.type, None, n) for n, v in enumerate(start)])
    inner = Build(loc=b.loc)
    body = Region(args, inner.nodes, tuple(step(inner, args)))
    first = tuple([Value(v.type, None, n) for n, v in enumerate(start)])
    test = Build(loc=b.loc)
    rest = goes_on(test, first)
    again = test.reduce(rest, range(len(shape_of(rest))), "or", False)
    condition = Region(first, test.nodes, (again,))
    return b.all(While(), *start, regions=(condition, body))


LOWERINGS: dict[str, AtenLowering] = {"aten.linalg_matrix_exp.default": matrix_exp}
