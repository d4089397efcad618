"""lgamma, digamma and a Bessel function, of vectors, computed in f64."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.emit.llvm.math.circular import sin_cos
from weft.emit.llvm.math.hyperbolic import in_double
from weft.emit.llvm.math.logarithm import log, log1p
from weft.emit.llvm.math.polynomial import magnitude, where, with_sign
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.ops.numerics.special_functions import (
    I1E_FAR_64,
    I1E_NEAR_64,
    LANCZOS,
    LANCZOS_BASE,
    LANCZOS_SHIFT,
)


def _number(v: Vectors, value: float) -> Vector:
    return v.constant(value, "double")


def _lgamma(v: Vectors, x: Vector) -> Vector:
    """log|gamma(x)|, by Lanczos' series, and the reflection formula below 1/2."""
    z = _mirrored(v, x)
    series = _number(v, LANCZOS_BASE)
    for k, coefficient in enumerate(LANCZOS, 1):
        series = v.add(series, v.div(_number(v, coefficient), v.add(z, _number(v, k))))
    shifted = _log_shifted(v, z)
    moved = v.add(z, _number(v, LANCZOS_SHIFT + 0.5))
    # (z + 1/2) log(t) - t as a product with log(t): the first term alone could overflow.
    body = v.sub(v.add(z, _number(v, 0.5)), v.div(moved, shifted))
    gamma = v.fma(body, shifted, v.add(_number(v, math.log(2 * math.pi) / 2), log(v, series)))
    size = magnitude(v, x)
    # sin(pi x) depends on the distance to the next integer alone; reduced before the product with
    # pi, whose rounding would shift the zeros of the sine.
    fraction = v.sub(size, v.intrinsic("floor", size))
    other = v.sub(_number(v, 1.0), fraction)
    fraction = where(v, "ogt", fraction, 0.5, other, fraction)
    sine, _ = sin_cos(v, v.mul(fraction, _number(v, math.pi)))
    sine = log(v, sine)
    whole = v.sub(v.sub(_number(v, math.log(math.pi)), sine), gamma)
    # At the poles 0, -1, ... the sine is 0 and its logarithm -inf: +inf is returned directly, since
    # the formula could have inf - inf.
    finite = v.compare("olt", magnitude(v, sine), _number(v, math.inf))
    reflected = v.select(finite, whole, v.neg(sine))
    gamma = where(v, "olt", x, 0.5, reflected, gamma)
    return where(v, "oeq", size, math.inf, size, gamma)


def _digamma(v: Vectors, x: Vector) -> Vector:
    """The derivative of lgamma; NaN at 0, -1, -2, ..."""
    z = _mirrored(v, x)
    top, bottom = _number(v, 0.0), _number(v, LANCZOS_BASE)
    for k, coefficient in enumerate(LANCZOS, 1):
        place = v.add(z, _number(v, k))
        term = v.div(_number(v, coefficient), place)
        top = v.sub(top, v.div(term, place))
        bottom = v.add(bottom, term)
    moved = v.add(z, _number(v, LANCZOS_SHIFT + 0.5))
    body = v.sub(_log_shifted(v, z), v.div(_number(v, LANCZOS_SHIFT), moved))
    body = v.add(body, v.div(top, bottom))
    # x + |round(x)| for negative x: the same tangent, since its period is 1, of a small argument.
    nearest = magnitude(v, v.intrinsic("floor", v.add(x, _number(v, 0.5))))
    pi = _number(v, math.pi)
    sine, cosine = sin_cos(v, v.mul(pi, v.add(x, nearest)))
    reflected = v.sub(body, v.div(v.mul(pi, cosine), sine))
    found = where(v, "olt", x, 0.5, reflected, body)
    whole = v.compare("oeq", x, v.intrinsic("floor", x))
    pole = v.binary("and", whole, v.compare("ole", x, _number(v, 0.0)))
    return v.select(pole, _number(v, math.nan), found)


def _mirrored(v: Vectors, x: Vector) -> Vector:
    """x - 1, or -x where x < 1/2: the reflection formula gives the rest."""
    return where(v, "olt", x, 0.5, v.neg(x), v.sub(x, _number(v, 1.0)))


def _log_shifted(v: Vectors, z: Vector) -> Vector:
    """log(z + g + 1/2)."""
    shift = LANCZOS_SHIFT + 0.5
    # As XLA computes it: accurate for small z.
    return v.add(_number(v, math.log(shift)), log1p(v, v.mul(z, _number(v, 1 / shift))))


def _bessel_i1e(v: Vectors, x: Vector) -> Vector:
    """exp(-|x|) times the modified Bessel function of the first kind and order 1."""
    size = magnitude(v, x)
    two = _number(v, 2.0)
    # Cephes' two Chebyshev series, of x/2 - 2 on [0, 8] and of 32/x - 2 beyond.
    near = _chebyshev(v, v.fma(size, _number(v, 0.5), v.neg(two)), I1E_NEAR_64)
    far = _chebyshev(v, v.sub(v.div(_number(v, 32.0), size), two), I1E_FAR_64)
    far = v.div(far, v.intrinsic("sqrt", size))
    found = where(v, "ole", size, 8.0, v.mul(size, near), far)
    return where(v, "oeq", x, 0.0, size, with_sign(v, found, x))


def _chebyshev(v: Vectors, x: Vector, coefficients: Sequence[float]) -> Vector:
    """Clenshaw's recurrence, the highest term first."""
    before = last = now = _number(v, 0.0)
    for coefficient in coefficients:
        before, last = last, now
        now = v.fma(x, last, v.sub(_number(v, coefficient), before))
    return v.mul(v.sub(now, before), _number(v, 0.5))


lgamma = in_double(_lgamma)
digamma = in_double(_digamma)
bessel_i1e = in_double(_bessel_i1e)
