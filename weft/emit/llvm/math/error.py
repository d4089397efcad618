"""The error function, its complement and inverse, of vectors in f32 and f64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from weft.emit.llvm.math.exponential import (
    doubled_series,
    normal_power,
    reduced,
    scaled,
)
from weft.emit.llvm.math.logarithm import log1p
from weft.emit.llvm.math.polynomial import (
    at_least,
    at_most,
    horner,
    magnitude,
    quotient,
    where,
    with_sign,
)
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.ops.numerics import special_functions
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class ErrorFunction:
    """Constants of erf and erfc for a float type."""

    near: tuple[float, ...]  # of erf(x) / x - 1 up to 1, in x^2
    middle: float  # the x where t = (x - middle) / (x + middle) is 0
    far: tuple[float, ...]  # of (1 + 2x) e^(x^2) erfc(x), in t
    zero: float  # above, erfc is 0


# fmt: off
_TABLE = {
    "float": ErrorFunction(
        (
            0.12837916612625122, -0.3761262595653534, 0.11283578723669052, -0.026853347197175026,
            0.005187162198126316, -0.0007997852517291903, 7.806897338014096e-05,
        ),
        2.0,
        (
            1.2769783735275269, -0.0927639827132225, -0.16603142023086548, 0.16405534744262695,
            -0.054204296320676804, -0.00805987510830164, 0.008631679229438305,
            0.0013135221088305116, -0.0012299257796257734, -0.0004005757800769061,
        ),
        10.2,
    ),
    "double": ErrorFunction(
        (
            0.1283791670955126, -0.3761263890318375, 0.11283791670954862, -0.026866170645073604,
            0.005223977624786467, -0.0008548326979016245, 0.00012055331045670586,
            -1.4925593695769093e-05, 1.6460975574250313e-06, -1.635005213406429e-07,
            1.4658048011439302e-08, -1.1366274280057438e-09, 5.946230456616339e-11,
        ),
        4.0,
        (
            1.2329951186255526, -0.13962111684056322, 0.01537965210260673, 0.06809705425476754,
            -0.10103906603559067, 0.09373283499606354, -0.06633036582768959, 0.03716751556810567,
            -0.01619773388403771, 0.005031969766549406, -0.0007577744326834352,
            -0.0001992559131374942, 0.00015062636452588762, -2.440056181451372e-05,
            -1.1234246202029609e-05, 5.709550631570594e-06, 3.1381048372109003e-07,
            -8.204333256750535e-07, 5.5127828662389705e-08, 1.016033681884269e-07,
            -7.98303707113696e-09, -8.368888002165294e-09,
        ),
        27.5,
    ),
}
_LOGARITHM = (  # of -log(erfc(x)) from 1 to 4
    0.00034158528433181345, 1.1270889043807983, 0.6381452679634094, 0.10310638695955276,
    -0.021837888285517693, 0.0029476138297468424, -0.0001863746001617983,
)
# fmt: on
# The pieces of the inverse, from the last: the depth below which each holds, whether it is in the
# depth's square root, the origin of its polynomial, and the polynomial.
ErrorPiece: TypeAlias = tuple[float | None, bool, float, tuple[float, ...]]
_INVERSE: dict[str, tuple[ErrorPiece, ...]] = {
    "float": (
        (None, True, 3.0, special_functions.ERF_INV_TAIL_32),
        (5.0, False, 2.5, special_functions.ERF_INV_CENTRE_32),
    ),
    "double": (
        (None, True, 5.0, special_functions.ERF_INV_TAIL_64),
        (16.0, True, 3.25, special_functions.ERF_INV_SHOULDER_64),
        (6.25, False, 3.125, special_functions.ERF_INV_CENTRE_64),
    ),
}


def erf(v: Vectors, x: Vector) -> Vector:
    """The error function: a series up to 1, and 1 - erfc(|x|) above."""
    size = magnitude(v, x)
    near = _erf_near(v, size)
    if x.kind == "float":
        # Beyond 4 erf rounds to 1 in f32; the polynomial is not fitted there, so x is clamped. The
        # error of e^-p is relative to erfc, which is small against 1.
        logarithm = horner(v, at_most(v, size, 4.0), _LOGARITHM)
        rest = normal_power(v, v.neg(logarithm))
    else:
        rest = _erfc(v, size)
    far = v.sub(v.constant(1.0, x.kind), rest)
    return with_sign(v, where(v, "olt", size, 1.0, near, far), x)


def _erf_near(v: Vectors, x: Vector) -> Vector:
    return v.fma(x, horner(v, v.mul(x, x), _TABLE[x.kind].near), x)


def erfc(v: Vectors, x: Vector) -> Vector:
    """1 - erf(x)."""
    # Below -6.5 it is 2; powers that cannot change that may be subnormal, thus slow.
    x = at_least(v, x, -6.5)
    size = magnitude(v, x)
    far = _erfc(v, size)
    far = where(v, "olt", x, 0.0, v.sub(v.constant(2.0, x.kind), far), far)
    near = v.sub(v.constant(1.0, x.kind), _erf_near(v, x))
    return where(v, "olt", size, 0.5, near, far)


def _erfc(v: Vectors, size: Vector) -> Vector:
    """erfc(x) for x >= 1/2: e^(-x^2) times a polynomial of t by 1 + 2x, each in two parts."""
    table, one = _TABLE[size.kind], v.constant(1.0, size.kind)
    # Clamped: the square of a huge x would overflow, and inf - inf in the reduction be NaN.
    x = at_most(v, size, table.zero)
    minus = v.neg(v.mul(x, x))
    shifted, r = reduced(v, minus)
    # x^2 rounded is `minus`; its rounding error, which the fma gives exactly, is moved into r. An
    # error of half an ulp of x^2 would be an error of x^2 half ulps in e^(-x^2).
    r = v.sub(r, v.fma(x, x, minus))
    power, power_rest = _two_parts(v, r, [2.0, *doubled_series(x.kind)])
    middle = v.constant(table.middle, x.kind)
    t = quotient(v, v.sub(x, middle), v.add(x, middle))
    above, above_rest = _two_parts(v, t, table.far)
    below = v.fma(x, v.constant(2.0, x.kind), one)
    # The rounding error of 1 + 2x: below + below_rest is exact.
    below_rest = v.sub(one, v.fma(x, v.constant(-2.0, x.kind), below))
    inverse = quotient(v, one, below)
    ratio = v.mul(above, inverse)
    # One step of division with remainder: what above / below lost is divided once more.
    left = v.add(v.fma(v.neg(ratio), below, above), above_rest)
    ratio_rest = v.mul(inverse, v.fma(v.neg(ratio), below_rest, left))
    rest = v.fma(power, ratio_rest, v.mul(power_rest, ratio))
    return scaled(v, minus, shifted, v.fma(power, ratio, rest))


def _two_parts(v: Vectors, x: Vector, series: Sequence[float]) -> tuple[Vector, Vector]:
    """A polynomial, and the rounding error of its last step."""
    first = v.constant(series[0], x.kind)
    most = horner(v, x, series[1:])
    # The first term is the largest: first - whole loses next to nothing, and the fma below gives
    # what the rounding of `whole` dropped.
    whole = v.fma(most, x, first)
    return whole, v.fma(most, x, v.sub(first, whole))


def erf_inv(v: Vectors, x: Vector) -> Vector:
    """The inverse of erf: polynomials of log(1 - x^2) or its root (Giles, 2010)."""
    # log1p, not log of 1 - x^2: near 0 the difference would round to 1, and the result to 0.
    depth = v.neg(log1p(v, v.neg(v.mul(x, x))))
    root = v.intrinsic("sqrt", depth)
    ratio = v.constant(0.0, x.kind)
    for limit, of_root, origin, coefficients in _INVERSE[x.kind]:
        shifted = v.sub(root if of_root else depth, v.constant(origin, x.kind))
        value = horner(v, shifted, coefficients[::-1])
        ratio = value if limit is None else where(v, "olt", depth, limit, value, ratio)
    # At +-1 the depth is infinite and the polynomial inf - inf.
    infinite = with_sign(v, v.constant(math.inf, x.kind), x)
    return where(v, "oeq", magnitude(v, x), 1.0, infinite, v.mul(ratio, x))
