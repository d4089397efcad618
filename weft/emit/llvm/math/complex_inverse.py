"""Inverse circular and hyperbolic functions of complex numbers; those of f32 are computed in f64.

T. Hull, T. Fairgrieve and P. Tang, Implementing the complex arcsine and arccosine functions using
exception handling, ACM TOMS 23 (1997). The cuts belong to the side of positive parts: -0 counts
as 0.
"""

from __future__ import annotations

import math

from weft.emit.llvm.math import complex as basic
from weft.emit.llvm.math.circular import atan2
from weft.emit.llvm.math.complex import either, in_double, number
from weft.emit.llvm.math.logarithm import log1p
from weft.emit.llvm.math.polynomial import magnitude, where, with_sign
from weft.emit.llvm.writer.storage import Held
from weft.emit.llvm.writer.vector import Vector, Vectors

_FLAT = 0.6417  # x / a above which a - x cancels
_NEAR = 1.5  # a below which a - 1 is computed without cancellation
_FAR = 1e100  # beyond which 1 is far below an ulp of z, and squares are still numbers


def _kernel(v: Vectors, z: Held) -> Held:
    """d and w with asin(z) = atan2(x, d) + i w, of magnitudes: a = (|z + 1| + |z - 1|) / 2."""
    x, y = (magnitude(v, part) for part in z)
    one, half = number(v, 1.0), number(v, 0.5)
    above, below = v.add(x, one), v.sub(x, one)
    plus, minus = (_size(v, (part, y)) for part in (above, below))
    a = v.fma(plus, half, v.mul(minus, half))
    inside = v.compare("olt", x, one)
    gap = v.add(minus, magnitude(v, below))
    # |z + 1| - (x + 1) and |z - 1| - |x - 1| as y^2 over their sums.
    left, right = (v.div(one, part) for part in (v.add(plus, above), gap))
    apart, sums = v.mul(half, v.add(a, x)), v.mul(half, v.add(a, one))
    steep = v.fma(v.mul(y, left), y, gap)
    flat = v.add(left, right)
    at_most_one = v.compare("ole", x, one)
    square = v.mul(apart, v.select(at_most_one, steep, flat))
    near = v.compare("ole", x, v.mul(a, number(v, _FLAT)))
    square = v.select(near, v.mul(v.sub(a, x), v.add(a, x)), square)
    root = v.intrinsic("sqrt", square)
    root = v.select(either(v, near, at_most_one), root, v.mul(y, root))
    # a - 1, of which y is a factor inside of the circle: its square may be too small for a float.
    more = v.select(inside, flat, steep)
    rise = v.intrinsic("sqrt", v.mul(more, sums))
    more = v.mul(half, v.select(inside, v.mul(v.mul(more, y), y), more))
    rise = v.select(inside, v.mul(rise, y), rise)
    plain = v.add(v.sub(a, one), v.intrinsic("sqrt", v.mul(v.sub(a, one), v.add(a, one))))
    argument = where(v, "olt", a, _NEAR, v.add(more, rise), plain)
    # log(2 |z|) far away: half of |z| does not overflow, and log1p is log there.
    far = v.compare("oge", a, number(v, _FAR))
    argument = v.select(far, _size(v, (v.mul(x, half), v.mul(y, half))), argument)
    found = log1p(v, argument)
    found = v.select(far, v.add(found, number(v, 2 * math.log(2))), found)
    return v.select(far, y, root), found


def _size(v: Vectors, z: Held) -> Vector:
    (size,) = basic.absolute(v, z)
    return size


def _upper(v: Vectors, z: Held) -> Held:
    # -0.0 + 0.0 is 0.0, and nothing else changes.
    return z[0], v.add(z[1], number(v, 0.0))


def _asin(v: Vectors, z: Held) -> Held:
    x, y = z = _upper(v, z)
    root, found = _kernel(v, z)
    real = where(v, "oeq", x, 0.0, x, atan2(v, x, root))
    return real, with_sign(v, found, y)


def _acos(v: Vectors, z: Held) -> Held:
    x, y = z = _upper(v, z)
    root, found = _kernel(v, z)
    real = where(v, "oeq", x, 0.0, number(v, math.pi / 2), atan2(v, root, x))
    return real, with_sign(v, found, v.neg(y))


def _asinh(v: Vectors, z: Held) -> Held:
    """i asin(-iz)."""
    real, imag = _asin(v, (v.neg(z[1]), z[0]))
    return imag, v.neg(real)


def _acosh(v: Vectors, z: Held) -> Held:
    """i acos(z) or -i acos(z), whose real part is positive."""
    real, imag = _acos(v, z)
    return magnitude(v, imag), where(v, "olt", z[1], 0.0, v.neg(real), real)


def _atanh(v: Vectors, z: Held) -> Held:
    """log1p(4x / ((1 - x)^2 + y^2)) / 4, and half of the angle of 1 - z^2 + 2iy."""
    x, y = _upper(v, z)
    one, two, half = (number(v, n) for n in (1.0, 2.0, 0.5))
    size, height = magnitude(v, x), magnitude(v, y)
    beside = v.sub(one, size)
    square = v.mul(y, y)
    ratio = v.div(v.mul(size, number(v, 4.0)), v.fma(beside, beside, square))
    # At 1 + iy, where y^2 may be too small for a float: log(2 / |y|) / 2.
    edge = v.compare("oeq", size, one)
    edge = v.binary("and", edge, v.compare("olt", height, number(v, 2.0**-300)))
    argument = v.select(edge, v.div(number(v, 2.0**-99), height), ratio)
    real = log1p(v, argument)
    lifted = v.mul(v.add(real, number(v, 100 * math.log(2))), half)
    real = v.select(edge, lifted, v.mul(real, number(v, 0.25)))
    angle = atan2(v, v.mul(y, two), v.fma(beside, v.add(one, size), v.neg(square)))
    imag = v.mul(angle, half)
    # 1 / z far away, beside which the angle is that of a right one.
    whole = _size(v, (v.mul(size, half), v.mul(height, half)))  # of halves: it does not overflow
    far = v.compare("oge", whole, number(v, _FAR))
    over = v.mul(v.div(v.div(v.mul(size, half), whole), whole), half)
    infinite = v.compare("oeq", whole, number(v, math.inf))
    over = v.select(infinite, number(v, 0.0), over)
    real = v.select(far, over, real)
    right = with_sign(v, number(v, math.pi / 2), y)
    known = v.compare("ord", y, y)
    imag = v.select(v.binary("and", far, known), right, imag)
    real = where(v, "oeq", x, 0.0, number(v, 0.0), real)
    return with_sign(v, real, x), imag


def _atan(v: Vectors, z: Held) -> Held:
    """-i atanh(iz)."""
    real, imag = _atanh(v, (v.neg(z[1]), z[0]))
    return imag, v.neg(real)


asin, acos, atan = in_double(_asin), in_double(_acos), in_double(_atan)
asinh, acosh, atanh = in_double(_asinh), in_double(_acosh), in_double(_atanh)
