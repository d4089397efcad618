"""Building blocks of vector functions: polynomials, quotients, clamps, bits of floats."""

from __future__ import annotations

from collections.abc import Sequence

from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.records import dataclass

# A division that may be a reciprocal estimate with one Newton step: nearly as accurate, and several
# times as fast. Only AVX-512 has good enough estimates.
QUICK_DIVISION = "fdiv arcp ninf contract"


@dataclass(frozen=True, slots=True)
class FloatBits:
    """A float format: the integer type, stored mantissa bits, exponent bias."""

    integer: str
    mantissa: int
    bias: int

    def power(self, exponent: int) -> int:
        """The bits of 2^exponent."""
        return (exponent + self.bias) << self.mantissa


FLOAT_BITS = {"float": FloatBits("i32", 23, 127), "double": FloatBits("i64", 52, 1023)}


def horner(v: Vectors, x: Vector, coefficients: Sequence[float]) -> Vector:
    """c0 + c1 x + c2 x^2 + ..., the lowest power first."""
    total = v.constant(coefficients[-1], x.kind)
    for coefficient in reversed(coefficients[:-1]):
        total = v.fma(total, x, v.constant(coefficient, x.kind))
    return total


def odd_series(v: Vectors, x: Vector, coefficients: Sequence[float]) -> Vector:
    """x + c0 x^3 + c1 x^5 + ..., with nearly full accuracy."""
    square = v.mul(x, x)
    return v.fma(v.mul(x, square), horner(v, square, coefficients), x)


def quotient(v: Vectors, a: Vector, b: Vector) -> Vector:
    """a / b, for b that is not 0, infinite or subnormal; within 1 ulp."""
    if a.kind == "float" and a.width % 16 == 0 and v.code.excess_precision:
        return v.binary(QUICK_DIVISION, a, b)
    return v.div(a, b)


def at_least(v: Vectors, x: Vector, low: float) -> Vector:
    """max(x, low); NaN stays."""
    limit = v.constant(low, x.kind)
    # An ordered comparison is false for NaN, which therefore stays; llvm.maxnum would drop it.
    return v.select(v.compare("olt", x, limit), limit, x)


def at_most(v: Vectors, x: Vector, high: float) -> Vector:
    """min(x, high); NaN stays."""
    limit = v.constant(high, x.kind)
    return v.select(v.compare("ogt", x, limit), limit, x)


def magnitude(v: Vectors, x: Vector) -> Vector:
    """|x|."""
    return v.intrinsic("fabs", x)


def with_sign(v: Vectors, size: Vector, sign: Vector) -> Vector:
    """copysign."""
    return v.intrinsic("copysign", size, sign)


def where(v: Vectors, how: str, x: Vector, limit: float, yes: Vector, no: Vector) -> Vector:
    """A select by comparing x with a constant."""
    return v.select(v.compare(how, x, v.constant(limit, x.kind)), yes, no)


def bits_of(v: Vectors, x: Vector) -> Vector:
    """A float as the integer of the same bits."""
    return v.cast("bitcast", x, FLOAT_BITS[x.kind].integer)


def float_of(v: Vectors, bits: Vector) -> Vector:
    """The float of these bits."""
    return v.cast("bitcast", bits, "float" if bits.kind == "i32" else "double")
