"""Division by a common divisor, as multiplications."""

from __future__ import annotations

from weft.emit.llvm.writer.vector import Vector, Vectors

_FAR = {"float": 100, "double": 900}  # exponents from which 1 / x may not be normal
_STEP = {"float": 64, "double": 512}


def reciprocal(v: Vectors, x: Vector) -> tuple[Vector, Vector]:
    """Two factors with product 1 / x, for any x: neither overflows or is subnormal.

    Multiplying by the first and then the second is within 2 ulp of the quotient, and handles zeros,
    infinities and NaN.
    """
    size = v.intrinsic("fabs", x)
    far, step = _FAR[x.kind], _STEP[x.kind]
    up, down = v.constant(2.0**step, x.kind), v.constant(2.0**-step, x.kind)
    # 1 / x of a tiny x overflows, of a huge one is subnormal (and flushed, or slow): x is moved to
    # the middle first, and the factor given back.
    small = v.compare("olt", size, v.constant(2.0**-far, x.kind))
    large = v.compare("ogt", size, v.constant(2.0**far, x.kind))
    scale = v.select(small, up, v.select(large, down, v.constant(1.0, x.kind)))
    return v.div(v.constant(1.0, x.kind), v.mul(x, scale)), scale
