"""Elementwise ops as Triton expressions: a table by op, and the element types each takes.

Expressions read variables, so that an operand may occur more than once. `lib` is the device's
library of functions, accurate to a few units in the last place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from weft.emit.triton import dtypes
from weft.ir.op import Op
from weft.ir.types import DType
from weft.kernels.kernel import is_rounded
from weft.ops import shape
from weft.ops.elementwise import broadcasting, convert, special
from weft.ops.elementwise import pointwise as ops
from weft.ops.elementwise import transcendental as functions
from weft.records import dataclass

Write: TypeAlias = Callable[..., str]  # from the operands' variables to an expression


@dataclass(frozen=True, slots=True)
class ExpressionForm:
    """An op's expressions by the kind of its first operand; missing kinds are refused."""

    real: Write | None = None
    coarse: Write | None = None  # of floats of fewer than 32 bits, if it differs
    integer: Write | None = None
    boolean: Write | None = None
    least: int = 8  # bits of an integer that it takes
    most: int = 64  # bits of a float that it takes

    def of(self, dtype: DType, *, coarse: bool = False) -> Write | None:
        """The expression of operands of a type, or None; `coarse` if a fast function suffices."""
        if dtype.kind == "bool":
            return self.boolean
        if dtype.is_float:
            narrow = self.coarse if coarse or dtype.bits < 32 else None
            return (narrow or self.real) if dtype.bits <= self.most else None
        return self.integer if dtype.is_integer and dtype.bits >= self.least else None


def _call(name: str) -> Write:
    return lambda *args: f"{name}({', '.join(args)})"


def _infix(sign: str) -> Write:
    return lambda a, b: f"{a} {sign} {b}"


def _real(name: str, coarse: Write | None = None) -> ExpressionForm:
    return ExpressionForm(real=_call(name), coarse=coarse)


_OR, _AND, _XOR = _infix("|"), _infix("&"), _infix("^")
_MAXIMUM = ExpressionForm(real=_call("p.maximum"), integer=_call("tl.maximum"), boolean=_OR)
_MINIMUM = ExpressionForm(real=_call("p.minimum"), integer=_call("tl.minimum"), boolean=_AND)


FORMS: dict[type[Op], ExpressionForm] = {
    ops.Abs: ExpressionForm(real=_call("tl.abs"), integer=_call("tl.abs")),
    ops.Add: ExpressionForm(real=_infix("+"), integer=_infix("+"), boolean=_OR),
    ops.Subtract: ExpressionForm(real=_infix("-"), integer=_infix("-")),
    ops.Multiply: ExpressionForm(real=_infix("*"), integer=_infix("*"), boolean=_AND),
    ops.Divide: ExpressionForm(
        real=_call("p.divide"), coarse=_infix("/"), integer=_call("p.divide_integers")
    ),
    ops.Remainder: ExpressionForm(real=_call("lib.fmod"), integer=_call("p.remainder_integers")),
    ops.Negate: ExpressionForm(real=lambda a: f"-{a}", integer=lambda a: f"-{a}"),
    ops.Sign: ExpressionForm(real=_call("p.sign"), integer=_call("p.sign_of_integer")),
    ops.Maximum: _MAXIMUM,
    ops.Minimum: _MINIMUM,
    ops.Clamp: ExpressionForm(
        real=lambda low, x, high: f"p.minimum(p.maximum({low}, {x}), {high})",
        integer=lambda low, x, high: f"tl.minimum(tl.maximum({low}, {x}), {high})",
    ),
    ops.And: ExpressionForm(integer=_AND, boolean=_AND),
    ops.Or: ExpressionForm(integer=_OR, boolean=_OR),
    ops.Xor: ExpressionForm(integer=_XOR, boolean=_XOR),
    ops.Not: ExpressionForm(integer=_call("p.invert"), boolean=lambda a: f"{a} == 0"),
    ops.Popcnt: ExpressionForm(integer=_call("p.count_ones"), least=32),
    ops.CountLeadingZeros: ExpressionForm(integer=_call("p.leading_zeros"), least=32),
    ops.ShiftLeft: ExpressionForm(integer=_call("p.shift_left")),
    ops.ShiftRightLogical: ExpressionForm(integer=_call("p.shift_right_logical")),
    ops.ShiftRightArithmetic: ExpressionForm(integer=_call("p.shift_right_arithmetic")),
    ops.Ceil: _real("tl.ceil"),
    ops.Floor: _real("tl.floor"),
    ops.RoundNearestAfz: _real("lib.round"),
    ops.RoundNearestEven: _real("lib.rint"),
    ops.IsFinite: _real("p.is_finite"),
    ops.Power: _real("lib.pow"),
    functions.Cbrt: _real("lib.cbrt"),
    functions.Cosine: _real("lib.cos"),
    functions.Exponential: _real("p.exp", coarse=_call("p.fast_exp")),
    functions.ExponentialMinusOne: _real("lib.expm1"),
    functions.Log: _real("lib.log"),
    functions.LogPlusOne: _real("lib.log1p"),
    functions.Logistic: _real("p.logistic", coarse=_call("p.fast_logistic")),
    functions.Rsqrt: _real("lib.rsqrt", coarse=_call("tl.rsqrt")),
    functions.Sine: _real("lib.sin"),
    functions.Sqrt: _real("p.sqrt", coarse=_call("tl.sqrt")),
    functions.Tan: _real("lib.tan"),
    functions.Tanh: _real("lib.tanh", coarse=_call("p.fast_tanh")),
    functions.Atan2: _real("lib.atan2"),
    special.Acos: _real("lib.acos"),
    special.Acosh: _real("lib.acosh"),
    special.Asin: _real("lib.asin"),
    special.Asinh: _real("lib.asinh"),
    special.Atan: _real("lib.atan"),
    special.Atanh: _real("lib.atanh"),
    special.Cosh: _real("lib.cosh"),
    special.Sinh: _real("lib.sinh"),
    special.ChloTan: _real("lib.tan"),
    special.Erf: _real("lib.erf"),
    special.Erfc: _real("lib.erfc"),
    special.ErfInv: _real("lib.erfinv"),
    special.Lgamma: _real("lib.lgamma"),
    special.Square: ExpressionForm(real=lambda a: f"{a} * {a}"),
    special.Conj: ExpressionForm(real=lambda a: a),
    special.IsInf: _real("p.is_inf"),
    special.IsPosInf: ExpressionForm(real=lambda a: f"{a} == float('inf')"),
    special.IsNegInf: ExpressionForm(real=lambda a: f"{a} == float('-inf')"),
    convert.Real: ExpressionForm(real=lambda a: a),
}
_ORDERS = {"EQ": "==", "NE": "!=", "GE": ">=", "GT": ">", "LE": "<=", "LT": "<"}
# Ops with expressions of their own, below.
OTHERS = (ops.Compare, ops.Select, convert.Convert, convert.ReducePrecision, shape.BitcastConvert)
CONSTANTS = (shape.Constant, special.ChloConstant, special.ConstantLike)
# Ops whose results are exact in the type of their operands: there is nothing to round.
_EXACT: frozenset[type[Op]] = frozenset(
    {
        *(ops.Abs, ops.Maximum, ops.Minimum, ops.Clamp, ops.Select, ops.Negate, ops.Sign),
        *(ops.Ceil, ops.Floor, ops.RoundNearestAfz, ops.RoundNearestEven, convert.Real),
        *(special.Conj, shape.BitcastConvert, *CONSTANTS),
    }
)


def elementwise_ops() -> frozenset[type[Op]]:
    """The ops that have expressions."""
    return frozenset({*FORMS, *OTHERS, *CONSTANTS, *broadcasting.OPS})


def refuses(op: Op, arg_dtypes: Sequence[DType], dtype: DType) -> str | None:
    """Why an op on these types has no expression; None if it has one."""
    if isinstance(op, broadcasting.Broadcasting):
        return refuses(op.applied(), arg_dtypes, dtype)
    if reason := dtypes.refuses(*arg_dtypes, dtype):
        return reason
    match op:
        case shape.Constant() | special.ChloConstant() | special.ConstantLike():
            return None if op.value.is_splat else "elements that differ"
        case ops.Compare(compare_type="TOTALORDER"):
            return "in the total order of floats" if arg_dtypes[0].is_float else None
        case ops.Compare() | ops.Select():
            return None
        case convert.Convert():
            # Held in f32 between, an i64 would be rounded twice, which may differ from once in the
            # last bit; f64 is rounded to odd first.
            wide = arg_dtypes[0].is_integer and arg_dtypes[0].bits == 64
            return "rounded twice" if wide and dtype.is_float and dtype.bits < 32 else None
        case convert.ReducePrecision():
            return _refuses_precision(op, dtype)
        case shape.BitcastConvert():
            return None if arg_dtypes[0].bits == dtype.bits >= 8 else "of other widths"
    form = FORMS.get(type(op))
    if form is None:
        return "it has no expression in Triton"
    return None if form.of(arg_dtypes[0]) is not None else f"of {arg_dtypes[0]}"


def _refuses_precision(op: convert.ReducePrecision, dtype: DType) -> str | None:
    is_bf16 = (op.exponent_bits, op.mantissa_bits) == (8, 7) and dtype.name == "f32"
    return None if is_bf16 else "to a format that no type has"


def applied(
    op: Op,
    args: Sequence[str],
    arg_dtypes: Sequence[DType],
    dtype: DType,
    *,
    excess_precision: bool,
    coarse: bool = False,
) -> str:
    """The expression of an op on variables, rounded as the contract of kernels rounds."""
    text = _expression(op, args, arg_dtypes, dtype, coarse)
    if type(op) in _EXACT or not is_rounded(dtype, excess_precision=excess_precision):
        return text
    return f"{dtypes.rounded(f'({text})', dtype)}.to(tl.float32)"


def _expression(
    op: Op, args: Sequence[str], arg_dtypes: Sequence[DType], dtype: DType, coarse: bool
) -> str:
    match op:
        case broadcasting.Broadcasting():
            return _expression(op.applied(), args, arg_dtypes, dtype, coarse)
        case shape.Constant() | special.ChloConstant() | special.ConstantLike():
            return dtypes.literal(op.value.elements[0].item(), dtype)
        case ops.Compare(comparison_direction=direction):
            return f"{args[0]} {_ORDERS[direction]} {args[1]}"
        case ops.Select():
            return f"tl.where({', '.join(args)})"
        case convert.Convert():
            return _converted(args[0], arg_dtypes[0], dtype)
        case convert.ReducePrecision():
            return f"{args[0]}.to(tl.bfloat16).to(tl.float32)"
        case shape.BitcastConvert():
            return _bits(args[0], arg_dtypes[0], dtype)
    write = FORMS[type(op)].of(arg_dtypes[0], coarse=coarse)
    assert write is not None, "refused"
    return write(*args)


def _converted(value: str, source: DType, target: DType) -> str:
    """A conversion: floats are truncated to integers and saturated, integers wrap."""
    if target.kind == "bool":
        return f"{value} != 0"
    if source.is_float and target.is_integer:
        low, high = target.limits
        ends = f"{float(low)!r}, {float(high) + 1.0!r}, {low}, {high}"
        return f"p.truncated({value}, {ends}).to({dtypes.computed(target)})"
    if source.is_float and target.is_float and dtypes.computed(source) == dtypes.computed(target):
        return value
    if source.bits == 64 and target.is_float and target.bits < 32:
        return f"p.rounded_to_odd({value})"  # which is rounded again
    return f"{value}.to({dtypes.computed(target)})"


def _bits(value: str, source: DType, target: DType) -> str:
    """The same bits in another type of the same width."""
    held = f"{value}.to({dtypes.stored(source)})" if source.is_float and source.bits < 32 else value
    cast = f"{held}.to({dtypes.stored(target)}, bitcast=True)"
    return f"{cast}.to(tl.float32)" if target.is_float and target.bits < 32 else cast
