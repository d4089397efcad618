"""Powers of two of numbers that are not above 0, as softmax needs them."""

from __future__ import annotations

import math

from weft.emit.llvm.vector import Vector, Vectors

# 2^f = 1 + f * (...) for |f| <= 1/2, to 1e-7 of itself; the least largest error with a 1 in front.
_SINGLE = (
    0.6931469775997529,
    0.24022242085357726,
    0.05550733742307695,
    0.009671512641764373,
    0.0013264727490297813,
)
_DOUBLE = tuple(math.log(2) ** n / math.factorial(n) for n in range(1, 14))
_MANTISSA = {"float": 23, "double": 52}
_BIAS = {"float": 127, "double": 1023}


def exp2_below(v: Vectors, x: Vector) -> Vector:
    """2^x for x <= 0; 0 below the least normal number, NaN for NaN."""
    least = v.constant(-_BIAS[x.kind], x.kind)
    x = v.select(v.compare("ogt", least, x), least, x)
    # Adding this leaves the nearest integer, with the bias of exponents, in the lowest bits.
    large = v.constant(1.5 * 2.0 ** _MANTISSA[x.kind] + _BIAS[x.kind], x.kind)
    shifted = v.add(x, large)
    fraction = v.sub(x, v.sub(shifted, large))
    whole = "i32" if x.kind == "float" else "i64"
    bits = v.cast("bitcast", shifted, whole)
    power = v.cast("bitcast", v.binary("shl", bits, v.constant(_MANTISSA[x.kind], whole)), x.kind)
    series = _SINGLE if x.kind == "float" else _DOUBLE
    found = v.constant(series[-1], x.kind)
    for c in (*reversed(series[:-1]), 1.0):
        found = v.fma(found, fraction, v.constant(c, x.kind))
    return v.mul(found, power)
