"""Transcendental elementwise functions: exponentials, logarithms, roots, trigonometry."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from weft.ir.op import Op
from weft.ops.elementwise.pointwise import FLOATS, Pointwise, pointwise
from weft.ops.numerics import arithmetic, complex_math
from weft.ops.numerics.arithmetic import in_double

row = partial(pointwise, transcendental=True, module=__name__)


def transcendental(
    name: str, meaning: str, real: Callable[..., Any], complex: Callable[..., Any] | None = None
) -> type[Pointwise]:
    """One row: a function of floats and complex numbers with a `result_accuracy`."""
    function = in_double(real, complex=complex)
    return row(name, meaning, function, 1, FLOATS, accuracy=True)


Cbrt = transcendental("stablehlo.cbrt", "the cube root", np.cbrt, complex_math.cbrt)
Cosine = transcendental("stablehlo.cosine", "cos(operand)", np.cos)
Exponential = transcendental(
    "stablehlo.exponential", "e to the power of the operand", np.exp, complex_math.exp
)
ExponentialMinusOne = transcendental(
    "stablehlo.exponential_minus_one", "exp(operand) - 1", np.expm1, complex_math.expm1
)
Log = transcendental("stablehlo.log", "the natural logarithm", np.log)
LogPlusOne = transcendental(
    "stablehlo.log_plus_one", "log(1 + operand)", np.log1p, complex_math.log1p
)
Logistic = transcendental(
    "stablehlo.logistic", "1 / (1 + exp(-operand))", arithmetic.logistic, complex_math.logistic
)
Rsqrt = transcendental(
    "stablehlo.rsqrt", "1 / sqrt(operand)", lambda x: 1 / np.sqrt(x), complex_math.rsqrt
)
Sine = transcendental("stablehlo.sine", "sin(operand)", np.sin)
Sqrt = transcendental("stablehlo.sqrt", "the square root", np.sqrt)
Tan = transcendental("stablehlo.tan", "tan(operand)", np.tan, complex_math.tan)
Tanh = transcendental("stablehlo.tanh", "tanh(operand)", np.tanh)
Atan2 = row(
    "stablehlo.atan2",
    "the angle of the point (rhs, lhs)",
    in_double(np.arctan2, complex=complex_math.atan2),
    2,
    FLOATS,
)


OPS: tuple[type[Op], ...] = (
    Cbrt,
    Cosine,
    Exponential,
    ExponentialMinusOne,
    Log,
    LogPlusOne,
    Logistic,
    Rsqrt,
    Sine,
    Sqrt,
    Tan,
    Tanh,
    Atan2,
)
