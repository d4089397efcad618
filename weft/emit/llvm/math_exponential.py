"""Exponentials of vectors, and what is made of one: tanh, the logistic function, sinh, cosh.

e^x is 2^n e^r with |r| <= log(2) / 2. Every function is right for NaN, infinities, signed zeros
and subnormal numbers, has no branches, and is within 2 units in the last place in f32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from weft.emit.llvm.polynomial import (
    LAYOUTS,
    at_least,
    at_most,
    bits_of,
    float_of,
    horner,
    magnitude,
    quotient,
    where,
    with_sign,
)
from weft.emit.llvm.vector import Vector, Vectors


@dataclass(frozen=True, slots=True)
class Exponential:
    """Constants of e^x for a float type."""

    series: tuple[float, ...]  # of (e^r - 1 - r) / r^2
    tanh: tuple[float, ...]  # of (tanh(x) - x) / x^3, in x^2
    log2_high: float  # log(2) = high + low
    log2_low: float
    overflow: float  # the largest x with a finite e^x
    subnormal: float  # below, e^x may be subnormal
    zero: float  # below, e^x is 0
    tiny: float  # below, e^x - 1 is x
    one: float  # above, 1 - e^-x is 1
    lift: int  # the exponent that makes subnormal numbers normal


# fmt: off
_TABLE = {
    "float": Exponential(
        (
            0.4999999403953552, 0.16666516661643982, 0.041668105870485306, 0.00836909469217062,
            0.0013835239224135876,
        ),
        (
            -0.33333298563957214, 0.13331936299800873, -0.05378471687436104, 0.02079862169921398,
            -0.005897951778024435,
        ),
        0.693147182464599609375, -1.904654323148236017e-9,
        88.72283172607422, -86.0, -104.0, 2.0**-25, 20.0, 64,
    ),
}
# fmt: on
_NEAR_TANH = 0.6  # below, tanh is the series


def exp(v: Vectors, x: Vector) -> Vector:
    """e^x."""
    table = _TABLE[x.kind]
    power = _power(v, x, table)
    return where(v, "ogt", x, table.overflow, v.constant(math.inf, x.kind), power)


def _power(v: Vectors, x: Vector, table: Exponential) -> Vector:
    """e^x for x that does not overflow."""
    layout = LAYOUTS[x.kind]
    shifted, r = _reduced(v, x, table)
    doubled = [2.0, 2.0, *(2 * c for c in table.series)]
    mantissa = horner(v, r, doubled)
    tiny = v.compare("olt", x, v.constant(table.subnormal, x.kind))
    plain = v.constant(layout.power(-1), layout.integer)
    lifted = v.constant(layout.power(table.lift - 1), layout.integer)
    scale = float_of(v, v.add(_exponent(v, shifted), v.select(tiny, lifted, plain)))
    power = v.mul(mantissa, scale)
    lowered = v.mul(power, v.constant(2.0**-table.lift, x.kind))
    power = v.select(tiny, lowered, power)
    return where(v, "olt", x, table.zero, v.constant(0.0, x.kind), power)


def _reduced(v: Vectors, x: Vector, table: Exponential) -> tuple[Vector, Vector]:
    """n + a large number, and r: x = n log(2) + r."""
    large = v.constant(1.5 * 2.0 ** LAYOUTS[x.kind].mantissa, x.kind)
    shifted = v.fma(x, v.constant(1 / math.log(2), x.kind), large)
    n = v.sub(shifted, large)
    r = v.fma(n, v.constant(-table.log2_high, x.kind), x)
    return shifted, v.fma(n, v.constant(-table.log2_low, x.kind), r)


def _exponent(v: Vectors, shifted: Vector) -> Vector:
    """n in the place of a float's exponent: all but the low bits of a shifted n are shifted out."""
    layout = LAYOUTS[shifted.kind]
    return v.binary("shl", bits_of(v, shifted), v.constant(layout.mantissa, layout.integer))


def _half_minus(v: Vectors, x: Vector, table: Exponential) -> tuple[Vector, Vector]:
    """e^r - 1 and 2^(n - 1), so that (e^x - 1) / 2 is the first times the second, plus it - 1/2."""
    layout = LAYOUTS[x.kind]
    shifted, r = _reduced(v, x, table)
    rest = v.mul(r, horner(v, r, table.series))
    minus = v.fma(rest, r, r)
    scale = float_of(v, v.add(_exponent(v, shifted), v.constant(layout.power(-1), layout.integer)))
    return minus, scale


def _double_power(v: Vectors, x: Vector, table: Exponential) -> Vector:
    """2 e^x for x whose power is a normal number."""
    layout = LAYOUTS[x.kind]
    shifted, r = _reduced(v, x, table)
    mantissa = horner(v, r, [2.0, 2.0, *(2 * c for c in table.series)])
    one = v.constant(layout.power(0), layout.integer)
    return v.mul(mantissa, float_of(v, v.add(_exponent(v, shifted), one)))


def expm1(v: Vectors, x: Vector) -> Vector:
    """e^x - 1, exact near 0."""
    table = _TABLE[x.kind]
    minus, scale = _half_minus(v, at_least(v, x, -2 * table.one), table)
    half = v.fma(minus, scale, v.sub(scale, v.constant(0.5, x.kind)))
    found = v.add(half, half)
    found = where(v, "ogt", x, table.overflow, v.constant(math.inf, x.kind), found)
    return where(v, "olt", magnitude(v, x), table.tiny, x, found)


def tanh(v: Vectors, x: Vector) -> Vector:
    """tanh(x): a series near 0, and 1 - 2e / (1 + e) with e = e^-2|x| farther away."""
    table = _TABLE[x.kind]
    size = magnitude(v, x)
    twice = v.mul(at_most(v, size, table.one), v.constant(-2.0, x.kind))
    doubled = _double_power(v, twice, table)
    far = quotient(v, doubled, v.fma(doubled, v.constant(0.5, x.kind), v.constant(1.0, x.kind)))
    far = v.sub(v.constant(1.0, x.kind), far)
    square = v.mul(size, size)
    near = v.fma(v.mul(size, square), horner(v, square, table.tanh), size)
    return with_sign(v, where(v, "olt", size, _NEAR_TANH, near, far), x)


def logistic(v: Vectors, x: Vector) -> Vector:
    """1 / (1 + e^-x): with e = e^-|x| and q = e / (1 + e) it is 1 - q, or e - e q where x < 0."""
    one = v.constant(1.0, x.kind)
    small = _power(v, v.neg(magnitude(v, x)), _TABLE[x.kind])
    ratio = quotient(v, small, v.add(one, small))
    whole = where(v, "olt", x, 0.0, small, one)
    return v.fma(v.neg(whole), ratio, whole)
