"""Circular and hyperbolic functions and powers of complex<f32>, computed in f64.

Of complex<f64> only tan and tanh, whose sums do not cancel; the others would need more digits.
"""

from __future__ import annotations

import math

from weft.emit.llvm.math import complex as basic
from weft.emit.llvm.math.circular import cos, sin
from weft.emit.llvm.math.complex import either, in_double, number, select_pair
from weft.emit.llvm.math.exponential import cosh as real_cosh
from weft.emit.llvm.math.exponential import exp
from weft.emit.llvm.math.exponential import sinh as real_sinh
from weft.emit.llvm.math.pointwise_complex import multiply
from weft.emit.llvm.math.polynomial import magnitude, where, with_sign
from weft.emit.llvm.writer.storage import Held
from weft.emit.llvm.writer.vector import Vector, Vectors

_FLAT = 22.0  # beyond, tanh is 1 to the last bit of f64


def _sinh(v: Vectors, z: Held) -> Held:
    """sinh(x) cos(y) + i cosh(x) sin(y)."""
    x, y = z
    real, imag = v.mul(real_sinh(v, x), cos(v, y)), v.mul(real_cosh(v, x), sin(v, y))
    # inf * sin(0) and 0 * cos(inf) would be NaN; an infinite x stays so for any y.
    unknown = v.compare("uno", real, real)
    real = v.select(v.binary("and", unknown, _is_zero_or_infinite(v, x)), x, real)
    return real, where(v, "oeq", y, 0.0, y, imag)


def _cosh(v: Vectors, z: Held) -> Held:
    """cosh(x) cos(y) + i sinh(x) sin(y)."""
    x, y = z
    real, imag = v.mul(real_cosh(v, x), cos(v, y)), v.mul(real_sinh(v, x), sin(v, y))
    unknown = v.compare("uno", real, real)
    infinite = v.compare("oeq", magnitude(v, x), number(v, math.inf))
    real = v.select(v.binary("and", unknown, infinite), number(v, math.inf), real)
    # sinh(x) sin(y) on an axis: a zero with the product of the signs, also where the other factor
    # is infinite.
    zero = v.mul(with_sign(v, number(v, 0.0), x), with_sign(v, number(v, 1.0), y))
    none = either(v, *(v.compare("oeq", part, number(v, 0.0)) for part in z))
    return real, v.select(none, zero, imag)


def _sin(v: Vectors, z: Held) -> Held:
    """-i sinh(iz)."""
    real, imag = _sinh(v, (v.neg(z[1]), z[0]))
    return imag, v.neg(real)


def _cos(v: Vectors, z: Held) -> Held:
    """cosh(iz)."""
    return _cosh(v, (v.neg(z[1]), z[0]))


def _tanh(v: Vectors, z: Held) -> Held:
    """sinh(x) cosh(x) + i sin(y) cos(y), over sinh(x)^2 + cos(y)^2."""
    x, y = z
    one, size = number(v, 1.0), magnitude(v, x)
    steep = where(v, "ogt", size, _FLAT, number(v, _FLAT), size)
    s, c = real_sinh(v, steep), real_cosh(v, steep)
    turned, cosine = v.mul(sin(v, y), cos(v, y)), cos(v, y)
    below = v.fma(s, s, v.mul(cosine, cosine))
    real, imag = v.div(v.mul(s, c), below), v.div(turned, below)
    tail = v.mul(v.mul(turned, number(v, 4.0)), exp(v, v.mul(size, number(v, -2.0))))
    # The limit at infinity is +-1 for any angle.
    infinite = v.compare("oeq", size, number(v, math.inf))
    angle_lost = v.compare("uno", tail, tail)
    limit = v.select(v.binary("and", angle_lost, infinite), with_sign(v, number(v, 0.0), y), tail)
    far = v.compare("ogt", size, number(v, _FLAT))
    real = v.select(far, where(v, "uno", limit, 0.0, limit, one), real)
    imag = v.select(far, limit, imag)
    real = where(v, "oeq", x, 0.0, number(v, 0.0), real)
    return with_sign(v, real, x), where(v, "oeq", y, 0.0, y, imag)


def _tan(v: Vectors, z: Held) -> Held:
    """-i tanh(iz); of an infinite angle NaN, as its limit is unknown unless y is infinite, too."""
    x, y = z
    real, imag = _tanh(v, (v.neg(y), x))
    infinity, nan = number(v, math.inf), number(v, math.nan)
    unknown = v.compare("oeq", magnitude(v, x), infinity)
    unknown = v.binary("and", unknown, v.compare("olt", magnitude(v, y), infinity))
    return select_pair(v, unknown, (nan, nan), (imag, v.neg(real)))


def _power(v: Vectors, a: Held, b: Held) -> Held:
    """exp(b log(a)), and products for small integers; of a = 0 only positive powers are known."""
    log = basic.logarithm(v, a)
    real = v.sub(v.mul(b[0], log[0]), v.mul(b[1], log[1]))
    imag = v.fma(b[0], log[1], v.mul(b[1], log[0]))
    made = basic.exponential(v, (real, imag))
    zero, nan = number(v, 0.0), number(v, math.nan)
    none = v.binary("and", *(v.compare("oeq", part, zero) for part in a))
    positive = v.compare("ogt", b[0], zero)
    made = select_pair(v, none, select_pair(v, positive, (zero, zero), (nan, nan)), made)
    count = where(v, "olt", magnitude(v, b[0]), 100.0, b[0], zero)
    whole = v.binary("and", v.compare("oeq", b[1], zero), v.compare("oeq", count, b[0]))
    whole = v.binary("and", whole, v.compare("oeq", v.intrinsic("rint", count), count))
    # Of 0 only the power 0, which is 1.
    powers = either(v, v.compare("oeq", count, zero), v.compare("eq", none, v.constant(0, "i1")))
    return select_pair(v, v.binary("and", whole, powers), _product(v, a, count), made)


def _product(v: Vectors, a: Held, count: Vector) -> Held:
    """A power by squaring, for counts below 128."""
    zero, one = number(v, 0.0), number(v, 1.0)
    left = v.cast("fptosi", magnitude(v, count), "i64")
    none = v.constant(0, "i64")
    base: Held = a
    made: Held = (one, zero)
    for n in range(7):
        chosen = v.compare("ne", v.binary("and", left, v.constant(1 << n, "i64")), none)
        made = select_pair(v, chosen, multiply(v, made, base), made)
        base = multiply(v, base, base)
    negative = v.compare("olt", count, zero)
    return select_pair(v, negative, basic.divide(v, (one, zero), made), made)


def _is_zero_or_infinite(v: Vectors, x: Vector) -> Vector:
    return either(
        v,
        v.compare("oeq", x, number(v, 0.0)),
        v.compare("oeq", magnitude(v, x), number(v, math.inf)),
    )


cosh, cosine, power = in_double(_cosh), in_double(_cos), in_double(_power)
sinh, sine = in_double(_sinh), in_double(_sin)
tan, tanh = in_double(_tan), in_double(_tanh)
