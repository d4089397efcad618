"""Special functions in f64, to a few units in the last place, with numpy alone."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from weft.ir.types import Array

# B(2k) / (2k)!, which the Euler-Maclaurin formula needs
_EULER_MACLAURIN = tuple(
    bernoulli / math.factorial(2 * k)
    for k, bernoulli in enumerate(
        (
            1 / 6,
            -1 / 30,
            1 / 42,
            -1 / 30,
            5 / 66,
            -691 / 2730,
            7 / 6,
            -3617 / 510,
            43867 / 798,
            -174611 / 330,
            854513 / 138,
            -236364091 / 2730,
        ),
        1,
    )
)


def _each(function: object) -> np.ufunc:
    return np.frompyfunc(function, 1, 1)  # type: ignore[call-overload, no-any-return]


def erf(x: Array) -> Array:
    """The error function."""
    return np.asarray(_each(math.erf)(x), np.float64)


def erfc(x: Array) -> Array:
    """1 - erf(x)."""
    return np.asarray(_each(math.erfc)(x), np.float64)


def erf_inv(x: Array) -> Array:
    """The number whose error function is x."""
    size = np.abs(x)
    inside = np.where(size < 1, size, 0.5)
    tail = -np.log1p(-inside * inside)  # Winitzki's estimate, good to 2 parts in a thousand
    half = 2 / (math.pi * 0.147) - tail / 2
    found = np.sqrt(np.sqrt(half * half + tail / 0.147) - half)
    slope = 2 / math.sqrt(math.pi)
    for _ in range(4):
        left = erf(found) - inside
        right = (1 - inside) - erfc(found)  # it keeps its digits where erf is near 1
        step = np.where(inside < 0.5, left, right) / (slope * np.exp(-found * found))
        found = found - step / (1 + found * step)  # Halley's step
    found = np.where(size < 1, found, np.where(size == 1, np.inf, np.nan))
    return np.where(x == 0, x, np.copysign(found, x))


def zeta(x: Array, q: Array) -> Array:
    """Hurwitz's zeta function: the sum of (q + k)^-x over k = 0, 1, ..."""
    x, q = np.broadcast_arrays(x, q)
    count = np.maximum(np.floor(-q) + 1, 0)  # of the terms with negative q + k
    first = np.where(count > 0, q + count, q)
    # Their sum, from the far end on, is a difference of two such functions.
    mirrored = _zeta(x, np.where(count > 0, 1 - first, 1.0)) - _zeta(
        x, np.where(count > 0, 1 - q, 1.0)
    )
    parity = np.where(x % 2 == 0, 1.0, -1.0)
    total = _zeta(x, np.where(first > 0, first, 1.0))
    total = np.where(count > 0, total + parity * mirrored, total)
    pole = (q <= 0) & (q == np.floor(q))
    total = np.where(pole, np.where(x % 2 == 0, np.inf, np.nan), total)
    total = np.where((q <= 0) & (x != np.floor(x)), np.nan, total)
    total = np.where(np.isnan(x) | np.isnan(q) | (x < 1), np.nan, total)
    return np.where(x == 1, np.inf, total)


def _zeta(x: Array, q: Array) -> Array:
    """Zeta for x > 1 and q > 0, by the Euler-Maclaurin formula from the twelfth term on."""
    terms = [np.power(q + k, -x) for k in range(12)]
    start = q + 12
    power = np.power(start, -x)
    terms += [start * power / (x - 1), power / 2]
    factor = x * power / start
    for k, coefficient in enumerate(_EULER_MACLAURIN):
        terms.append(coefficient * factor)
        factor = factor * ((x + 2 * k + 1) / start) * ((x + 2 * k + 2) / start)
    total = np.zeros(x.shape)
    for term in reversed(terms):
        total = total + np.where(np.isnan(term) & (power == 0), 0, term)
    return total


@cache
def _zeta_at(x: int, q: float) -> float:
    return float(zeta(np.array(float(x)), np.array(q)))


def polygamma(n: Array, x: Array) -> Array:
    """The n-th derivative of digamma."""
    n, x = np.broadcast_arrays(n, x)
    valid = (n >= 0) & (n == np.floor(n))
    order = np.where(valid & (n > 0), n, 1.0)
    factorial = np.asarray(_each(_gamma)(order + 1), np.float64)
    sign = np.where(order % 2 == 0, -1.0, 1.0)
    found = np.where(n == 0, digamma(x), sign * factorial * zeta(order + 1, x))
    return np.where(valid, found, np.nan)


def _gamma(x: float) -> float:
    return math.gamma(x) if x < 171.6 else math.inf


_ROOT, _ROOT_TAIL = 1.4616321449683623, 9.549995429965697e-17  # the positive root of digamma


def digamma(x: Array) -> Array:
    """The derivative of lgamma; NaN at 0, -1, -2, ..."""
    negative = x < 0
    size = np.where(negative, 1 - x, x)
    found = np.where(np.abs(size - _ROOT) < 0.8, _digamma_near_root(size), _digamma(size))
    turn = x - np.rint(x)
    found = np.where(negative, found - np.pi / np.tan(np.pi * turn), found)
    pole = (x <= 0) & (x == np.floor(x))
    return np.where(pole, np.nan, found)


def _digamma(x: Array) -> Array:
    """Digamma for x >= 0: up to x >= 10 by its recurrence, then by its asymptotic series."""
    total = np.zeros(x.shape)
    x = np.array(x)
    for _ in range(10):
        low = x < 10
        total = total - np.where(low, 1 / x, 0)
        x = x + low
    square = 1 / (x * x)
    series = np.zeros(x.shape)
    for k in range(9, -1, -1):
        bernoulli = _EULER_MACLAURIN[k] * math.factorial(2 * k + 2)
        series = (series + bernoulli / (2 * k + 2)) * square
    return np.where(np.isposinf(x), x, (np.log(x) - (1 / (2 * x) + series)) + total)


def _digamma_near_root(x: Array) -> Array:
    """Taylor's series at the root, whose coefficients are values of zeta."""
    away = (x - _ROOT) - _ROOT_TAIL
    total = np.zeros(x.shape)
    for k in range(64, 0, -1):
        coefficient = _zeta_at(k + 1, _ROOT)
        total = (total + (coefficient if k % 2 else -coefficient)) * away
    return total


def lgamma(x: Array) -> Array:
    """log|gamma(x)|; infinite at 0, -1, -2, ... and at both infinities."""
    near = (x > 0.5) & (x < 8)
    return np.where(near, _lgamma_near(np.where(near, x, 1.0)), _each(_lgamma)(x)).astype(
        np.float64
    )


def _lgamma(x: float) -> float:
    if math.isnan(x):
        return x
    if math.isinf(x) or x > 2.5e305 or (x <= 0 and x == math.floor(x)):
        return math.inf
    return math.lgamma(x)


def _lgamma_near(x: Array) -> Array:
    """Taylor's series at the root 2: up from the root 1, and down from greater numbers."""
    product = np.ones(x.shape)
    for _ in range(6):
        greater = x > 2.5
        product = np.where(greater, product * (x - 1), product)
        x = np.where(greater, x - 1, x)
    less = x < 1.5
    away = np.where(less, x - 1, x - 2)
    total = np.zeros(x.shape)
    for k in range(30, 1, -1):
        coefficient = _zeta_at(k, 2.0) / k
        total = (total + (-coefficient if k % 2 else coefficient)) * away
    total = (total + (1 - np.euler_gamma)) * away
    return np.log(product) + np.where(less, total - np.log1p(away), total)


def bessel_i1e(x: Array) -> Array:
    """exp(-|x|) times the modified Bessel function of the first kind and order 1."""
    size = np.abs(x)
    return np.copysign(
        np.where(size < 20, _bessel_series(np.minimum(size, 20)), _bessel_far(size)), x
    )


def _bessel_series(x: Array) -> Array:
    """The power series, all of whose terms are positive."""
    quarter = x * x / 4
    total = np.zeros(x.shape)
    for k in range(50, 0, -1):
        total = (total + 1) * quarter / (k * (k + 1))
    return np.exp(-x) * (x / 2) * (1 + total)


def _bessel_far(x: Array) -> Array:
    """The asymptotic series."""
    x = np.maximum(x, 20.0)
    total = np.ones(x.shape)
    for k in range(30, 0, -1):
        total = 1 - total * (4 - (2 * k - 1) ** 2) / (8 * k * x)
    return total / np.sqrt(2 * np.pi * x)
