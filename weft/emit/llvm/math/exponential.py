"""Exponentials of vectors, and functions derived from them: tanh, sinh, cosh.

e^x is 2^n e^r with |r| <= log(2) / 2. Every function handles NaN, infinities, signed
zeros and subnormals, has no branches, and is within 2 ulp in f32.
"""

from __future__ import annotations

import math

from weft.emit.llvm.jit.supplied import scale
from weft.emit.llvm.math.polynomial import (
    FLOAT_BITS,
    at_least,
    at_most,
    bits_of,
    float_of,
    horner,
    magnitude,
    odd_series,
    quotient,
    where,
    with_sign,
)
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class ExponentialConstants:
    """Constants of e^x for a float type."""

    series: tuple[float, ...]  # of (e^r - 1 - r) / r^2
    tanh: tuple[float, ...]  # of (tanh(x) - x) / x^3, in x^2
    sinh: tuple[float, ...]  # of (sinh(x) - x) / x^3, in x^2
    log2_high: float  # log(2) = high + low
    log2_low: float
    overflow: float  # above, e^x is infinite
    subnormal: float  # below, e^x may be subnormal
    zero: float  # below, e^x is 0
    one: float  # above, 1 - e^-x is 1
    lift: int  # the exponent that makes subnormal numbers normal


# fmt: off
EXPONENTIAL = {
    "float": ExponentialConstants(
        (
            0.4999999403953552, 0.16666516661643982, 0.041668105870485306, 0.00836909469217062,
            0.0013835239224135876,
        ),
        (
            -0.33333298563957214, 0.13331936299800873, -0.05378471687436104, 0.02079862169921398,
            -0.005897951778024435,
        ),
        (0.1666666716337204, 0.00833331048488617, 0.00019842895562760532, 2.7822136416943977e-06),
        0.693147182464599609375, -1.904654323148236017e-9,
        89.0, -86.0, -105.0, 20.0, 64,
    ),
    "double": ExponentialConstants(
        (
            0.5000000000000011, 0.16666666666666413, 0.041666666666530155, 0.008333333333494399,
            0.0013888888943631085, 0.00019841269506688846, 2.4801493097828538e-05,
            2.755758629088442e-06, 2.763024879588082e-07, 2.500008442577437e-08,
        ),
        (
            -0.33333333333333326, 0.13333333333331865, -0.05396825396725822, 0.02186948850253146,
            -0.008863234865999972, 0.003592119686632514, -0.0014557641691184202,
            0.0005896223711782349, -0.00023751273905223683, 9.248900647843748e-05,
            -3.117792480203992e-05, 6.503030393003364e-06,
        ),
        (
            0.16666666666666669, 0.008333333333332912, 0.00019841269841593416,
            2.755731910675081e-06, 2.505213100090181e-08, 1.6056658858370622e-10,
            7.776614715916316e-13,
        ),
        0.6931471805599453, 2.3190468138462996e-17,
        710.0, -707.0, -746.0, 40.0, 128,
    ),
}
# fmt: on
COARSE = (1.0, 1.0, 0.5000513792037964, 0.1675368696451187, 0.04127699136734009)  # of e^r
_NEAR_TANH = 0.6  # below, tanh is the series
_AT_MOST_ZERO = "at most zero"


def exp(v: Vectors, x: Vector) -> Vector:
    """e^x."""
    # Clamped first: n of a huge x would not fit the exponent field, and infinity would give inf -
    # inf.
    n, r = whole_and_rest(v, _in_range(v, x))
    return scale(v, horner(v, r, [1.0, 1.0, *EXPONENTIAL[x.kind].series]), n)


def coarse_exp(v: Vectors, x: Vector) -> Vector:
    """e^x to 17 bits."""
    n, r = coarse_rest(v, _in_range(v, x))
    return scale(v, horner(v, r, COARSE), n)


def _in_range(v: Vectors, x: Vector) -> Vector:
    """x clamped to just above overflow of e^x, and not far below underflow."""
    table = EXPONENTIAL[x.kind]
    return at_least(v, x if is_at_most_zero(v, x) else at_most(v, x, table.overflow), table.zero)


def note_at_most_zero(v: Vectors, x: Vector) -> None:
    """Record that a value is negative, zero or NaN."""
    v.code.facts[x.text, _AT_MOST_ZERO] = "yes"


def is_at_most_zero(v: Vectors, x: Vector) -> bool:
    """Whether a value is known to be negative, zero or NaN."""
    return (x.text, _AT_MOST_ZERO) in v.code.facts


def scaled(v: Vectors, x: Vector, shifted: Vector, doubled: Vector) -> Vector:
    """2^n times half of a number, where n belongs to x; subnormal or 0 on underflow."""
    form, table = FLOAT_BITS[x.kind], EXPONENTIAL[x.kind]
    tiny = v.compare("olt", x, v.constant(table.subnormal, x.kind))
    plain = v.constant(form.power(-1), form.integer)
    lifted = v.constant(form.power(table.lift - 1), form.integer)
    scale = float_of(v, v.add(_exponent(v, shifted), v.select(tiny, lifted, plain)))
    power = v.mul(doubled, scale)
    # A subnormal power is computed 2^lift times too large and lowered by one exact product: it is
    # rounded once, not twice.
    lowered = v.mul(power, v.constant(2.0**-table.lift, x.kind))
    power = v.select(tiny, lowered, power)
    return where(v, "olt", x, table.zero, v.constant(0.0, x.kind), power)


def _mantissa(v: Vectors, r: Vector) -> Vector:
    """2 e^r; doubled, because 2^n of the largest powers has no exponent."""
    return horner(v, r, [2.0, *doubled_series(r.kind)])


def doubled_series(kind: str) -> list[float]:
    """Coefficients of 2 (e^r - 1) / r."""
    return [2.0, *(2 * c for c in EXPONENTIAL[kind].series)]


def normal_power(v: Vectors, x: Vector, factor: int = 0) -> Vector:
    """2^factor e^x for x whose e^x is a normal number."""
    form = FLOAT_BITS[x.kind]
    shifted, r = reduced(v, x)
    moved = v.constant(form.power(factor - 1), form.integer)
    return v.mul(_mantissa(v, r), float_of(v, v.add(_exponent(v, shifted), moved)))


def reduced(v: Vectors, x: Vector) -> tuple[Vector, Vector]:
    """n + a large number, and r: x = n log(2) + r."""
    shifted = _shifted(v, x, 1.0)
    return shifted, _rest(v, x, _whole(v, shifted), 1.0)


def whole_and_rest(v: Vectors, x: Vector, times: float = 1.0) -> tuple[Vector, Vector]:
    """n and r: x = (n log(2) + r) / times, where `times` is a power of two."""
    n = _whole(v, _shifted(v, x, times))
    return n, _rest(v, x, n, times)


def coarse_rest(v: Vectors, x: Vector, times: float = 1.0) -> tuple[Vector, Vector]:
    """n and r, which is not exact for large n."""
    n = _whole(v, _shifted(v, x, times))
    return n, v.fma(n, v.constant(-math.log(2) / times, x.kind), x)


def _shifted(v: Vectors, x: Vector, times: float) -> Vector:
    return v.fma(x, v.constant(times / math.log(2), x.kind), _large(v, x.kind))


def _whole(v: Vectors, shifted: Vector) -> Vector:
    return v.sub(shifted, _large(v, shifted.kind))


def _large(v: Vectors, kind: str) -> Vector:
    """The shift 1.5 * 2^mantissa: adding it rounds to an integer."""
    return v.constant(1.5 * 2.0 ** FLOAT_BITS[kind].mantissa, kind)


def _rest(v: Vectors, x: Vector, n: Vector, times: float) -> Vector:
    table = EXPONENTIAL[x.kind]
    # Cody-Waite: log(2) in two parts, each subtracted by an fma, so that r keeps all of its bits
    # although n log(2) cancels most of x.
    r = v.fma(n, v.constant(-table.log2_high / times, x.kind), x)
    return v.fma(n, v.constant(-table.log2_low / times, x.kind), r)


def _exponent(v: Vectors, shifted: Vector) -> Vector:
    """n moved into a float's exponent field: the high bits of a shifted n are shifted out."""
    form = FLOAT_BITS[shifted.kind]
    return v.binary("shl", bits_of(v, shifted), v.constant(form.mantissa, form.integer))


def expm1(v: Vectors, x: Vector) -> Vector:
    """e^x - 1 = 2 (2^(n-1) (e^r - 1) + 2^(n-1) - 1/2), exact near 0."""
    form, table = FLOAT_BITS[x.kind], EXPONENTIAL[x.kind]
    shifted, r = reduced(v, at_most(v, at_least(v, x, -2 * table.one), table.overflow))
    rest = v.mul(r, horner(v, r, table.series))
    minus = v.fma(rest, r, r)
    # 2^(n - 1), whose exponent is always in range; the sum is doubled at the end.
    scale = float_of(v, v.add(_exponent(v, shifted), v.constant(form.power(-1), form.integer)))
    half = v.fma(minus, scale, v.sub(scale, v.constant(0.5, x.kind)))
    # There e^x - 1 rounds to x; the formula would lose the sign of -0.
    tiny = 2.0 ** -(form.mantissa + 2)
    return where(v, "olt", magnitude(v, x), tiny, x, v.add(half, half))


def tanh(v: Vectors, x: Vector) -> Vector:
    """tanh(x): a series near 0, and 1 - 2e / (1 + e) with e = e^-2|x| farther away."""
    table = EXPONENTIAL[x.kind]
    size = magnitude(v, x)
    # Beyond `one` tanh rounds to 1, and e^-2x must stay a normal number for `normal_power`.
    twice = v.mul(at_most(v, size, table.one), v.constant(-2.0, x.kind))
    doubled = normal_power(v, twice, 1)
    far = quotient(v, doubled, v.fma(doubled, v.constant(0.5, x.kind), v.constant(1.0, x.kind)))
    far = v.sub(v.constant(1.0, x.kind), far)
    near = odd_series(v, size, table.tanh)
    return with_sign(v, where(v, "olt", size, _NEAR_TANH, near, far), x)


def sinh(v: Vectors, x: Vector) -> Vector:
    """(e^x - e^-x) / 2; a series near 0."""
    size = magnitude(v, x)
    # e^x / 2, since e^x alone would overflow where sinh does not yet.
    half = normal_power(v, at_most(v, size, EXPONENTIAL[x.kind].overflow + 1), -1)
    # e^-x / 2 is 1/4 over e^x / 2: one exponential for both.
    far = v.sub(half, v.div(v.constant(0.25, x.kind), half))
    near = odd_series(v, size, EXPONENTIAL[x.kind].sinh)
    return with_sign(v, where(v, "olt", size, 1.0, near, far), x)


def cosh(v: Vectors, x: Vector) -> Vector:
    """(e^x + e^-x) / 2."""
    size = at_most(v, magnitude(v, x), EXPONENTIAL[x.kind].overflow + 1)
    half = normal_power(v, size, -1)
    return v.add(half, v.div(v.constant(0.25, x.kind), half))
