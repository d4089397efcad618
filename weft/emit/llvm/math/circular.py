"""Sine, cosine, tangent and their inverses, of vectors in f32 and f64."""

from __future__ import annotations

import math

from weft.emit.llvm.math.libm_fallback import with_libm_fallback
from weft.emit.llvm.math.polynomial import (
    FLOAT_BITS,
    bits_of,
    float_of,
    horner,
    magnitude,
    odd_series,
    where,
    with_sign,
)
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Circular:
    """Constants of the circular functions for a float type."""

    half_pi: tuple[float, float, float]  # in three parts: Cody-Waite reduction
    limit: float  # valid range of that reduction
    sine: tuple[float, ...]  # of (sin(x) - x) / x^3, in x^2
    cosine: tuple[float, ...]  # of (cos(x) - 1 + x^2 / 2) / x^4, in x^2
    arc_sine: tuple[float, ...]  # of (asin(x) - x) / x^3, in x^2, up to 0.541
    arc_tangent: tuple[float, ...]  # of (atan(x) - x) / x^3, in x^2


# fmt: off
_TABLE = {
    "float": Circular(
        (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15),
        200000.0,
        (-0.1666666716337204, 0.008333377540111542, -0.0001985206181416288, 2.8202393878018484e-06),
        (0.04166664183139801, -0.0013887130189687014, 2.4412094717263244e-05),
        (
            0.1666664481163025, 0.07501400262117386, 0.04434862360358238, 0.033170729875564575,
            0.009471317753195763, 0.044209085404872894,
        ),
        (  # up to 1
            -0.33333298563957214, 0.1999852955341339, -0.14264015853405, 0.10950879752635956,
            -0.08399295061826706, 0.05788086727261543, -0.03109593875706196, 0.010867735370993614,
            -0.0017824999522417784,
        ),
    ),
    "double": Circular(
        (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33),
        2.0**40,
        (
            -0.16666666666666666, 0.008333333333333042, -0.00019841269840962483,
            2.7557319073982833e-06, -2.5052070918407316e-08, 1.6054310252426861e-10,
            -7.389356988878418e-13,
        ),
        (
            0.041666666666666595, -0.0013888888888873307, 2.480158728896515e-05,
            -2.755731420302191e-07, 2.0875703126553614e-09, -1.1358616059156921e-11,
        ),
        (
            0.16666666666666546, 0.07500000000036117, 0.044642857104902046, 0.030381946457502584,
            0.022372095920556823, 0.017354043717288308, 0.01394724116211588, 0.011721385201935447,
            0.008600958023764965, 0.014037206574273781, -0.011926298386938717,
            0.05063680951111026, -0.05726901350065163, 0.050403531726044296,
        ),
        (  # up to tan(pi / 8)
            -0.33333333333333326, 0.19999999999997098, -0.14285714285317072, 0.11111111083804902,
            -0.0909090798850671, 0.07692279269897354, -0.06666175800992477, 0.058765281412713956,
            -0.05215259656745067, 0.04490891544741069, -0.03318266659028056, 0.014901646544469183,
        ),
    ),
}
# fmt: on


def sin(v: Vectors, x: Vector) -> Vector:
    """sin(x)."""
    n, r = _quarter(v, x)
    found = _signed(v, n, v.select(_is_odd(v, n), _cosine(v, r), _sine(v, r)))
    return _far(v, "sin", x, where(v, "oeq", x, 0.0, x, found))


def cos(v: Vectors, x: Vector) -> Vector:
    """cos(x) = sin(x + pi / 2)."""
    n, r = _quarter(v, x)
    value = v.select(_is_odd(v, n), _sine(v, r), _cosine(v, r))
    following = v.add(n, v.constant(1, n.kind))
    return _far(v, "cos", x, _signed(v, following, value))


def tan(v: Vectors, x: Vector) -> Vector:
    """sin(x) / cos(x), in f64."""
    if x.kind == "float":
        return v.cast("fptrunc", tan(v, v.cast("fpext", x, "double")), "float")
    n, r = _quarter(v, x)
    sine, cosine, odd = _sine(v, r), _cosine(v, r), _is_odd(v, n)
    above = v.select(odd, v.neg(cosine), sine)
    found = v.div(above, v.select(odd, sine, cosine))
    return _far(v, "tan", x, where(v, "oeq", x, 0.0, x, found))


def sin_cos(v: Vectors, x: Vector) -> tuple[Vector, Vector]:
    """sin(x) and cos(x) for x that is not large."""
    n, r = _quarter(v, x)
    sine, cosine, odd = _sine(v, r), _cosine(v, r), _is_odd(v, n)
    following = v.add(n, v.constant(1, n.kind))
    found = _signed(v, n, v.select(odd, cosine, sine))
    return found, _signed(v, following, v.select(odd, sine, cosine))


def _quarter(v: Vectors, x: Vector) -> tuple[Vector, Vector]:
    """An integer whose last bits are those of n, and r: x = n pi / 2 + r, with |r| <= pi / 4."""
    table = _TABLE[x.kind]
    large = v.constant(1.5 * 2.0 ** FLOAT_BITS[x.kind].mantissa, x.kind)
    # The addition rounds to an integer, whose last bits are then the last bits of the float: no
    # conversion to an integer is needed to know the quadrant.
    shifted = v.fma(x, v.constant(2 / math.pi, x.kind), large)
    n = v.sub(shifted, large)
    r = x
    # pi / 2 in three parts, each subtracted by an fma, whose product is exact.
    for part in table.half_pi:
        r = v.fma(n, v.constant(-part, x.kind), r)
    return bits_of(v, shifted), r


def _is_odd(v: Vectors, n: Vector) -> Vector:
    return v.compare("ne", v.binary("and", n, v.constant(1, n.kind)), v.constant(0, n.kind))


def _signed(v: Vectors, n: Vector, x: Vector) -> Vector:
    """-x where the second bit of n is set."""
    second = v.binary("and", n, v.constant(2, n.kind))
    # Bit 1 becomes the sign bit.
    sign = v.binary("shl", second, v.constant(n.bits - 2, n.kind))
    return float_of(v, v.binary("xor", bits_of(v, x), sign))


def _sine(v: Vectors, r: Vector) -> Vector:
    return odd_series(v, r, _TABLE[r.kind].sine)


def _cosine(v: Vectors, r: Vector) -> Vector:
    square = v.mul(r, r)
    rest = v.mul(v.mul(square, square), horner(v, square, _TABLE[r.kind].cosine))
    half = v.mul(square, v.constant(0.5, r.kind))
    one = v.constant(1.0, r.kind)
    most = v.sub(one, half)
    # The rounding error of 1 - r^2 / 2, added back: it is up to half an ulp.
    lost = v.sub(v.sub(one, most), half)
    return v.add(most, v.add(rest, lost))


def _far(v: Vectors, name: str, x: Vector, near: Vector) -> Vector:
    """Large arguments, beyond the Cody-Waite range, use libm."""
    far = v.compare("ogt", magnitude(v, x), v.constant(_TABLE[x.kind].limit, x.kind))
    return with_libm_fallback(v, far, name, near, x)


# Inverses


def atan2(v: Vectors, y: Vector, x: Vector) -> Vector:
    """The angle of the point (x, y)."""
    steep = v.compare("ogt", magnitude(v, y), magnitude(v, x))
    low = v.select(steep, magnitude(v, x), magnitude(v, y))
    high = v.select(steep, magnitude(v, y), magnitude(v, x))
    ratio = v.div(low, high)
    ratio = v.select(v.compare("oeq", low, high), v.constant(1.0, x.kind), ratio)  # of infinities
    # atan2(0, 0) is 0 or pi by the signs alone; 0 / 0 would be NaN.
    ratio = where(v, "oeq", high, 0.0, high, ratio)
    # By the sign bit, not x < 0: atan2(0, -0.0) is pi.
    left = v.compare("slt", bits_of(v, x), v.constant(0, FLOAT_BITS[x.kind].integer))
    # Angles from the positive axis: r, pi / 2 - r, pi / 2 + r, pi - r.
    angle = _arc_tangent(v, ratio)
    angle = v.select(v.binary("xor", steep, left), v.neg(angle), angle)
    # The small part first: added to the angle it survives, added after the large one it would not.
    for part in reversed(_TABLE[x.kind].half_pi[:2]):
        half, whole, none = (v.constant(n * part, x.kind) for n in (1, 2, 0))
        base = v.select(steep, half, v.select(left, whole, none))
        angle = v.add(base, angle)
    angle = v.select(v.compare("uno", x, y), v.add(x, y), angle)
    return with_sign(v, angle, y)


def atan(v: Vectors, x: Vector) -> Vector:
    """The arc tangent."""
    size = magnitude(v, x)
    steep = v.compare("ogt", size, v.constant(1.0, x.kind))
    ratio = v.select(steep, v.div(v.constant(1.0, x.kind), size), size)
    angle = _arc_tangent(v, ratio)
    return with_sign(v, v.select(steep, _from(v, math.pi / 2, angle), angle), x)


def _from(v: Vectors, whole: float, x: Vector) -> Vector:
    """whole - x, for a multiple of pi in two parts."""
    high, low, _ = _TABLE[x.kind].half_pi
    times = round(whole / (math.pi / 2))
    rest = v.sub(v.constant(times * low, x.kind), x)
    return v.add(v.constant(times * high, x.kind), rest)


def _arc_tangent(v: Vectors, x: Vector) -> Vector:
    """atan(x) for 0 <= x <= 1; in f64 that of (x - 1) / (x + 1) above tan(pi / 8)."""
    table = _TABLE[x.kind]
    if x.kind == "float":
        return odd_series(v, x, table.arc_tangent)
    one = v.constant(1.0, x.kind)
    upper = v.compare("ogt", x, v.constant(math.sqrt(2) - 1, x.kind))
    turned = v.select(upper, v.div(v.sub(x, one), v.add(x, one)), x)
    angle = odd_series(v, turned, table.arc_tangent)
    return v.select(upper, v.add(angle, v.constant(math.pi / 4, x.kind)), angle)


def asin(v: Vectors, x: Vector) -> Vector:
    """The arc sine: a series up to 0.541, above it pi / 2 - 2 asin(sqrt((1 - x) / 2))."""
    size = magnitude(v, x)
    near, angle = _arc_sine(v, size)
    found = v.select(near, angle, _from(v, math.pi / 2, v.add(angle, angle)))
    return with_sign(v, found, x)


def acos(v: Vectors, x: Vector) -> Vector:
    """The arc cosine."""
    near, angle = _arc_sine(v, magnitude(v, x))
    middle = _from(v, math.pi / 2, with_sign(v, angle, x))
    twice = v.add(angle, angle)
    outer = where(v, "olt", x, 0.0, _from(v, math.pi, twice), twice)
    return v.select(near, middle, outer)


def _arc_sine(v: Vectors, size: Vector) -> tuple[Vector, Vector]:
    """Whether x is at most 0.541, and the arc sine of it, or of sqrt((1 - x) / 2).

    There the second is below 1/2, so that twice it has no larger error than the result.
    """
    half = v.constant(0.5, size.kind)
    near = v.compare("ole", size, v.constant(0.541, size.kind))
    root = v.intrinsic("sqrt", v.mul(v.sub(v.constant(1.0, size.kind), size), half))
    return near, odd_series(v, v.select(near, size, root), _TABLE[size.kind].arc_sine)
