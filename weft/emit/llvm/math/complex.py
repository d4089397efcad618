"""Functions of complex numbers, held as pairs of vectors; those of f32 are computed in f64."""

from __future__ import annotations

import math
from collections.abc import Callable

from weft.emit.llvm.math.circular import atan2, cos, sin
from weft.emit.llvm.math.exponential import exp, expm1
from weft.emit.llvm.math.logarithm import log, log1p
from weft.emit.llvm.math.polynomial import (
    at_least,
    at_most,
    bits_of,
    float_of,
    magnitude,
    where,
    with_sign,
)
from weft.emit.llvm.writer.storage import Held
from weft.emit.llvm.writer.vector import Vector, Vectors

ComplexFunction = Callable[..., Held]


def in_double(function: ComplexFunction, narrow: ComplexFunction | None = None) -> ComplexFunction:
    """A complex<f64> function for complex<f32>, too; `narrow` is one for numbers in f32's range."""

    def run(v: Vectors, *args: Held) -> Held:
        if args[0][0].kind == "double":
            return function(v, *args)
        wide = [tuple(v.cast("fpext", part, "double") for part in arg) for arg in args]
        found = (narrow or function)(v, *wide)
        return tuple(v.cast("fptrunc", part, "float") for part in found)

    return run


def number(v: Vectors, value: float) -> Vector:
    """An f64 in every lane."""
    return v.constant(value, "double")


def either(v: Vectors, a: Vector, b: Vector) -> Vector:
    """a or b, of booleans."""
    return v.binary("or", a, b)


def _is_infinite(v: Vectors, z: Held) -> Vector:
    """Whether a part is infinite."""
    return either(v, *(v.compare("oeq", magnitude(v, p), number(v, math.inf)) for p in z))


def _is_finite(v: Vectors, z: Held) -> Vector:
    """Whether both parts are finite."""
    return v.binary("and", *(v.compare("olt", magnitude(v, p), number(v, math.inf)) for p in z))


def select_pair(v: Vectors, condition: Vector, yes: Held, no: Held) -> Held:
    """One of two complex numbers, lane by lane."""
    return tuple(v.select(condition, a, b) for a, b in zip(yes, no, strict=True))


def _sizes(v: Vectors, z: Held) -> tuple[Vector, Vector]:
    """The larger and the smaller magnitude of the parts; NaN is either."""
    x, y = (magnitude(v, part) for part in z)
    steep = v.compare("ogt", y, x)
    return v.select(steep, y, x), v.select(steep, x, y)


def _size(v: Vectors, z: Held) -> Vector:
    """|z| = high sqrt(1 + (low / high)^2), without overflow; infinite if a part is."""
    high, low = _sizes(v, z)
    # Of 0 + 0i: 0 / 0 would be NaN.
    ratio = where(v, "oeq", low, 0.0, low, v.div(low, high))
    found = v.mul(high, v.intrinsic("sqrt", v.fma(ratio, ratio, number(v, 1.0))))
    return v.select(_is_infinite(v, z), number(v, math.inf), found)


def _absolute(v: Vectors, z: Held) -> Held:
    return (_size(v, z),)


# Quotients


def _power_below(v: Vectors, z: Held) -> Vector:
    """The power of two at or below the larger part, but not near overflow; 1 for 0, inf and NaN."""
    high, _ = _sizes(v, z)
    # The exponent field alone is the power of two at or below a number.
    exponent = v.binary("and", bits_of(v, high), v.constant(0x7FF << 52, "i64"))
    power = at_most(v, at_least(v, float_of(v, exponent), 2.0**-1000), 2.0**1000)
    usual = v.compare("olt", high, number(v, math.inf))
    usual = v.binary("and", usual, v.compare("ogt", high, number(v, 0.0)))
    return v.select(usual, power, number(v, 1.0))


def _times(v: Vectors, z: Held, factor: Vector) -> Held:
    return v.mul(z[0], factor), v.mul(z[1], factor)


def _turned(v: Vectors, a: Held, b: Held) -> Held:
    """a times the conjugate of b."""
    real = v.fma(a[0], b[0], v.mul(a[1], b[1]))
    return real, v.fma(a[1], b[0], v.neg(v.mul(a[0], b[1])))


def _divide(v: Vectors, a: Held, b: Held) -> Held:
    """The quotient, without spurious overflow; infinities follow C, annex G."""
    one = number(v, 1.0)
    above = _power_below(v, a)
    below = v.div(one, _power_below(v, b))
    # Both scaled to about 1, exactly: |b|^2 neither overflows nor vanishes then.
    x, y = _times(v, a, v.div(one, above)), _times(v, b, below)
    square = v.fma(y[0], y[0], v.mul(y[1], y[1]))
    turned = _turned(v, x, y)
    quotient: Held = (v.div(turned[0], square), v.div(turned[1], square))
    # The order of scaling back avoids intermediate overflow.
    large = v.compare("oge", above, one)
    for factor in (v.select(large, above, below), v.select(large, below, above)):
        quotient = _times(v, quotient, factor)
    return _known_quotient(v, a, b, quotient)


def _divide_narrow(v: Vectors, a: Held, b: Held) -> Held:
    """The quotient where |b|^2 cannot overflow."""
    inverse = v.div(number(v, 1.0), v.fma(b[0], b[0], v.mul(b[1], b[1])))
    return _known_quotient(v, a, b, _times(v, _turned(v, a, b), inverse))


def _known_quotient(v: Vectors, a: Held, b: Held, quotient: Held) -> Held:
    """A quotient, or what it is for zeros and infinities."""
    # Both parts NaN: the sign of C's annex G that an infinity or a zero was involved.
    lost = v.binary("and", *(v.compare("uno", part, part) for part in quotient))
    return select_pair(v, lost, _divide_special(v, a, b), quotient)


def _divide_special(v: Vectors, a: Held, b: Held) -> Held:
    """Quotients of zeros and infinities, where plain arithmetic yields NaN."""
    nan = number(v, math.nan)
    turned = _turned(v, _unit(v, a), _unit(v, b))
    large = v.binary("and", _is_infinite(v, a), _is_finite(v, b))
    small = v.binary("and", _is_finite(v, a), _is_infinite(v, b))
    quotient = select_pair(v, large, _times(v, turned, number(v, math.inf)), (nan, nan))
    quotient = select_pair(v, small, _times(v, turned, number(v, 0.0)), quotient)
    zero = v.binary("and", *(v.compare("oeq", part, number(v, 0.0)) for part in b))
    known = either(v, *(v.compare("ord", part, part) for part in a))
    by_zero = _times(v, a, number(v, math.inf))
    return select_pair(v, v.binary("and", zero, known), by_zero, quotient)


def _unit(v: Vectors, z: Held) -> Held:
    """Infinite parts as 1, and the finite ones beside them as 0; signs are kept."""
    infinity, one, zero = number(v, math.inf), number(v, 1.0), number(v, 0.0)
    ends = [v.compare("oeq", magnitude(v, part), infinity) for part in z]
    boxed = tuple(
        with_sign(v, v.select(end, one, zero), part) for end, part in zip(ends, z, strict=True)
    )
    return select_pair(v, either(v, *ends), boxed, z)


def _sign(v: Vectors, z: Held) -> Held:
    """z / |z|, and 0 for 0."""
    scaled = _times(v, z, v.div(number(v, 1.0), _power_below(v, z)))
    size = _size(v, scaled)
    zero = number(v, 0.0)
    none = v.binary("and", *(v.compare("oeq", part, zero) for part in z))
    return tuple(v.select(none, zero, v.div(part, size)) for part in scaled)


# Exponential, logarithm, root


def _exp(v: Vectors, z: Held) -> Held:
    """e^x (cos(y) + i sin(y)): NaN if the angle is infinite, for any magnitude."""
    x, y = z
    size = exp(v, x)
    real, imag = v.mul(size, cos(v, y)), v.mul(size, sin(v, y))
    # On the real axis inf * sin(0) would be NaN; the zero keeps its sign.
    return where(v, "oeq", y, 0.0, size, real), where(v, "oeq", y, 0.0, y, imag)


def _expm1(v: Vectors, z: Held) -> Held:
    """exp(z) - 1: where x is small expm1(x) cos(y) + cos(y) - 1, in which no term cancels."""
    x, y = z
    real, imag = _exp(v, z)
    half = sin(v, v.mul(y, number(v, 0.5)))
    near = v.mul(v.mul(half, half), number(v, -2.0))
    near = v.fma(expm1(v, x), cos(v, y), near)
    small = v.compare("olt", magnitude(v, x), number(v, 1.0))
    return v.select(small, near, v.sub(real, number(v, 1.0))), imag


def _log(v: Vectors, z: Held) -> Held:
    """log|z| and the angle; near |z| = 1 the first is log1p(|z|^2 - 1) / 2."""
    high, low = _sizes(v, z)
    one = number(v, 1.0)
    # |z|^2 - 1 without cancellation: high^2 - 1 as a product of two exact differences.
    near = v.fma(low, low, v.mul(v.sub(high, one), v.add(high, one)))
    near = v.mul(log1p(v, near), number(v, 0.5))
    size = _size(v, z)
    middle = v.binary(
        "and", v.compare("ogt", size, number(v, 0.5)), v.compare("olt", size, number(v, 2.0))
    )
    # |z| of very large and very small numbers overflows or is coarse, unless scaled.
    power = _power_below(v, z)
    scaled = _size(v, _times(v, z, v.div(one, power)))
    far = v.add(log(v, scaled), log(v, power))
    return v.select(middle, near, far), atan2(v, z[1], z[0])


def _log1p_narrow(v: Vectors, z: Held) -> Held:
    """log(1 + z); near |1 + z| = 1 of x (x + 2) + y^2, which is exact in f64 for parts of f32."""
    x, y = z
    near = v.fma(x, v.add(x, number(v, 2.0)), v.mul(y, y))
    return _log1p_by(v, z, log1p(v, near))


def _log1p(v: Vectors, z: Held) -> Held:
    """log(1 + z); near |1 + z| = 1 of x^2 + y^2 + 2x, the sum carried in two floats."""
    x, y = z
    total = v.mul(x, x)
    rest = v.fma(x, x, v.neg(total))
    square = v.mul(y, y)
    for term in (square, v.fma(y, y, v.neg(square)), v.add(x, x)):
        total, lost = _two_sum(v, total, term)
        rest = v.add(rest, lost)
    return _log1p_by(v, z, log1p(v, v.add(total, rest)))


def _log1p_by(v: Vectors, z: Held, near: Vector) -> Held:
    """log(1 + z), near |1 + z| = 1 with half of this real part."""
    shifted = v.add(z[0], number(v, 1.0)), z[1]
    real, imag = _log(v, shifted)
    size = _size(v, shifted)
    middle = v.compare("ogt", size, number(v, 0.5))
    middle = v.binary("and", middle, v.compare("olt", size, number(v, 2.0)))
    return v.select(middle, v.mul(near, number(v, 0.5)), real), imag


def _two_sum(v: Vectors, a: Vector, b: Vector) -> tuple[Vector, Vector]:
    """The rounded sum and its error (Knuth)."""
    total = v.add(a, b)
    back = v.sub(total, a)
    return total, v.add(v.sub(a, v.sub(total, back)), v.sub(b, back))


def _sqrt(v: Vectors, z: Held) -> Held:
    """sqrt((|x| + |z|) / 2) is one part, |y| by twice it the other."""
    x, y = z
    # A power of four, whose root is exact.
    power = _even_power_below(v, z)
    a, b = _times(v, z, v.div(number(v, 1.0), power))
    half = v.mul(v.add(magnitude(v, a), _size(v, (a, b))), number(v, 0.5))
    root = v.intrinsic("sqrt", half)
    # By |y| / (2 root), not by the root of a difference, which cancels near the real axis.
    other = v.div(magnitude(v, b), v.add(root, root))
    none = v.compare("oeq", root, number(v, 0.0))
    other = v.select(none, root, other)
    scale = v.intrinsic("sqrt", power)
    root, other = v.mul(root, scale), v.mul(other, scale)
    left = v.compare("olt", x, number(v, 0.0))
    real, imag = select_pair(v, left, (other, root), (root, other))
    return _sqrt_special(v, z, (real, with_sign(v, imag, y)))


def _even_power_below(v: Vectors, z: Held) -> Vector:
    """A power of four near the larger part."""
    bits = bits_of(v, _power_below(v, z))
    odd = v.binary("and", bits, v.constant(1 << 52, "i64"))
    even = v.select(
        v.compare("eq", odd, v.constant(0, "i64")), v.sub(bits, v.constant(1 << 52, "i64")), bits
    )
    return float_of(v, even)


def _rsqrt(v: Vectors, z: Held) -> Held:
    """1 / sqrt(z)."""
    return _divide(v, (number(v, 1.0), number(v, 0.0)), _sqrt(v, z))


def _sqrt_special(v: Vectors, z: Held, value: Held) -> Held:
    """Roots of infinities and NaN (C, annex G)."""
    x, y = z
    infinity, zero, nan = (number(v, n) for n in (math.inf, 0.0, math.nan))
    signed = with_sign(v, infinity, y)
    known = v.compare("ord", y, y)
    right = v.compare("oeq", x, infinity)
    left = v.compare("oeq", x, v.neg(infinity))
    flat = v.select(known, with_sign(v, zero, y), nan)
    value = select_pair(v, right, (infinity, flat), value)
    value = select_pair(v, left, (v.select(known, zero, nan), signed), value)
    steep = v.compare("oeq", magnitude(v, y), infinity)
    value = select_pair(v, steep, (infinity, y), value)
    return value


absolute = in_double(_absolute)
divide = in_double(_divide, _divide_narrow)
sign = in_double(_sign)
exponential, exponential_minus_one = in_double(_exp), in_double(_expm1)
logarithm, logarithm_plus_one = in_double(_log), in_double(_log1p, _log1p_narrow)
square_root, reciprocal_root = in_double(_sqrt), in_double(_rsqrt)
