"""What functions of vectors are made of: polynomials, quotients, clamps, the bits of floats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.emit.llvm.writer.vector import Vector, Vectors

# A division that may be an estimate with one step of Newton's method: nearly as exact as a true
# one, and several times as fast. Only AVX-512 has estimates that are good enough.
QUICK_DIVISION = "fdiv arcp ninf contract"


@dataclass(frozen=True, slots=True)
class FloatBits:
    """The bits of a float: the integer of the same size, stored mantissa bits, exponent bias."""

    integer: str
    mantissa: int
    bias: int

    def power(self, exponent: int) -> int:
        """The bits of 2^exponent."""
        return (exponent + self.bias) << self.mantissa


LAYOUTS = {"float": FloatBits("i32", 23, 127), "double": FloatBits("i64", 52, 1023)}


def horner(v: Vectors, x: Vector, coefficients: Sequence[float]) -> Vector:
    """c0 + c1 x + c2 x^2 + ..., the lowest power first."""
    total = v.constant(coefficients[-1], x.kind)
    for coefficient in reversed(coefficients[:-1]):
        total = v.fma(total, x, v.constant(coefficient, x.kind))
    return total


def odd_series(v: Vectors, x: Vector, coefficients: Sequence[float]) -> Vector:
    """x + c0 x^3 + c1 x^5 + ..., nearly as exact as x."""
    square = v.mul(x, x)
    return v.fma(v.mul(x, square), horner(v, square, coefficients), x)


def quotient(v: Vectors, a: Vector, b: Vector) -> Vector:
    """a / b, for b that is neither 0 nor infinite nor subnormal; it may be 1 ulp off."""
    if a.kind == "float" and a.width % 16 == 0 and v.code.excess_precision:
        return v.binary(QUICK_DIVISION, a, b)
    return v.div(a, b)


def at_least(v: Vectors, x: Vector, low: float) -> Vector:
    """x, or the limit where x is below it; NaN stays."""
    limit = v.constant(low, x.kind)
    return v.select(v.compare("olt", x, limit), limit, x)


def at_most(v: Vectors, x: Vector, high: float) -> Vector:
    """x, or the limit where x is above it; NaN stays."""
    limit = v.constant(high, x.kind)
    return v.select(v.compare("ogt", x, limit), limit, x)


def magnitude(v: Vectors, x: Vector) -> Vector:
    """|x|."""
    return v.intrinsic("fabs", x)


def with_sign(v: Vectors, size: Vector, sign: Vector) -> Vector:
    """A size with the sign of another number."""
    return v.intrinsic("copysign", size, sign)


def where(v: Vectors, how: str, x: Vector, limit: float, yes: Vector, no: Vector) -> Vector:
    """One of two vectors, as x compares with a constant."""
    return v.select(v.compare(how, x, v.constant(limit, x.kind)), yes, no)


def bits_of(v: Vectors, x: Vector) -> Vector:
    """A float as the integer of the same bits."""
    return v.cast("bitcast", x, LAYOUTS[x.kind].integer)


def float_of(v: Vectors, bits: Vector) -> Vector:
    """The float of these bits."""
    return v.cast("bitcast", bits, "float" if bits.kind == "i32" else "double")
