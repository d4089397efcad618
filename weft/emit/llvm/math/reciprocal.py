"""Division by a number that many share, as products."""

from __future__ import annotations

from weft.emit.llvm.writer.vector import Vector, Vectors

_FAR = {"float": 100, "double": 900}  # exponents from which on 1 / x may not be a normal number
_STEP = {"float": 64, "double": 512}


def reciprocal(v: Vectors, x: Vector) -> tuple[Vector, Vector]:
    """Two factors that multiply to 1 / x, for any x: neither of them overflows or is subnormal.

    A product with the first and then with the second is within 2 units in the last place of the
    quotient, and right for zeros, infinities and NaN.
    """
    size = v.intrinsic("fabs", x)
    far, step = _FAR[x.kind], _STEP[x.kind]
    up, down = v.constant(2.0**step, x.kind), v.constant(2.0**-step, x.kind)
    small = v.compare("olt", size, v.constant(2.0**-far, x.kind))
    large = v.compare("ogt", size, v.constant(2.0**far, x.kind))
    scale = v.select(small, up, v.select(large, down, v.constant(1.0, x.kind)))
    return v.div(v.constant(1.0, x.kind), v.mul(x, scale)), scale
