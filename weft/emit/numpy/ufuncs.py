"""numpy's functions of ops, by the kind of element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.ir.op import Op
from weft.ir.types import Array, DType
from weft.ops.elementwise.pointwise import (
    Abs,
    Add,
    And,
    Ceil,
    Divide,
    Floor,
    Maximum,
    Minimum,
    Multiply,
    Negate,
    Not,
    Or,
    Power,
    Remainder,
    RoundNearestEven,
    Subtract,
    Xor,
)
from weft.ops.elementwise.transcendental import (
    Atan2,
    Cbrt,
    Cosine,
    Exponential,
    ExponentialMinusOne,
    Log,
    Logistic,
    LogPlusOne,
    Rsqrt,
    Sine,
    Sqrt,
    Tan,
    Tanh,
)

NumpyUfunc = Any  # ufunc signature: the output array comes last


def _rsqrt(x: Array, out: Array | None = None) -> Array:
    root = np.sqrt(x, out)
    return np.divide(1, root, root)


def _logistic(x: Array, out: Array | None = None) -> Array:
    made = np.negative(x, out)
    np.exp(made, made)
    np.add(made, 1, made)
    return np.divide(1, made, made)


# By element kind: the numpy functions that agree with the reference.
_NUMBERS: dict[type[Op], NumpyUfunc] = {
    Add: np.add,
    Subtract: np.subtract,
    Multiply: np.multiply,
    Negate: np.negative,
    Abs: np.absolute,
    Maximum: np.maximum,
    Minimum: np.minimum,
}
FLOATS: dict[type[Op], NumpyUfunc] = _NUMBERS | {
    Divide: np.divide,
    Remainder: np.fmod,
    Power: np.power,
    Ceil: np.ceil,
    Floor: np.floor,
    RoundNearestEven: np.rint,
    Sqrt: np.sqrt,
    Rsqrt: _rsqrt,
    Cbrt: np.cbrt,
    Exponential: np.exp,
    ExponentialMinusOne: np.expm1,
    Log: np.log,
    LogPlusOne: np.log1p,
    Logistic: _logistic,
    Sine: np.sin,
    Cosine: np.cos,
    Tan: np.tan,
    Tanh: np.tanh,
    Atan2: np.arctan2,
}
INTEGERS: dict[type[Op], NumpyUfunc] = _NUMBERS | {
    And: np.bitwise_and,
    Or: np.bitwise_or,
    Xor: np.bitwise_xor,
    Not: np.invert,
}
BOOLEANS: dict[type[Op], NumpyUfunc] = {
    Add: np.logical_or,
    Multiply: np.logical_and,
    Maximum: np.logical_or,
    Minimum: np.logical_and,
    And: np.logical_and,
    Or: np.logical_or,
    Xor: np.logical_xor,
    Not: np.logical_not,
}
# Complex products and quotients use the reference: numpy's lose infinities.
COMPLEX: dict[type[Op], NumpyUfunc] = {Add: np.add, Subtract: np.subtract, Negate: np.negative}
# numpy takes the output of these by keyword.
INTO: dict[NumpyUfunc, Callable[..., object]] = {
    np.maximum: lambda a, b, out: np.maximum(a, b, out=out),
    np.minimum: lambda a, b, out: np.minimum(a, b, out=out),
}
NATIVE_FLOATS = ("f16", "f32", "f64")


def is_native(dtype: DType) -> bool:
    """Whether numpy itself computes with these elements."""
    if dtype.is_float:
        return dtype.name in NATIVE_FLOATS
    return dtype.is_complex or dtype.bits in (1, 8, 16, 32, 64)


def ufunc_of(op: type[Op], dtype: DType) -> NumpyUfunc | None:
    """The numpy function of an op on an element type, or None."""
    match dtype.kind:
        case "float":
            return FLOATS.get(op)
        case "int" | "uint":
            return INTEGERS.get(op) if is_native(dtype) else None
        case "bool":
            return BOOLEANS.get(op)
        case "complex":
            return COMPLEX.get(op)
    return None
