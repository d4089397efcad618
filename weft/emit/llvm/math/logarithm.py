"""Logarithms and roots of vectors, in f32 and f64."""

from __future__ import annotations

import math

from weft.emit.llvm.math.polynomial import (
    FLOAT_BITS,
    at_least,
    at_most,
    bits_of,
    float_of,
    horner,
    magnitude,
    where,
    with_sign,
)
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Logarithm:
    """Constants of log(x) for a float type."""

    series: tuple[float, ...]
    log2_high: float  # log(2) = high + low, and n * high is exact
    log2_low: float
    root: int  # the bits of sqrt(1/2)


# fmt: off
_TABLE = {
    "float": Logarithm(
        (  # of (log(1 + f) - f + f^2 / 2) / f^3
            0.3333333134651184, -0.250008225440979, 0.20001260936260223, -0.16623327136039734,
            0.14200890064239502, -0.13157474994659424, 0.12778691947460175, -0.07685884088277817,
        ),
        0.693145751953125, 1.428606765330187e-06, 0x3F3504F3,
    ),
    "double": Logarithm(
        (  # of (log(1 + f) / s - 2) / s^2, in s^2, where s = f / (2 + f)
            0.6666666666666734, 0.39999999999416547, 0.28571428742064886, 0.22222198599851514,
            0.18183563189019847, 0.15314074646431733, 0.14795749444662637,
        ),
        0.693147180559663, 2.8235290563031577e-13, 0x3FE6A09E667F3BCD,
    ),
}
# fmt: on


def log(v: Vectors, x: Vector) -> Vector:
    """The natural logarithm."""
    n, f = mantissa_parts(v, x)
    return _log_special(v, x, _log_of(v, n, f))


def log1p(v: Vectors, x: Vector) -> Vector:
    """log(1 + x), accurate near 0: the rounding error of 1 + x is added to the mantissa's rest."""
    form = FLOAT_BITS[x.kind]
    one = v.constant(1.0, x.kind)
    y = v.add(x, one)
    large = v.compare("ogt", x, one)
    # Fast two-sum (Dekker): exact if the larger of the summands is subtracted first.
    lost = v.select(large, v.sub(one, v.sub(y, x)), v.sub(x, v.sub(y, one)))
    n, f = mantissa_parts(v, y)
    # Beyond 2^64 there is no rounding error, and 2^-n may have no exponent.
    few = v.cast("fptosi", at_most(v, at_least(v, n, -64.0), 64.0), form.integer)
    bias = v.constant(form.bias, form.integer)
    amount = v.constant(form.mantissa, form.integer)
    inverse = float_of(v, v.binary("shl", v.sub(bias, few), amount))
    found = _log_special(v, y, _log_of(v, n, v.fma(lost, inverse, f)))
    return where(v, "oeq", x, 0.0, x, found)


def _log_of(v: Vectors, n: Vector, f: Vector) -> Vector:
    """log(2^n (1 + f)) = n log(2) + f - f^2 / 2 + ..."""
    table = _TABLE[f.kind]
    half = v.mul(v.mul(f, f), v.constant(0.5, f.kind))
    if f.kind == "float":
        rest = v.mul(v.mul(v.mul(f, f), f), horner(v, f, table.series))
    else:
        # As in FreeBSD's e_log.c: atanh's series in s has only odd powers and converges faster than
        # log1p's.
        s = v.div(f, v.add(f, v.constant(2.0, f.kind)))
        square = v.mul(s, s)
        rest = v.mul(s, v.fma(square, horner(v, square, table.series), half))
    rest = v.fma(n, v.constant(table.log2_low, f.kind), rest)
    small = v.add(f, v.sub(rest, half))
    # Added last and largest: n * high is exact, so the small terms are rounded only once.
    return v.fma(n, v.constant(table.log2_high, f.kind), small)


def _log_special(v: Vectors, x: Vector, result: Vector) -> Vector:
    """-inf at 0, NaN below; inf and NaN unchanged."""
    # False for NaN as well, so that inf and NaN pass in one comparison.
    result = where(v, "olt", x, math.inf, result, x)
    result = where(v, "oeq", x, 0.0, v.constant(-math.inf, x.kind), result)
    return where(v, "olt", x, 0.0, v.constant(math.nan, x.kind), result)


def mantissa_parts(v: Vectors, x: Vector) -> tuple[Vector, Vector]:
    """n and f: x = 2^n (1 + f), with 1 + f between sqrt(1/2) and sqrt(2)."""
    form = FLOAT_BITS[x.kind]
    small = v.compare("olt", x, v.constant(2.0 ** (1 - form.bias), x.kind))
    lift = form.mantissa + 1
    # Subnormals have no leading 1: they are scaled up, exactly, before their bits are taken apart.
    x = v.select(small, v.mul(x, v.constant(2.0**lift, x.kind)), x)
    bits = bits_of(v, x)
    middle = v.constant(_TABLE[x.kind].root, form.integer)
    amount = v.constant(form.mantissa, form.integer)
    # Counted from sqrt(1/2), not from 1: f then is between -0.3 and 0.42, and log(x) near 1 has n =
    # 0, without cancellation between n log(2) and log(1 + f).
    whole = v.binary("ashr", v.sub(bits, middle), amount)
    mantissa = float_of(v, v.sub(bits, v.binary("shl", whole, amount)))
    n = v.cast("sitofp", whole, x.kind)
    n = v.select(small, v.sub(n, v.constant(float(lift), x.kind)), n)
    return n, v.sub(mantissa, v.constant(1.0, x.kind))


def sqrt(v: Vectors, x: Vector) -> Vector:
    """The square root, correctly rounded."""
    return v.intrinsic("sqrt", x)


def rsqrt(v: Vectors, x: Vector) -> Vector:
    """1 / sqrt(x)."""
    return v.div(v.constant(1.0, x.kind), v.intrinsic("sqrt", x))


def cbrt(v: Vectors, x: Vector) -> Vector:
    """The cube root: an estimate of the mantissa, refined by Halley's method, in f64."""
    if x.kind == "float":
        return v.cast("fptrunc", cbrt(v, v.cast("fpext", x, "double")), "float")
    size = magnitude(v, x)
    n, f = mantissa_parts(v, size)
    third = v.intrinsic("roundeven", v.mul(n, v.constant(1 / 3, x.kind)))
    # Exact: both are small integers.
    left = v.fma(third, v.constant(-3.0, x.kind), n)  # -1, 0 or 1
    a = v.mul(v.add(f, v.constant(1.0, x.kind)), _two_to(v, left))
    root = horner(v, a, _CUBE_ROOT)
    for _ in range(3):
        cube = v.mul(v.mul(root, root), root)
        twice = v.add(cube, cube)
        change = v.div(v.sub(a, cube), v.add(twice, a))
        root = v.fma(root, change, root)
    result = with_sign(v, v.mul(root, _two_to(v, third)), x)
    special = v.binary(
        "or", v.compare("oeq", x, v.constant(0.0, x.kind)), v.compare("uno", v.sub(x, x), x)
    )
    return v.select(special, x, result)


# A line through the cube roots of 1/3 and 3 would do; this parabola halves the error.
_CUBE_ROOT = (0.5, 0.55, -0.05)


def _two_to(v: Vectors, n: Vector) -> Vector:
    """2^n of whole numbers in f64 (of normal size)."""
    bits = v.add(v.cast("fptosi", n, "i64"), v.constant(1023, "i64"))
    return float_of(v, v.binary("shl", bits, v.constant(52, "i64")))
