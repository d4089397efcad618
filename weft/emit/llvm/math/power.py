"""Powers and remainders of floats, in vectors."""

from __future__ import annotations

import math
import re
import struct

from weft.emit.llvm.math.exponential import exp
from weft.emit.llvm.math.libm_fallback import one_by_one, with_libm_fallback
from weft.emit.llvm.math.logarithm import log
from weft.emit.llvm.math.polynomial import FLOAT_BITS, bits_of, magnitude, where, with_sign
from weft.emit.llvm.writer.vector import Vector, Vectors

_CONSTANT = re.compile(r"(?:splat \(\w+ )?0x([0-9A-F]{16})\)?")


def power(v: Vectors, x: Vector, y: Vector) -> Vector:
    """x^y: f32 in f64, f64 with libm, lane by lane."""
    if (result := _known_power(v, x, y)) is not None:
        return result
    if x.kind == "double":
        return one_by_one(v, "pow", x, y)
    # y log(x) has an absolute error of up to |y log x| ulps, which e^ turns into a relative one:
    # f64 has 29 bits to spare for f32's result.
    wide = [v.cast("fpext", a, "double") for a in (magnitude(v, x), y)]
    result = v.cast("fptrunc", exp(v, v.mul(wide[1], log(v, wide[0]))), "float")
    return _power_special(v, x, y, result)


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
