"""Functions of complex numbers that numpy lacks or rounds badly, on complex128 arrays."""

from __future__ import annotations

import numpy as np

from weft.ir.types import Array
from weft.ops.numerics.arithmetic import pair, to_double

_UNKNOWN = complex(np.nan, np.nan)  # the limit of an infinite angle, of which numpy handles a part


def divide(lhs: Array, rhs: Array) -> Array:
    """The quotient, without needless overflow; infinities are kept (C, annex G)."""
    lhs, rhs = to_double(lhs), to_double(rhs)
    # A divisor scaled by a power of two is exact, and its square neither overflows nor vanishes.
    shift = -_exponent(rhs)
    scaled = lhs / pair(np.ldexp(rhs.real, shift), np.ldexp(rhs.imag, shift))
    quotient = pair(np.ldexp(scaled.real, shift), np.ldexp(scaled.imag, shift))
    lost = np.isnan(quotient.real) & np.isnan(quotient.imag)
    return np.where(lost, _divide_special(lhs, rhs), quotient)


def _divide_special(lhs: Array, rhs: Array) -> Array:
    """The quotients of zeros and infinities that plain arithmetic makes NaN."""
    plain = pair(lhs.real * np.nan, lhs.imag * np.nan)
    zero = (rhs == 0) & ~(np.isnan(lhs.real) & np.isnan(lhs.imag))
    infinity = np.copysign(np.inf, rhs.real)
    by_zero = pair(infinity * lhs.real, infinity * lhs.imag)
    a, b = _unit(lhs), _unit(rhs)
    turned = pair(a.real * b.real + a.imag * b.imag, a.imag * b.real - a.real * b.imag)
    large = _infinite(lhs) & np.isfinite(rhs)
    small = np.isfinite(lhs) & _infinite(rhs)
    found = np.where(large, pair(np.inf * turned.real, np.inf * turned.imag), plain)
    found = np.where(small, pair(0 * turned.real, 0 * turned.imag), found)
    return np.where(zero, by_zero, found)


def _infinite(z: Array) -> Array:
    return np.asarray(np.isinf(z.real) | np.isinf(z.imag))


def _unit(z: Array) -> Array:
    """Infinite parts replaced by 1 and finite ones by 0, with their signs."""
    parts = [np.copysign(np.isinf(p).astype(np.float64), p) for p in (z.real, z.imag)]
    return np.where(_infinite(z), pair(parts[0], parts[1]), z)


def _exponent(z: Array) -> Array:
    """The exponent of the larger part; 0 for zero, infinity and NaN."""
    _, exponent = np.frexp(np.maximum(np.abs(z.real), np.abs(z.imag)))
    return np.asarray(exponent)


def sign(z: Array) -> Array:
    """z / |z|, and 0 for 0."""
    # Scaled, since |z| may overflow where its parts do not.
    shift = -_exponent(z)
    x, y = np.ldexp(z.real, shift), np.ldexp(z.imag, shift)
    size = np.hypot(x, y)
    return np.where(z == 0, 0, pair(x / size, y / size))


def exp(z: Array) -> Array:
    """e to the power of z."""
    return np.where(np.isfinite(z.imag), np.exp(z), _UNKNOWN)


def expm1(z: Array) -> Array:
    """exp(z) - 1, exact near 0."""
    power = exp(z)
    # exp(x) cos(y) - 1 = expm1(x) cos(y) + (cos(y) - 1), and cos(y) - 1 = -2 sin(y/2)^2: no term
    # cancels.
    half = np.sin(z.imag / 2)
    near = np.expm1(z.real) * np.cos(z.imag) - 2 * half * half
    return pair(np.where(np.abs(z.real) < 1, near, power.real - 1), power.imag)


def cosh(z: Array) -> Array:
    """The hyperbolic cosine."""
    return np.where(np.isinf(z.imag), _UNKNOWN, np.cosh(z))


def tan(z: Array) -> Array:
    """The tangent."""
    return np.where(np.isinf(z.real) & np.isfinite(z.imag), _UNKNOWN, np.tan(z))


def log1p(z: Array) -> Array:
    """log(1 + z), exact near 0 and wherever |1 + z| is near 1."""
    shifted = pair(1 + z.real, z.imag)
    size = np.abs(shifted)
    # log|1 + z| vanishes on the circle |1 + z| = 1: rounding 1 + z would lose its digits near it.
    middle = (size > 0.5) & (size < 2)
    far = np.log(shifted)
    return pair(np.where(middle, _log_size(z), far.real), far.imag)


def _log_size(z: Array) -> Array:
    """log|1 + z| = log1p(x^2 + y^2 + 2x) / 2, the sum carried in two floats."""
    # 2x cancels the squares where |1 + z| is near 1: only their rounding errors, which are added
    # back, are left then.
    high, low = _two_sum(*_square(z.real))
    for term in (*_square(z.imag), 2 * z.real):
        high, rest = _two_sum(high, term)
        low = low + rest
    return np.asarray(np.log1p(high + low) / 2)


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The rounded sum and its error (Knuth)."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def _square(x: Array) -> tuple[Array, Array]:
    """The rounded square and its error (Dekker)."""
    product = x * x
    wide = x * 134217729.0  # 2^27 + 1 splits a float in two halves
    high = wide - (wide - x)
    low = x - high
    return product, ((high * high - product) + 2 * high * low) + low * low


def logistic(z: Array) -> Array:
    """1 / (1 + exp(-z)), without overflow."""
    negative = z.real < 0
    small = np.exp(np.where(negative, z, -z))
    return divide(np.where(negative, small, 1), 1 + small)


def rsqrt(z: Array) -> Array:
    """1 / sqrt(z)."""
    return divide(np.ones_like(z), np.sqrt(z))


def cbrt(z: Array) -> Array:
    """The cube root whose angle is a third of the operand's."""
    size, angle = np.cbrt(np.abs(z)), np.angle(z) / 3
    return pair(size * np.cos(angle), size * np.sin(angle))


def atan2(y: Array, x: Array) -> Array:
    """-i log((x + iy) / sqrt(x^2 + y^2))."""
    turned = pair(x.real - y.imag, x.imag + y.real)
    log = np.log(divide(turned, np.sqrt(x * x + y * y)))
    return pair(log.imag, -log.real)


def square(z: Array) -> Array:
    """z z, where z may be of either complex type."""
    # Not x^2 - y^2: the squares overflow earlier, and cancel if x is near y.
    return pair((z.real - z.imag) * (z.real + z.imag) + 0.0, 2 * (z.real * z.imag))  # no -0


# Inverse functions. Their branch cuts belong to the side of positive parts: -0 counts as 0.


def asin(z: Array) -> Array:
    """The arc sine."""
    return np.asarray(np.arcsin(_upper(z)))


def acos(z: Array) -> Array:
    """The arc cosine."""
    return np.asarray(np.arccos(_upper(z)))


def acosh(z: Array) -> Array:
    """The inverse of cosh, its real part positive."""
    return np.asarray(np.arccosh(_upper(z)))


def atanh(z: Array) -> Array:
    """The inverse of tanh."""
    return np.asarray(np.arctanh(_upper(z)))


def asinh(z: Array) -> Array:
    """The inverse of sinh."""
    return np.asarray(np.arcsinh(_right(z)))


def atan(z: Array) -> Array:
    """The arc tangent."""
    return np.asarray(np.arctan(_right(z)))


def _upper(z: Array) -> Array:
    # -0.0 + 0.0 is 0.0, and nothing else changes.
    return pair(z.real, z.imag + 0.0)


def _right(z: Array) -> Array:
    return pair(z.real + 0.0, z.imag)


def asin_acos_kernel(z: Array) -> Array:
    """w with asin(z) = (atan2(x, w.real), w.imag or -w.imag by the sign of y) (Kahan, 1987)."""
    minus = np.sqrt(pair(1 - z.real, -z.imag))
    plus = np.sqrt(pair(1 + z.real, z.imag))
    real = minus.real * plus.real - minus.imag * plus.imag
    # Beyond 1e10, 1 is lost in 1 - z and 1 + z, and the products cancel; sqrt(1 - z^2) is -iz or iz
    # then, with |y| as its real part.
    far = np.maximum(np.abs(z.real), np.abs(z.imag)) > 1e10
    return pair(np.where(far, np.abs(z.imag), real), np.abs(np.arcsin(z).imag))
