"""Hurwitz's zeta function and the derivatives of digamma, computed in f64."""

from __future__ import annotations

import math

from weft.emit.llvm.math.gamma import digamma
from weft.emit.llvm.math.hyperbolic import in_double
from weft.emit.llvm.math.libm_fallback import where_any
from weft.emit.llvm.math.polynomial import at_least, at_most, where
from weft.emit.llvm.math.power import power_of_positive
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.ops.numerics.special_functions import ZETA_TERMS, euler_maclaurin

_FACTORIALS = 171.0  # from here on they are infinite


def _number(v: Vectors, value: float) -> Vector:
    return v.constant(value, "double")


def _zeta(v: Vectors, x: Vector, q: Vector) -> Vector:
    """The sum of (q + k)^-x over k = 0, 1, ..."""
    one, zero, nan = _number(v, 1.0), _number(v, 0.0), _number(v, math.nan)
    # The number of terms with negative q + k, whose sum is a difference of two such functions.
    count = at_least(v, v.add(v.intrinsic("floor", v.neg(q)), one), 0.0)
    first = v.add(q, count)
    total = _of_positive(v, x, first)
    even = v.compare("oeq", _odd(v, x), zero)
    parity = v.select(even, one, v.neg(one))

    def with_negative_terms() -> Vector:
        ends = [_of_positive(v, x, v.sub(one, end)) for end in (first, q)]
        return v.fma(parity, v.sub(*ends), total)

    total = where_any(v, v.compare("ogt", count, zero), with_negative_terms, total)
    # At a pole even powers grow to inf from both sides, and odd ones have no limit; other powers of
    # negative numbers are not real.
    below = v.compare("ole", q, zero)
    pole = v.binary("and", below, v.compare("oeq", q, v.intrinsic("floor", q)))
    infinity = _number(v, math.inf)
    total = v.select(pole, v.select(even, infinity, nan), total)
    broken = v.compare("une", x, v.intrinsic("floor", x))
    total = v.select(v.binary("and", below, broken), nan, total)
    unknown = v.binary("or", v.compare("ult", x, one), v.compare("uno", q, q))
    total = v.select(unknown, nan, total)
    return where(v, "oeq", x, 1.0, infinity, total)


def _of_positive(v: Vectors, x: Vector, q: Vector) -> Vector:
    """Zeta for x > 1 and q > 0, by the Euler-Maclaurin formula after the first terms."""
    less, zero, half = v.neg(x), _number(v, 0.0), _number(v, 0.5)
    one = _number(v, 1.0)
    start = v.add(q, _number(v, ZETA_TERMS))
    power = power_of_positive(v, start, less)
    vanished = v.compare("oeq", power, zero)
    inverse = v.div(one, start)
    later = [v.mul(power, half), v.div(v.mul(start, power), v.sub(x, one))]
    factor = v.mul(v.mul(x, power), inverse)
    for k, coefficient in enumerate(euler_maclaurin()):
        later.insert(0, v.mul(factor, _number(v, coefficient)))
        for n in (2 * k + 1, 2 * k + 2):
            factor = v.mul(factor, v.mul(v.add(x, _number(v, n)), inverse))
    # The smallest first, to keep their digits. Where the power underflowed, what is
    # multiplied with it may be infinite: such terms are 0.
    total = zero
    for term in later:
        total = v.add(total, v.select(vanished, zero, term))
    # A loop: the code of so many powers would take long to compile.
    state = [(part.type, part.text) for part in (total, _number(v, ZETA_TERMS - 1))]
    with v.code.loop(0, ZETA_TERMS, carried=state) as loop:
        total, place = (Vector(text, "double", v.width) for text in loop.carried)
        base = v.add(q, place)
        term = power_of_positive(v, base, less)
        total = v.add(total, where(v, "oeq", base, 1.0, one, term))
        loop.carry(total.text, v.sub(place, one).text)
    return Vector(loop.carried[0], "double", v.width)


def _odd(v: Vectors, x: Vector) -> Vector:
    """x modulo 2, from 0 up to 2."""
    half = v.intrinsic("floor", v.mul(x, _number(v, 0.5)))
    return v.sub(x, v.add(half, half))


def _polygamma(v: Vectors, n: Vector, x: Vector) -> Vector:
    """(-1)^(n + 1) n! zeta(n + 1, x), and digamma for n = 0."""
    zero, one = _number(v, 0.0), _number(v, 1.0)
    above = v.add(n, one)
    odd = _odd(v, n)
    sign = v.sub(v.add(odd, odd), one)
    found = v.mul(v.mul(sign, _factorial(v, n)), _zeta(v, above, x))
    found = where_any(v, v.compare("oeq", n, zero), lambda: digamma(v, x), found)
    whole = v.compare("oeq", n, v.intrinsic("floor", n))
    known = v.binary("and", whole, v.compare("oge", n, zero))
    return v.select(known, found, _number(v, math.nan))


def _factorial(v: Vectors, n: Vector) -> Vector:
    """1 2 3 ... n of a whole number: a product, which is more exact than e^lgamma."""
    one = _number(v, 1.0)
    most = v.cast("fptosi", at_most(v, at_least(v, n, 0.0), _FACTORIALS), "i64")
    most = v.select(v.compare("ord", n, n), most, v.constant(0, "i64"))
    state = [(one.type, one.text)] * 2
    with v.code.loop(0, v.total("smax", most).text, carried=state) as loop:
        product, k = (Vector(text, "double", v.width) for text in loop.carried)
        more = v.mul(product, k)
        loop.carry(v.select(v.compare("ole", k, n), more, product).text, v.add(k, one).text)
    return Vector(loop.carried[0], "double", v.width)


zeta, polygamma = in_double(_zeta), in_double(_polygamma)
