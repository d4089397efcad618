"""Inverse hyperbolic functions of vectors; f32 is computed in f64."""

from __future__ import annotations

import math
from collections.abc import Callable

from weft.emit.llvm.math.logarithm import log1p
from weft.emit.llvm.math.polynomial import magnitude, where, with_sign
from weft.emit.llvm.writer.vector import Vector, Vectors

_LARGE = 2.0**60  # above, log(1 + x) is log(x)


def in_double(function: Callable[..., Vector]) -> Callable[..., Vector]:
    """An f64 function for f32, too."""

    def run(v: Vectors, *args: Vector) -> Vector:
        if args[0].kind == "float":
            wide = [v.cast("fpext", arg, "double") for arg in args]
            return v.cast("fptrunc", function(v, *wide), "float")
        return function(v, *args)

    return run


def _asinh(v: Vectors, x: Vector) -> Vector:
    """log(x + sqrt(1 + x^2)) = log1p(x + x^2 / (1 + sqrt(1 + x^2)))."""
    size, one = magnitude(v, x), v.constant(1.0, x.kind)
    square = v.mul(size, size)
    root = v.intrinsic("sqrt", v.add(square, one))
    # sqrt(1 + x^2) - 1 as x^2 / (1 + sqrt(1 + x^2)): the difference would cancel near 0.
    near = v.add(size, v.div(square, v.add(root, one)))
    return with_sign(v, _log1p_or_double(v, size, near), x)


def _acosh(v: Vectors, x: Vector) -> Vector:
    """log(x + sqrt(x^2 - 1)), with t = x - 1: log1p(t + sqrt(2t + t^2))."""
    t = v.sub(x, v.constant(1.0, x.kind))
    root = v.intrinsic("sqrt", v.fma(t, t, v.add(t, t)))
    found = _log1p_or_double(v, x, v.add(t, root))
    return where(v, "olt", x, 1.0, v.constant(math.nan, x.kind), found)


def _log1p_or_double(v: Vectors, x: Vector, near: Vector) -> Vector:
    """log(1 + near), or log(2x) for large x."""
    large = v.compare("ogt", x, v.constant(_LARGE, x.kind))
    found = log1p(v, v.select(large, x, near))
    return v.select(large, v.add(found, v.constant(math.log(2), x.kind)), found)


def _atanh(v: Vectors, x: Vector) -> Vector:
    """log((1 + x) / (1 - x)) / 2."""
    size = magnitude(v, x)
    # (1 + x) / (1 - x) = 1 + 2x / (1 - x), for log1p.
    ratio = v.div(v.add(size, size), v.sub(v.constant(1.0, x.kind), size))
    return with_sign(v, v.mul(log1p(v, ratio), v.constant(0.5, x.kind)), x)


asinh = in_double(_asinh)
acosh = in_double(_acosh)
atanh = in_double(_atanh)
