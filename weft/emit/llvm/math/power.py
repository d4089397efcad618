"""Powers and remainders of floats, in vectors.

Powers of f64 carry the logarithm in two floats (s = f / (2 + f), the series of atanh).
"""

from __future__ import annotations

import math
import re
import struct

from weft.emit.llvm.jit.supplied import scale
from weft.emit.llvm.math.exponential import EXPONENTIAL, exp, whole_and_rest
from weft.emit.llvm.math.libm_fallback import with_libm_fallback
from weft.emit.llvm.math.logarithm import log, mantissa_parts
from weft.emit.llvm.math.polynomial import (
    FLOAT_BITS,
    at_least,
    at_most,
    bits_of,
    horner,
    magnitude,
    where,
    with_sign,
)
from weft.emit.llvm.writer.vector import Vector, Vectors

_CONSTANT = re.compile(r"(?:splat \(\w+ )?0x([0-9A-F]{16})\)?")


_Parts = tuple[Vector, Vector]  # an unevaluated sum; the second is at most an ulp of the first


def power(v: Vectors, x: Vector, y: Vector) -> Vector:
    """x^y: f32 in f64, f64 with a logarithm of two floats."""
    if (result := _known_power(v, x, y)) is not None:
        return result
    if x.kind == "double":
        return _power_special(v, x, y, power_of_positive(v, magnitude(v, x), y))
    # y log(x) has an absolute error of up to |y log x| ulps, which e^ turns into a relative one:
    # f64 has 29 bits to spare for f32's result.
    wide = [v.cast("fpext", a, "double") for a in (magnitude(v, x), y)]
    result = v.cast("fptrunc", exp(v, v.mul(wide[1], log(v, wide[0]))), "float")
    return _power_special(v, x, y, result)


def power_of_positive(v: Vectors, x: Vector, y: Vector) -> Vector:
    """x^y of a positive number in f64; NaN of a 1 to an infinite power."""
    high, low = _log_parts(v, x)
    exponent = v.mul(y, high)
    rest = v.fma(y, low, v.fma(y, high, v.neg(exponent)))
    # Of infinities the rest is NaN; the power is infinite or 0 then.
    rest = where(v, "olt", magnitude(v, exponent), 1e3, rest, v.constant(0.0, x.kind))
    return _exp_of_parts(v, exponent, rest)


def _log_parts(v: Vectors, x: Vector) -> _Parts:
    """log(x) of a number that is not negative, with an error of 2^-65."""
    n, f = mantissa_parts(v, x)
    two = v.constant(2.0, x.kind)
    below = v.add(two, f)
    below_rest = v.sub(f, v.sub(below, two))
    s = v.div(f, below)
    s_rest = v.div(v.fma(v.neg(s), below_rest, v.fma(v.neg(s), below, f)), below)
    square = v.mul(s, s)
    square_rest = v.fma(v.add(s, s), s_rest, v.fma(s, s, v.neg(square)))
    cube = v.mul(s, square)
    cube_rest = v.fma(s, square, v.neg(cube))
    cube_rest = v.fma(s_rest, square, v.fma(s, square_rest, cube_rest))
    # atanh(s) = s + s^3 (1/3 + s^2 / 5 + ...), where the second factor has two floats, too.
    later = v.mul(square, horner(v, square, _ATANH))
    third = v.constant(_THIRD[0], x.kind)
    factor = v.add(third, later)
    factor_rest = v.add(v.add(v.sub(third, factor), later), v.constant(_THIRD[1], x.kind))
    high = v.mul(cube, factor)
    low = v.fma(cube_rest, factor, v.fma(cube, factor_rest, v.fma(cube, factor, v.neg(high))))
    total = v.add(s, high)
    total_rest = v.add(v.add(v.sub(s, total), high), v.add(s_rest, low))
    # log(x) = n log(2) + 2 atanh(s), where n times the first part of log(2) is exact.
    whole = v.mul(n, v.constant(_LOG2[0], x.kind))
    total, total_rest = v.add(total, total), v.add(total_rest, total_rest)
    high = v.add(whole, total)
    low = v.add(v.sub(whole, high), total)
    low = v.add(low, v.fma(n, v.constant(_LOG2[1], x.kind), total_rest))
    infinity = v.constant(math.inf, x.kind)
    high = where(v, "oeq", x, 0.0, v.neg(infinity), high)
    return v.select(v.compare("olt", x, infinity), high, x), low


def _exp_of_parts(v: Vectors, x: Vector, rest: Vector) -> Vector:
    """e^(x + rest) to about 0.6 ulp."""
    table = EXPONENTIAL[x.kind]
    x = at_least(v, at_most(v, x, table.overflow), table.zero)
    n, _ = whole_and_rest(v, x)
    high = v.fma(n, v.constant(-_LOG2[0], x.kind), x)  # exact
    rest = v.fma(n, v.constant(-_LOG2[1], x.kind), rest)
    r = v.add(high, rest)
    rest = v.add(v.sub(high, r), rest)
    small = v.fma(v.mul(r, r), horner(v, r, table.series), rest)
    # 1 + r + small, rounded once: the rounding errors of both sums are added last.
    more = v.add(r, small)
    one = v.constant(1.0, x.kind)
    total = v.add(one, more)
    lost = v.add(v.add(v.sub(r, more), small), v.add(v.sub(one, total), more))
    return scale(v, v.add(total, lost), n)


_LOG2 = (0.693147180559663, 2.8235290563031577e-13)  # 11 bits of the first are 0
_THIRD = (1 / 3, 1.850371707708594e-17)
_ATANH = tuple(1 / n for n in range(5, 31, 2))  # s is below 0.172: the last is of 2^-66


def _power_special(v: Vectors, x: Vector, y: Vector, value: Vector) -> Vector:
    """Signs and NaN of negative bases, and the powers that are 1 for any other operand."""
    one, infinity = v.constant(1.0, x.kind), v.constant(math.inf, x.kind)
    whole = v.compare("oeq", v.intrinsic("trunc", y), y)  # infinity counts as integral
    half = v.mul(y, v.constant(0.5, x.kind))
    # y is odd if y / 2 is not integral; halving is exact.
    odd = v.binary("and", whole, v.compare("one", v.intrinsic("trunc", half), half))
    value = v.select(odd, with_sign(v, value, x), value)
    negative = v.compare("olt", x, v.constant(0.0, x.kind))
    finite = v.compare("one", magnitude(v, x), infinity)
    wrong = v.binary("and", v.binary("and", negative, finite), v.binary("xor", whole, _all(v)))
    value = v.select(wrong, v.constant(math.nan, x.kind), value)
    ends = v.binary(
        "and", v.compare("oeq", magnitude(v, x), one), v.compare("oeq", magnitude(v, y), infinity)
    )
    certain = v.binary("or", v.compare("oeq", x, one), ends)
    certain = v.binary("or", certain, v.compare("oeq", y, v.constant(0.0, x.kind)))
    return v.select(certain, one, value)


def _all(v: Vectors) -> Vector:
    return v.constant(True, "i1")


def _known_power(v: Vectors, x: Vector, y: Vector) -> Vector | None:
    """Common constant exponents."""
    match = _CONSTANT.fullmatch(y.text)
    if match is None:
        return None
    (exponent,) = struct.unpack("d", struct.pack("Q", int(match[1], 16)))
    one = v.constant(1.0, x.kind)
    match exponent:
        case 1.0:
            return x
        case 2.0:
            return v.mul(x, x)
        case 3.0:
            return v.mul(v.mul(x, x), x)
        case -1.0:
            return v.div(one, x)
        case 0.5:
            # The power of -inf is inf, and of -0 it is 0.
            root = v.intrinsic("sqrt", v.add(x, v.constant(0.0, x.kind)))
            return where(v, "oeq", x, -math.inf, v.constant(math.inf, x.kind), root)
    return None


def remainder(v: Vectors, x: Vector, y: Vector) -> Vector:
    """x - trunc(x / y) y, exactly; large quotients use libm."""
    ratio = v.div(x, y)
    whole = v.intrinsic("trunc", ratio)
    # One rounding: the product is exact inside of the fma.
    rest = v.fma(v.neg(whole), y, x)
    # The rounded quotient may be one too large; then the rest has the wrong sign.
    sides = v.binary("xor", bits_of(v, rest), bits_of(v, x))
    beyond = v.compare("slt", sides, v.constant(0, sides.kind))
    back = v.add(rest, with_sign(v, magnitude(v, y), x))
    zero = v.constant(0.0, x.kind)
    none = v.compare("oeq", rest, zero)
    rest = v.select(none, with_sign(v, zero, x), v.select(beyond, back, rest))
    infinite = v.compare("oeq", magnitude(v, y), v.constant(math.inf, x.kind))
    finite = v.compare("olt", magnitude(v, x), v.constant(math.inf, x.kind))
    rest = v.select(v.binary("and", infinite, finite), x, rest)
    # Quotients beyond this have no exact integer part, and the fma's rest is meaningless.
    limit = v.constant(2.0 ** FLOAT_BITS[x.kind].mantissa, x.kind)
    large = v.compare("oge", magnitude(v, whole), limit)
    exact = v.binary("and", finite, v.compare("one", y, zero))
    return with_libm_fallback(v, v.binary("and", large, exact), "fmod", rest, x, y)
