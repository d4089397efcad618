"""2^x for x <= 0, as softmax needs it."""

from __future__ import annotations

import math

from weft.emit.llvm.writer.vector import Vector, Vectors

# 2^f = 1 + f * (...), relative error 1e-7: minimax polynomials with a leading 1.
_AROUND_0 = (  # |f| <= 1/2
    0.6931469775997529,
    0.24022242085357726,
    0.05550733742307695,
    0.009671512641764373,
    0.0013264727490297813,
)
_UP_TO_1 = (  # 0 <= f < 1
    0.6931513118042059,
    0.2401644501586106,
    0.05579991309605021,
    0.00901703032859133,
    0.001867130068392959,
)
_DOUBLE = tuple(math.log(2) ** n / math.factorial(n) for n in range(1, 14))
_MANTISSA = {"float": 23, "double": 52}
_BIAS = {"float": 127, "double": 1023}


def exp2_below(v: Vectors, x: Vector, *, scaling: bool = False, least: int = -126) -> Vector:
    """2^x for x <= 0; flushed to 0 below the least normal number, NaN for NaN.

    With `scaling` it uses AVX-512's vreduce and vscalef; results below 2^least are 0 then.
    """
    if scaling and x.kind == "float" and x.width == 16:
        return _scaled(v, x, least)
    lowest = v.constant(-_BIAS[x.kind], x.kind)
    # Not fmax: a NaN compares false and stays, so that it shows in the result.
    x = v.select(v.compare("ogt", lowest, x), lowest, x)
    # Adding 1.5 * 2^mantissa + bias rounds to an integer, which is left biased in the low bits.
    large = v.constant(1.5 * 2.0 ** _MANTISSA[x.kind] + _BIAS[x.kind], x.kind)
    # The sum's low bits are the biased exponent already: one shift makes 2^n, without a conversion.
    shifted = v.add(x, large)
    fraction = v.sub(x, v.sub(shifted, large))
    whole = "i32" if x.kind == "float" else "i64"
    bits = v.cast("bitcast", shifted, whole)
    power = v.cast("bitcast", v.binary("shl", bits, v.constant(_MANTISSA[x.kind], whole)), x.kind)
    series = _AROUND_0 if x.kind == "float" else _DOUBLE
    return v.mul(_sum(v, fraction, series), power)


def _sum(v: Vectors, x: Vector, series: tuple[float, ...]) -> Vector:
    """1 + x * (c0 + x * (c1 + ...))."""
    found = v.constant(series[-1], x.kind)
    for c in (*reversed(series[:-1]), 1.0):
        found = v.fma(found, x, v.constant(c, x.kind))
    return found


def _scaled(v: Vectors, x: Vector, least: int) -> Vector:
    """The same by two instructions: the fraction above the floor, and a scale by 2^floor."""
    type, every, rounding = x.type, "i16 -1", "i32 4"  # all lanes; rounding as in MXCSR
    reduce = "llvm.x86.avx512.mask.reduce.ps.512"
    v.code.declare(f"declare {type} @{reduce}({type}, i32 immarg, {type}, i16, i32 immarg)")
    below, nothing = "i32 1", f"{type} zeroinitializer"  # towards -inf
    text = f"call {type} @{reduce}({x.typed}, {below}, {nothing}, {every}, {rounding})"
    fraction = Vector(v.code.let(text), x.kind, x.width)
    scale = "llvm.x86.avx512.mask.scalef.ps.512"
    v.code.declare(f"declare {type} @{scale}({type}, {type}, {type}, i16, i32 immarg)")
    sum_ = _sum(v, fraction, _UP_TO_1)
    # Masked out below the least normal number: a subnormal assist takes a hundred times as long.
    kept = v.compare("uge", x, v.constant(least, x.kind))
    lanes = v.code.let(f"bitcast {kept.typed} to i16")
    text = f"call {type} @{scale}({sum_.typed}, {x.typed}, {nothing}, i16 {lanes}, {rounding})"
    return Vector(v.code.let(text), x.kind, x.width)
