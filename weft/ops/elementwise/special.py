"""CHLO's elementwise ops: special functions, predicates and constants."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated

import numpy as np

from weft.ir.attrs import Codec
from weft.ir.check import tensor_type
from weft.ir.dense import Dense, parse_dense, scalar_text
from weft.ir.op import Op, op
from weft.ir.rule import Rule, RuleBuilder
from weft.ir.types import Array, TensorType, Type, Types
from weft.ir.work import Work, moved
from weft.ops import shape
from weft.ops.elementwise.pointwise import FLOAT, FLOATS, INTEGER, Pointwise, boolean, pointwise
from weft.ops.numerics import arithmetic, complex_math, special_functions
from weft.ops.numerics.arithmetic import Ufunc, in_double, in_own_type, with_width

row = partial(pointwise, assembly="$operands$fields : $types -> $type", module=__name__)


def function(name: str, meaning: str, real: Ufunc, complex: Ufunc) -> type[Pointwise]:
    """One row: a function of real and complex numbers, rounded once."""
    computed = in_double(real, complex=complex)
    return row(name, meaning, computed, 1, FLOATS, transcendental=True)


def approximated(
    name: str, meaning: str, real: Ufunc, arity: int = 1, transcendental: int = 1
) -> type[Pointwise]:
    """One row: a special function, by XLA's approximation in f32 or f64."""

    def computed(*arrays: Array) -> Array:
        dtype = arrays[0].dtype
        # Narrow floats in f32, rounded at the end, as XLA upcasts them.
        wide = np.float64 if dtype == np.float64 else np.float32
        with np.errstate(all="ignore"):
            return np.asarray(real(*[a.astype(wide) for a in arrays])).astype(dtype)

    return row(name, meaning, computed, arity, FLOAT, transcendental=transcendental)


# Circular and hyperbolic functions

Acos = function("chlo.acos", "the arc cosine", np.arccos, complex_math.acos)
Acosh = function("chlo.acosh", "the inverse of cosh", np.arccosh, complex_math.acosh)
Asin = function("chlo.asin", "the arc sine", np.arcsin, complex_math.asin)
Asinh = function("chlo.asinh", "the inverse of sinh", np.arcsinh, complex_math.asinh)
Atan = function("chlo.atan", "the arc tangent", np.arctan, complex_math.atan)
Atanh = function("chlo.atanh", "the inverse of tanh", np.arctanh, complex_math.atanh)
Cosh = function("chlo.cosh", "(exp(operand) + exp(-operand)) / 2", np.cosh, complex_math.cosh)
Sinh = function("chlo.sinh", "(exp(operand) - exp(-operand)) / 2", np.sinh, np.sinh)
ChloTan = function("chlo.tan", "tan(operand)", np.tan, complex_math.tan)
AsinAcosKernel = row(
    "chlo._asin_acos_kernel",
    "w, from which asin, acos, asinh and acosh follow",
    in_double(complex_math.asin_acos_kernel),
    1,
    "complex",
    transcendental=True,
)

# Special functions

BesselI1e = approximated(
    "chlo.bessel_i1e", "exp(-|operand|) I1(operand)", special_functions.bessel_i1e
)
Digamma = approximated("chlo.digamma", "the derivative of lgamma", special_functions.digamma)
Erf = approximated("chlo.erf", "the error function", special_functions.erf)
ErfInv = approximated("chlo.erf_inv", "the inverse of erf", special_functions.erf_inv)
Erfc = approximated("chlo.erfc", "1 - erf(operand)", special_functions.erfc)
Lgamma = approximated("chlo.lgamma", "log|gamma(operand)|", special_functions.lgamma)
Polygamma = approximated(
    "chlo.polygamma",
    "the lhs-th derivative of digamma at rhs",
    special_functions.polygamma,
    2,
    special_functions.ZETA_TERMS + 3,
)
Zeta = approximated(
    "chlo.zeta",
    "the sum of (rhs + k)^-lhs over k = 0, 1, ..",
    special_functions.zeta,
    2,
    special_functions.ZETA_TERMS + 1,
)

# Arithmetic

Conj = row("chlo.conj", "the complex conjugate", in_own_type(np.conj), 1, FLOATS)
Square = row(
    "chlo.square",
    "operand * operand",
    in_own_type(np.square, complex=complex_math.square),
    1,
    FLOATS,
)
Mulhi = row(
    "chlo.mulhi",
    "the upper half of the bits of lhs * rhs",
    with_width(arithmetic.high_product),
    2,
    INTEGER,
)
NextAfter = row(
    "chlo.next_after",
    "the number after lhs on the way to rhs",
    arithmetic.next_after,
    2,
    FLOAT,
)

# Predicates

IsInf = row(
    "chlo.is_inf",
    "whether the operand is infinite",
    lambda x: np.isinf(arithmetic.widen(x)),
    1,
    FLOAT,
    result=boolean,
)
IsPosInf = row(
    "chlo.is_pos_inf",
    "whether the operand is inf",
    lambda x: arithmetic.widen(x) == np.inf,
    1,
    FLOAT,
    result=boolean,
)
IsNegInf = row(
    "chlo.is_neg_inf",
    "whether the operand is -inf",
    lambda x: arithmetic.widen(x) == -np.inf,
    1,
    FLOAT,
    result=boolean,
)


# Constants

_COMPLEX = re.compile(r"#complex\.number<:\w+ (.+), (.+)> : (.+)")


def _read_scalar(text: str) -> Dense:
    if text in ("true", "false"):
        return parse_dense(f"dense<{text}> : tensor<i1>")
    if match := _COMPLEX.fullmatch(text):
        return parse_dense(f"dense<({match[1]}, {match[2]})> : tensor<{match[3]}>")
    number, _, dtype = text.partition(" : ")
    return parse_dense(f"dense<{number}> : tensor<{dtype}>")


def _write_scalar(value: Dense) -> str:
    dtype = value.type.dtype
    text = scalar_text(value.elements[0], dtype)
    if dtype.is_complex:
        return f"#complex.number<:{dtype.real} {text[1:-1]}> : {dtype}"
    return text if dtype.kind == "bool" else f"{text} : {dtype}"


SCALAR = Codec(_read_scalar, _write_scalar)


@op("chlo.constant")
class ChloConstant(Op):
    """A tensor known when the program is written."""

    value: Dense
    assembly = "$value"
    elementwise = True

    def infer(self) -> Type:
        return self.value.type

    def rule(self) -> Rule:
        return shape.Constant(self.value).rule()

    def reference(self) -> Array:
        return self.value.array

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(bytes=moved(*results))

    def local(self, operands: Types, results: Types) -> Op:
        return self.replace(value=shape.local_value(self.value, results[0]))


@op("chlo.constant_like")
class ConstantLike(Op):
    """out[i..] = value, for every i.. of the operand."""

    value: Annotated[Dense, SCALAR]
    elementwise = True

    def infer(self, operand: Type) -> Type:
        return tensor_type(self.name, 0, operand).with_dtype(self.value.type.dtype)

    def rule(self, operand: TensorType) -> Rule:
        return RuleBuilder((operand,), (operand,)).pointwise(operand.bounds).build()

    def reference(self, operand: Array) -> Array:
        return np.broadcast_to(self.value.array, operand.shape)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(bytes=moved(*results))


OPS: tuple[type[Op], ...] = (
    Acos,
    Acosh,
    Asin,
    Asinh,
    Atan,
    Atanh,
    Cosh,
    Sinh,
    ChloTan,
    AsinAcosKernel,
    BesselI1e,
    Digamma,
    Erf,
    ErfInv,
    Erfc,
    Lgamma,
    Polygamma,
    Zeta,
    Conj,
    Square,
    Mulhi,
    NextAfter,
    IsInf,
    IsPosInf,
    IsNegInf,
    ChloConstant,
    ConstantLike,
)
