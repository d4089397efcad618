"""The functions that kernels compute of floats, and how far they may be from the exact ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from weft.emit.llvm.math import circular, error, exponential, gamma, hyperbolic, logarithm, logistic
from weft.emit.llvm.math import power as powers
from weft.emit.llvm.writer.vector import Vector
from weft.ir.types import F32, Array, DType


@dataclass(frozen=True)
class Function:
    """A function of vectors, the exact one, and what is promised in units in the last place."""

    name: str
    emit: Callable[..., Vector]
    exact: Callable[..., Any]
    ulps32: float
    ulps64: float
    usual: tuple[float, float] = (-10.0, 10.0)  # where programs use it
    arity: int = 1


def _logistic(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1) / (1 + small)


def _in_f64(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that scipy does not have for longer floats."""
    return lambda x: function(x.astype(np.float64))


def _lgamma(x: float) -> float:
    try:
        return math.lgamma(x)
    except (OverflowError, ValueError):  # too large, or a pole
        return math.inf


def _digamma(x: Array) -> Array:
    """NaN at the poles, as XLA has it."""
    return np.where((x <= 0) & (x == np.floor(x)), np.nan, special.digamma(x))


def _erf_inv(x: Array) -> Array:
    return np.where(x == 0, x, special.erfinv(x))


FUNCTIONS = (
    Function("exp", exponential.exp, np.exp, 1, 1, (-20, 20)),
    Function("expm1", exponential.expm1, np.expm1, 1.5, 2.5),
    Function("tanh", exponential.tanh, np.tanh, 1.5, 2),
    Function("logistic", logistic.logistic, _logistic, 2, 2),
    Function("sinh", exponential.sinh, np.sinh, 2, 2),
    Function("cosh", exponential.cosh, np.cosh, 1.5, 1.5),
    Function("log", logarithm.log, np.log, 1.1, 1, (0, 10)),
    Function("log1p", logarithm.log1p, np.log1p, 1.5, 1.5, (-1, 10)),
    Function("sqrt", logarithm.sqrt, np.sqrt, 0.5, 0.5, (0, 10)),
    Function("rsqrt", logarithm.rsqrt, lambda x: 1 / np.sqrt(x), 1.5, 1.5, (0, 10)),
    Function("cbrt", logarithm.cbrt, np.cbrt, 0.51, 1),
    Function("power", powers.power, np.power, 0.51, 1, (0, 20), 2),
    Function("remainder", powers.remainder, np.fmod, 0, 0, (-10, 10), 2),
    Function("sin", circular.sin, np.sin, 1.5, 2),
    Function("cos", circular.cos, np.cos, 1.5, 2),
    Function("tan", circular.tan, np.tan, 0.51, 3.5),
    Function("asin", circular.asin, np.arcsin, 1.5, 2, (-1, 1)),
    Function("acos", circular.acos, np.arccos, 1.5, 1.5, (-1, 1)),
    Function("atan", circular.atan, np.arctan, 1.5, 3),
    Function("atan2", circular.atan2, np.arctan2, 1.5, 3, (-10, 10), 2),
    Function("asinh", hyperbolic.asinh, np.arcsinh, 0.51, 2.5),
    Function("acosh", hyperbolic.acosh, np.arccosh, 0.51, 2.5, (1, 10)),
    Function("atanh", hyperbolic.atanh, np.arctanh, 0.51, 2.5, (-1, 1)),
    Function("erf", error.erf, np.vectorize(math.erf, otypes="d"), 1.25, 2, (-4, 4)),
    Function("erfc", error.erfc, np.vectorize(math.erfc, otypes="d"), 2, 5, (-4, 4)),
    Function("erf_inv", error.erf_inv, _in_f64(_erf_inv), 100, math.inf, (-0.99, 0.99)),
    Function("lgamma", gamma.lgamma, np.vectorize(_lgamma, otypes="d"), math.inf, math.inf),
    Function("digamma", gamma.digamma, _in_f64(_digamma), math.inf, math.inf, (0, 10)),
    Function("bessel_i1e", gamma.bessel_i1e, _in_f64(special.i1e), 1, 20),
)
SPECIAL = (0, 1, 0.5, 2, 3, 88.72283, 88.72284, 87.33, 103.9, 104, 709.78, 710, 745.2, 2e5, 1e-45)
SPECIAL += (1e-38, 3.4e38, 5e-324, 1e300, np.inf, np.nan)


def patterns(dtype: DType, count: int, seed: int) -> Array:
    """Random bits as floats, with the special numbers at their beginning."""
    rng = np.random.default_rng(seed)
    held = np.dtype(f"u{dtype.numpy.itemsize}")
    bits = rng.integers(0, 1 << dtype.bits, count, dtype=held, endpoint=False)
    with np.errstate(all="ignore"):
        first = np.array([*SPECIAL, *(-x for x in SPECIAL)]).astype(dtype.numpy)
    found = bits.view(dtype.numpy)
    found[: len(first)] = rng.permutation(first)
    return found


def usual(function: Function, dtype: DType, count: int, seed: int) -> Array:
    """Random numbers where programs use a function."""
    rng = np.random.default_rng(seed)
    return rng.uniform(*function.usual, count).astype(dtype.numpy)


def ulps(actual: Array, exact: Array) -> Array:
    """How far results are from exact (longer) ones, in units in the last place; inf if wrong."""
    info = np.finfo(actual.dtype)
    with np.errstate(all="ignore"):
        near = exact.astype(actual.dtype)
        exponent = np.maximum(np.frexp(np.abs(exact))[1] - 1, info.minexp)
        unit = np.ldexp(exact.dtype.type(1), exponent - info.nmant)
        apart = np.abs(actual.astype(exact.dtype) - exact) / unit
    both_nan = np.isnan(actual) & np.isnan(near)
    wrong = (np.isnan(actual) != np.isnan(near)) | (
        (actual == 0) & (near == 0) & _other(actual, exact)
    )
    same = (actual == near) & ~np.isfinite(apart)  # infinities
    return np.where(both_nan | same, 0.0, np.where(wrong, np.inf, apart)).astype(np.float64)


def _other(actual: Array, exact: Array) -> Array:
    return np.asarray(np.signbit(actual) != np.signbit(exact))


def errors(function: Function, run: Callable[..., Array], *args: Array) -> Array:
    """The errors of a compiled function of f32 or f64, against f64 or the longest float."""
    wide = np.float64 if args[0].dtype == F32.numpy else np.longdouble
    with np.errstate(all="ignore"):
        exact = np.asarray(function.exact(*(x.astype(wide) for x in args)))
    return ulps(run(*args), exact)
