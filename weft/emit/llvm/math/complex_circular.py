"""Circular and hyperbolic functions and powers of complex numbers; those of f32 in f64."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from weft.emit.llvm.math import complex as basic
from weft.emit.llvm.math.circular import cos, sin
from weft.emit.llvm.math.complex import (
    ComplexFunction,
    either,
    in_double,
    number,
    select_pair,
)
from weft.emit.llvm.math.exponential import cosh as real_cosh
from weft.emit.llvm.math.exponential import exp
from weft.emit.llvm.math.exponential import sinh as real_sinh
from weft.emit.llvm.math.pointwise_complex import multiply
from weft.emit.llvm.math.polynomial import magnitude, where, with_sign
from weft.emit.llvm.writer.storage import Held
from weft.emit.llvm.writer.vector import Vector, Vectors

OnVector: TypeAlias = Callable[[Vectors, Vector], Vector]
Turning: TypeAlias = Callable[[Vectors, OnVector, OnVector, Held], Held]
_FLAT = 22.0  # beyond, tanh is 1 to the last bit of f64
_STEEP = 700.0  # sinh(x) and cosh(x) overflow soon, before their products with cos(y) do


def _turning(v: Vectors, first: OnVector, second: OnVector, z: Held) -> Held:
    """first(x) cos(y) and second(x) sin(y), where the two are sinh and cosh."""
    x, y = z
    return v.mul(first(v, x), cos(v, y)), v.mul(second(v, x), sin(v, y))


def _turning_wide(v: Vectors, first: OnVector, second: OnVector, z: Held) -> Held:
    """The same without overflow in between: beyond `_STEEP` both are e^|x| / 2, in two factors."""
    x, y = z
    size = magnitude(v, x)
    steep = v.compare("ogt", size, number(v, _STEEP))
    half = v.mul(exp(v, v.sub(size, number(v, _STEEP))), number(v, 0.5))
    factor = v.select(steep, number(v, math.exp(_STEEP)), number(v, 1.0))
    found = []
    for function, turn in ((first, cos(v, y)), (second, sin(v, y))):
        far = with_sign(v, half, x) if function is real_sinh else half
        found.append(v.mul(v.select(steep, far, function(v, x)), v.mul(turn, factor)))
    return tuple(found)


def _sinh(v: Vectors, z: Held, turning: Turning = _turning) -> Held:
    """sinh(x) cos(y) + i cosh(x) sin(y)."""
    x, y = z
    real, imag = turning(v, real_sinh, real_cosh, z)
    # inf * sin(0) and 0 * cos(inf) would be NaN; an infinite x stays so for any y.
    unknown = v.compare("uno", real, real)
    real = v.select(v.binary("and", unknown, _is_zero_or_infinite(v, x)), x, real)
    return real, where(v, "oeq", y, 0.0, y, imag)


def _cosh(v: Vectors, z: Held, turning: Turning = _turning) -> Held:
    """cosh(x) cos(y) + i sinh(x) sin(y)."""
    x, y = z
    real, imag = turning(v, real_cosh, real_sinh, z)
    unknown = v.compare("uno", real, real)
    infinite = v.compare("oeq", magnitude(v, x), number(v, math.inf))
    real = v.select(v.binary("and", unknown, infinite), number(v, math.inf), real)
    # sinh(x) sin(y) on an axis: a zero with the product of the signs, also where the other factor
    # is infinite.
    zero = v.mul(with_sign(v, number(v, 0.0), x), with_sign(v, number(v, 1.0), y))
    none = either(v, *(v.compare("oeq", part, number(v, 0.0)) for part in z))
    return real, v.select(none, zero, imag)


def _sin(v: Vectors, z: Held, turning: Turning = _turning) -> Held:
    """-i sinh(iz)."""
    real, imag = _sinh(v, (v.neg(z[1]), z[0]), turning)
    return imag, v.neg(real)


def _cos(v: Vectors, z: Held, turning: Turning = _turning) -> Held:
    """cosh(iz)."""
    return _cosh(v, (v.neg(z[1]), z[0]), turning)


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
    real = _sum_of_products(v, (b[0], log[0]), (v.neg(b[1]), log[1]))
    imag = _sum_of_products(v, (b[0], log[1]), (b[1], log[0]))
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


def _sum_of_products(v: Vectors, a: Held, b: Held) -> Vector:
    """a b + c d without cancellation (Kahan): the rounding error of one product is added."""
    product = v.mul(*b)
    lost = v.fma(b[0], b[1], v.neg(product))
    found = v.fma(a[0], a[1], product)
    # Infinite products have no rounding error.
    return where(v, "olt", magnitude(v, product), math.inf, v.add(found, lost), found)


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


def _known_cosh(v: Vectors, z: Held, turning: Turning = _turning) -> Held:
    """cosh(z), which is NaN for infinite angles."""
    infinite = v.compare("oeq", magnitude(v, z[1]), number(v, math.inf))
    nan = number(v, math.nan)
    return select_pair(v, infinite, (nan, nan), _cosh(v, z, turning))


def _either_width(function: ComplexFunction) -> ComplexFunction:
    """A function of complex<f64>, and of complex<f32>, in whose range nothing overflows in f64."""
    return in_double(partial(function, turning=_turning_wide), function)


cosh, sinh = _either_width(_known_cosh), _either_width(_sinh)
cosine, sine = _either_width(_cos), _either_width(_sin)
tan, tanh, power = in_double(_tan), in_double(_tanh), in_double(_power)
