"""The logistic function of vectors, and expressions equal to it: 1 + tanh(x), 1 / (1 + e^-x).

With x = n log(2) + r it is 2^n / (2^n + e^-r), in which nothing overflows. The coarse functions
have 13 bits, for floats with at most 8: reciprocal estimates suffice.
"""

from __future__ import annotations

from weft.emit.llvm.jit.supplied import estimate, scale, scale_normal
from weft.emit.llvm.math.exponential import (
    COARSE,
    EXPONENTIAL,
    coarse_exp,
    coarse_rest,
    exp,
    tanh,
    whole_and_rest,
)
from weft.emit.llvm.math.polynomial import at_least, at_most, horner, quotient
from weft.emit.llvm.writer.vector import Vector, Vectors

_TANH, _COARSE_TANH, _EXP, _COARSE_EXP = "tanh of", "coarse tanh of", "exp of", "coarse exp of"
_NEGATIVE, _ONE_PLUS = "negative of", "one plus"


def logistic(v: Vectors, x: Vector) -> Vector:
    """1 / (1 + e^-x)."""
    n, r = whole_and_rest(v, _between(v, x, 1))
    below = horner(v, r, _falling((1.0, 1.0, *EXPONENTIAL[x.kind].series), 1))
    power = scale(v, v.constant(1.0, x.kind), n)
    # A reciprocal estimate and one Newton step, in place of a division.
    inverse = estimate(v, v.add(power, below))
    # One minus the estimate times each of the two addends: their sum is rounded.
    missing = v.fma(v.neg(below), inverse, v.constant(1.0, x.kind))
    missing = v.fma(v.neg(power), inverse, missing)
    return v.mul(power, v.fma(inverse, missing, inverse))


def coarse_logistic(v: Vectors, x: Vector) -> Vector:
    """1 / (1 + e^-x) to 13 bits."""
    n, r = coarse_rest(v, _between(v, x, 1))
    power = scale(v, v.constant(1.0, x.kind), n)
    return v.mul(power, estimate(v, v.add(power, horner(v, r, _falling(COARSE, 1)))))


def one_plus_tanh(v: Vectors, x: Vector) -> Vector:
    """1 + tanh(x) = 2 / (1 + e^-2x): cheaper than tanh, and accurate far below 0.

    It is 0 where it would be subnormal, like 1 plus a tanh rounded to -1.
    """
    n, r = whole_and_rest(v, _between(v, x, 2), 2)
    below = horner(v, r, _falling((1.0, 1.0, *EXPONENTIAL[x.kind].series), 2))
    power = scale_normal(v, v.constant(2.0, x.kind), n)
    total = v.fma(power, v.constant(0.5, x.kind), below)
    return v.mul(power, quotient(v, v.constant(1.0, x.kind), total))


def coarse_one_plus_tanh(v: Vectors, x: Vector) -> Vector:
    """1 + tanh(x) to 13 bits."""
    n, r = coarse_rest(v, _between(v, x, 2), 2)
    power = scale_normal(v, v.constant(2.0, x.kind), n)
    total = v.fma(power, v.constant(0.5, x.kind), horner(v, r, _falling(COARSE, 2)))
    return v.mul(power, estimate(v, total))


def _between(v: Vectors, x: Vector, times: int) -> Vector:
    """x clamped near where the function of `times` x reaches 0 or 1."""
    table = EXPONENTIAL[x.kind]
    return at_most(v, at_least(v, x, table.zero / times), table.one / times)


def _falling(rising: tuple[float, ...], times: int) -> list[float]:
    """Coefficients of e^(-times r), from those of e^r."""
    return [c * (-times) ** k for k, c in enumerate(rising)]


# Programs spell these functions differently: the origin of a value is recorded to match them


def noted_tanh(v: Vectors, x: Vector) -> Vector:
    """tanh(x)."""
    return _noted(v, tanh(v, x), _TANH, x)


def noted_coarse_tanh(v: Vectors, x: Vector) -> Vector:
    """tanh(x), coarse."""
    return _noted(v, tanh(v, x), _COARSE_TANH, x)


def noted_exp(v: Vectors, x: Vector) -> Vector:
    """e^x."""
    return _noted(v, exp(v, x), _EXP, x)


def noted_coarse_exp(v: Vectors, x: Vector) -> Vector:
    """e^x to 17 bits."""
    return _noted(v, coarse_exp(v, x), _COARSE_EXP, x)


def negative(v: Vectors, x: Vector) -> Vector:
    """-x."""
    return _noted(v, v.neg(x), _NEGATIVE, x)


def one_plus(v: Vectors, x: Vector) -> Vector:
    """1 + x; 1 + tanh(y) is 2 / (1 + e^-2y)."""
    if (y := _noted_of(v, x, _TANH)) is not None:
        return one_plus_tanh(v, y)
    if (y := _noted_of(v, x, _COARSE_TANH)) is not None:
        return coarse_one_plus_tanh(v, y)
    total = v.binary("fadd contract", v.constant(1.0, x.kind), x)
    return _noted(v, total, _ONE_PLUS, x)


def divide(v: Vectors, a: Vector, b: Vector) -> Vector:
    """a / b; 1 / (1 + e^-y) is the logistic function."""
    function, y = logistic, None
    if (more := _noted_of(v, b, _ONE_PLUS)) is not None:
        y = _noted_of(v, more, _EXP)
        if y is None:
            function, y = coarse_logistic, _noted_of(v, more, _COARSE_EXP)
    if y is None:
        return v.div(a, b)
    x = _noted_of(v, y, _NEGATIVE)
    part = function(v, v.neg(y) if x is None else x)
    return part if a == v.constant(1.0, a.kind) else v.mul(a, part)


def tolerant_divide(v: Vectors, a: Vector, b: Vector) -> Vector:
    """a / b; 1 / b to 14 bits."""
    is_noted = _noted_of(v, b, _ONE_PLUS) is not None
    return estimate(v, b) if a == v.constant(1.0, a.kind) and not is_noted else divide(v, a, b)


def _noted(v: Vectors, result: Vector, topic: str, x: Vector) -> Vector:
    v.code.facts[result.text, topic] = x.text
    return result


def _noted_of(v: Vectors, x: Vector, topic: str) -> Vector | None:
    text = v.code.facts.get((x.text, topic)) if v.code.excess_precision else None
    return None if text is None else Vector(text, x.kind, x.width)
