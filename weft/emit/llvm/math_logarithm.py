"""Logarithms and roots of vectors, in f32 and f64."""

from __future__ import annotations

import math
from dataclasses import dataclass

from weft.emit.llvm.polynomial import LAYOUTS, bits_of, float_of, horner, where
from weft.emit.llvm.vector import Vector, Vectors


@dataclass(frozen=True, slots=True)
class Logarithm:
    """Constants of log(x) for a float type."""

    series: tuple[float, ...]  # of (log(1 + f) - f + f^2 / 2) / f^3
    log2_high: float  # log(2) = high + low, and n * high is exact
    log2_low: float


# fmt: off
_TABLE = {
    "float": Logarithm(
        (
            0.3333333134651184, -0.250008225440979, 0.20001260936260223, -0.16623327136039734,
            0.14200890064239502, -0.13157474994659424, 0.12778691947460175, -0.07685884088277817,
        ),
        0.693145751953125, 1.428606765330187045e-6,
    ),
}
# fmt: on


def log(v: Vectors, x: Vector) -> Vector:
    """The natural logarithm."""
    table = _TABLE[x.kind]
    n, f = _split(v, x)
    square = v.mul(f, f)
    rest = v.mul(v.mul(square, f), horner(v, f, table.series))
    rest = v.fma(n, v.constant(table.log2_low, x.kind), rest)
    rest = v.fma(square, v.constant(-0.5, x.kind), rest)
    found = v.fma(n, v.constant(table.log2_high, x.kind), v.add(f, rest))
    return _log_special(v, x, found)


def _log_special(v: Vectors, x: Vector, found: Vector) -> Vector:
    """-inf at 0, NaN below, and inf and NaN as they are."""
    found = where(v, "olt", x, math.inf, found, x)
    found = where(v, "oeq", x, 0.0, v.constant(-math.inf, x.kind), found)
    return where(v, "olt", x, 0.0, v.constant(math.nan, x.kind), found)


def _split(v: Vectors, x: Vector) -> tuple[Vector, Vector]:
    """n and f: x = 2^n (1 + f), with 1 + f between sqrt(1/2) and sqrt(2)."""
    layout = LAYOUTS[x.kind]
    small = v.compare("olt", x, v.constant(2.0 ** (1 - layout.bias), x.kind))
    lift = layout.mantissa + 1
    x = v.select(small, v.mul(x, v.constant(2.0**lift, x.kind)), x)
    bits = bits_of(v, x)
    middle = v.constant(_ROOT_BITS[x.kind], layout.integer)  # of sqrt(1/2)
    amount = v.constant(layout.mantissa, layout.integer)
    whole = v.binary("ashr", v.sub(bits, middle), amount)
    mantissa = float_of(v, v.sub(bits, v.binary("shl", whole, amount)))
    n = v.cast("sitofp", whole, x.kind)
    n = v.select(small, v.sub(n, v.constant(float(lift), x.kind)), n)
    return n, v.sub(mantissa, v.constant(1.0, x.kind))


_ROOT_BITS = {"float": 0x3F3504F3, "double": 0x3FE6A09E667F3BCD}


def sqrt(v: Vectors, x: Vector) -> Vector:
    """The square root, rounded once."""
    return v.intrinsic("sqrt", x)


def rsqrt(v: Vectors, x: Vector) -> Vector:
    """1 / sqrt(x)."""
    return v.div(v.constant(1.0, x.kind), v.intrinsic("sqrt", x))
