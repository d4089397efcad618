"""Elementwise ATen ops, with PyTorch's type promotion."""

from __future__ import annotations

import math
from functools import partial

from weft.capture.torch.build import (
    AtenLowering,
    Build,
    dtype_of,
    shape_of,
    type_of,
)
from weft.capture.torch.dtypes import TorchOperand, computed_in
from weft.ir.module import Value
from weft.ir.op import Op
from weft.ir.types import BOOL, DTYPES, DType
from weft.ops.elementwise import pointwise as ours
from weft.ops.elementwise import special
from weft.ops.elementwise import transcendental as functions
from weft.ops.elementwise.convert import Imag, Real
from weft.ops.shape import BitcastConvert


def arithmetic(b: Build, *operands: TorchOperand) -> tuple[tuple[Value, ...], DType]:
    """Operands in the compute type of the result, and that type.

    PyTorch keeps numbers and rank-0 tensors in f32 next to narrow floats: they are not rounded
    before use.
    """
    wanted = b.out.dtype
    tensors = [x for x in operands if isinstance(x, Value) and dtype_of(x) is wanted]
    held = wanted if len(tensors) == len(operands) else computed_in(wanted)
    return b.operands(*operands, dtype=held), held


def unary(op: Op, b: Build, x: Value) -> Value:
    """One op on the operand in the result's type."""
    return b.op(op, b.convert(x, b.out.dtype))


def binary(op: Op, b: Build, x: TorchOperand, y: TorchOperand) -> Value:
    """One op on the promoted operands."""
    (x, y), _ = arithmetic(b, x, y)
    return b.convert(b.op(op, x, y), b.out.dtype)


def scaled(op: Op, b: Build, x: TorchOperand, y: TorchOperand, alpha: float = 1) -> Value:
    """`x + alpha * y`, or minus."""
    (x, y), held = arithmetic(b, x, y)
    if alpha != 1:
        wide = computed_in(held)
        # The product and the sum of narrow floats are rounded together, once.
        x, y = b.convert(x, wide), b.convert(y, wide)
        y = b.op(ours.Multiply(), y, b.like(y, alpha))
    return b.convert(b.op(op, x, y), b.out.dtype)


def reversed_subtract(b: Build, x: TorchOperand, y: TorchOperand, alpha: float = 1) -> Value:
    """`y - alpha * x`."""
    return scaled(ours.Subtract(), b, y, x, alpha)


def compare(direction: str, b: Build, x: TorchOperand, y: TorchOperand) -> Value:
    """A comparison in the promoted type."""
    left, right = b.operands(x, y)
    return b.compare(direction, left, right)


def logical(op: Op, b: Build, x: TorchOperand, y: TorchOperand) -> Value:
    """A logical op on the operands as booleans."""
    return b.op(op, *b.operands(x, y, dtype=BOOL)) if _same(x, y) else _logical(op, b, x, y)


def _same(x: TorchOperand, y: TorchOperand) -> bool:
    return isinstance(x, Value) and isinstance(y, Value) and shape_of(x) == shape_of(y)


def _logical(op: Op, b: Build, x: TorchOperand, y: TorchOperand) -> Value:
    left, right = (b.value(v, BOOL) for v in (x, y))
    return b.op(op, *b.operands(left, right))


def logical_not(b: Build, x: Value) -> Value:
    """Whether elements are 0."""
    return b.op(ours.Not(), b.convert(x, BOOL))


def rounded(op: Op, b: Build, x: Value) -> Value:
    """A rounding; integers are unchanged."""
    return b.op(op, x) if dtype_of(x).is_float else x


def trunc(b: Build, x: Value) -> Value:
    """The integer part."""
    if not dtype_of(x).is_float:
        return x
    below = b.compare("LT", x, b.like(x, 0))
    return b.select(below, b.op(ours.Ceil(), x), b.op(ours.Floor(), x))


def absolute(b: Build, x: Value) -> Value:
    """The absolute value."""
    return x if dtype_of(x).kind in ("bool", "uint") else b.op(ours.Abs(), x)


def sign(b: Build, x: Value) -> Value:
    """-1, 0 or 1; 0 for NaN."""
    if dtype_of(x).kind == "bool":
        return x
    if dtype_of(x).is_complex or dtype_of(x).kind == "int":
        return b.op(ours.Sign(), x)
    zero, one = b.like(x, 0), b.like(x, 1)
    above = b.select(b.compare("GT", x, zero), one, zero)
    if dtype_of(x).kind == "uint":
        return above
    below = b.select(b.compare("LT", x, zero), one, zero)
    # Not stablehlo.sign, which keeps NaN.
    return b.op(ours.Subtract(), above, below)  # 0 for NaN


def reciprocal(b: Build, x: Value) -> Value:
    """1 / x."""
    x = b.convert(x, b.out.dtype)
    return b.op(ours.Divide(), b.like(x, 1), x)


def relu(b: Build, x: Value) -> Value:
    """max(x, 0)."""
    return x if dtype_of(x).kind == "uint" else b.op(ours.Maximum(), x, b.like(x, 0))


def in_base(base: float, b: Build, x: Value) -> Value:
    """A logarithm to a base."""
    dtype = b.out.dtype
    x = b.convert(x, computed_in(dtype))
    made = b.op(functions.Log(), x)
    return b.convert(b.op(ours.Multiply(), made, b.like(made, 1 / math.log(base))), dtype)


def exp2(b: Build, x: Value) -> Value:
    """2 to the power of x."""
    x = b.convert(x, b.out.dtype)
    return b.op(ours.Power(), b.like(x, 2), x)


# Division


def divide(b: Build, x: TorchOperand, y: TorchOperand) -> Value:
    """True division, of integers in floats."""
    return binary(ours.Divide(), b, x, y)


def divide_rounded(
    b: Build, x: TorchOperand, y: TorchOperand, rounding_mode: str | None = None
) -> Value:
    """True division, or rounded down or towards zero."""
    if rounding_mode is None:
        return divide(b, x, y)
    (x, y), held = arithmetic(b, x, y)
    if rounding_mode == "trunc":
        made = b.op(ours.Divide(), x, y)
        return b.convert(trunc(b, made), b.out.dtype)
    made = floor_divided(b, x, y) if held.is_float else floor_integers(b, x, y)
    return b.convert(made, b.out.dtype)


def floor_integers(b: Build, x: Value, y: Value) -> Value:
    """Integers divided and rounded down."""
    made = b.op(ours.Divide(), x, y)
    if dtype_of(x).kind == "uint":
        return made
    return b.select(_crosses(b, b.op(ours.Remainder(), x, y), y), _less_one(b, made), made)


def floor_divided(b: Build, x: Value, y: Value) -> Value:
    """Python's floor division of floats, computed from the remainder, which is exact."""
    # The steps of c10::div_floor_floating, so that results are eager's bit by bit: x - rest is
    # nearly a multiple of y, and the quotient is rounded to the nearest integer.
    rest = b.op(ours.Remainder(), x, y)
    quotient = b.op(ours.Divide(), b.op(ours.Subtract(), x, rest), y)
    quotient = b.select(_crosses(b, rest, y), _less_one(b, quotient), quotient)
    low = b.op(ours.Floor(), quotient)
    far = b.compare("GT", b.op(ours.Subtract(), quotient, low), b.like(quotient, 0.5))
    low = b.select(far, b.op(ours.Add(), low, b.like(low, 1)), low)
    whole = b.op(ours.Divide(), x, y)
    low = b.select(b.compare("EQ", quotient, b.like(quotient, 0)), signed_zero(b, whole), low)
    return b.select(b.compare("EQ", y, b.like(y, 0)), whole, low)


def signed_zero(b: Build, x: Value) -> Value:
    """Zero with the sign of a number."""
    return b.op(ours.Multiply(), b.like(x, 0), sign(b, x))


def _less_one(b: Build, x: Value) -> Value:
    return b.op(ours.Subtract(), x, b.like(x, 1))


def _crosses(b: Build, rest: Value, y: Value) -> Value:
    """Whether a remainder is nonzero and its sign differs from the divisor's."""
    zero = b.like(rest, 0)
    apart = b.compare("NE", b.compare("LT", rest, zero), b.compare("LT", y, zero))
    return b.op(ours.And(), b.compare("NE", rest, zero), apart)


def remainder(b: Build, x: TorchOperand, y: TorchOperand) -> Value:
    """Python's remainder, with the divisor's sign."""
    (x, y), held = arithmetic(b, x, y)
    rest = b.op(ours.Remainder(), x, y)
    if held.kind != "uint":
        rest = b.select(_crosses(b, rest, y), b.op(ours.Add(), rest, y), rest)
    return b.convert(rest, b.out.dtype)


# Powers


def power(b: Build, x: TorchOperand, y: TorchOperand) -> Value:
    """A power; some constant exponents are products and roots."""
    (base, exponent), held = arithmetic(b, x, y)
    if isinstance(y, int | float) and (made := _known_power(b, base, float(y))) is not None:
        return b.convert(made, b.out.dtype)
    if held.is_integer:
        return _integer_power(b, base, exponent)
    return b.convert(b.op(ours.Power(), base, exponent), b.out.dtype)


def _known_power(b: Build, x: Value, exponent: float) -> Value | None:
    """The special cases of exponents in PyTorch's kernels, so that results round alike."""
    if exponent == 1:
        return x
    if exponent == 2:
        return b.op(ours.Multiply(), x, x)
    if exponent == 3:
        return b.op(ours.Multiply(), b.op(ours.Multiply(), x, x), x)
    if not dtype_of(x).is_float:
        return None
    if exponent == 0.5:
        return b.op(functions.Sqrt(), x)
    if exponent == -0.5:
        return b.op(functions.Rsqrt(), x)
    if exponent in (-1, -2):
        under = x if exponent == -1 else b.op(ours.Multiply(), x, x)
        return b.op(ours.Divide(), b.like(x, 1), under)
    return None


def _integer_power(b: Build, x: Value, y: Value) -> Value:
    """An integer power; a negative exponent gives 0 unless the base is 1 or -1."""
    whole_power = b.op(ours.Power(), x, y)
    if dtype_of(x).kind == "uint":
        return whole_power
    one, zero = b.like(x, 1), b.like(x, 0)
    # (-1) ** y for negative y, by the lowest bit of two's complement.
    odd = b.compare("NE", b.op(ours.And(), y, one), zero)
    minus = b.select(odd, b.like(x, -1), one)
    unit = b.select(b.compare("EQ", x, one), one, zero)
    inverse = b.select(b.compare("EQ", x, b.like(x, -1)), minus, unit)
    return b.select(b.compare("LT", y, zero), inverse, whole_power)


# Selection


def clamp(
    b: Build, x: Value, min: TorchOperand | None = None, max: TorchOperand | None = None
) -> Value:
    """Clamp by numbers or tensors, which take part in promotion."""
    bounds = [bound for bound in (min, max) if bound is not None]
    (x, *limits), _ = arithmetic(b, x, *bounds)
    limit_values = iter(limits)
    if min is not None:
        x = b.op(ours.Maximum(), x, next(limit_values))
    if max is not None:
        x = b.op(ours.Minimum(), x, next(limit_values))
    return b.convert(x, b.out.dtype)


def where(b: Build, condition: Value, x: TorchOperand, y: TorchOperand) -> Value:
    """Elements of x where the condition holds, else of y."""
    left, right = (b.value(v, b.out.dtype) for v in (x, y))
    return b.broadcast(b.select(b.convert(condition, BOOL), left, right), b.out.sizes)


def ignoring_nan(op: Op, b: Build, x: Value, y: Value) -> Value:
    """fmax or fmin: NaN only if both operands are."""
    x, y = b.operands(x, y, dtype=b.out.dtype)
    made = b.op(op, x, y)
    made = b.select(b.is_nan(x), y, made)
    return b.select(b.is_nan(y), x, made)


def is_infinite(b: Build, x: Value) -> Value:
    """Whether elements, or one part of complex ones, are infinite."""
    if dtype_of(x).is_complex:
        parts = [b.op(special.IsInf(), b.op(part, x)) for part in (Real(), Imag())]
        return b.op(ours.Or(), *parts)
    if dtype_of(x).is_float:
        return b.op(special.IsInf(), x)
    return b.splat(False, b.out)


# Bits


def shift(op: Op, b: Build, x: TorchOperand, y: TorchOperand) -> Value:
    """A shift in the promoted integer type."""
    (x, y), _ = arithmetic(b, x, y)
    return b.op(op, x, y)


def shift_right(b: Build, x: TorchOperand, y: TorchOperand) -> Value:
    """A right shift, arithmetic for signed types."""
    signed = b.out.dtype.kind == "int"
    return shift(ours.ShiftRightArithmetic() if signed else ours.ShiftRightLogical(), b, x, y)


def sign_bit(b: Build, x: Value) -> Value:
    """Whether the sign bit is set, of zeros and NaN too."""
    dtype = dtype_of(x)
    if dtype.is_float:
        bits = type_of(x).with_dtype(DTYPES[f"i{dtype.bits}"])
        x = b.op(BitcastConvert(bits), x)
    elif dtype.kind != "int":
        return b.splat(False, b.out)
    return b.compare("LT", x, b.like(x, 0))


def copy_sign(b: Build, x: TorchOperand, y: TorchOperand) -> Value:
    """The magnitude of x with the sign bit of y, zeros and NaN included."""
    x, y = b.operands(x, y, dtype=b.out.dtype)
    size = b.op(ours.Abs(), x)
    return b.select(sign_bit(b, y), b.op(ours.Negate(), size), size)


def hypotenuse(b: Build, x: Value, y: Value) -> Value:
    """sqrt(x^2 + y^2), scaled so that squares do not overflow."""
    x, y = b.operands(x, y, dtype=b.out.dtype)
    x, y = b.op(ours.Abs(), x), b.op(ours.Abs(), y)
    large, small = b.op(ours.Maximum(), x, y), b.op(ours.Minimum(), x, y)
    share = b.op(ours.Divide(), small, large)
    # 0 / 0, if both are 0, would be NaN.
    share = b.select(b.compare("EQ", small, b.like(small, 0)), small, share)
    root = b.op(functions.Sqrt(), b.op(ours.Add(), b.op(ours.Multiply(), share, share),
                                       b.like(share, 1)))  # fmt: skip
    made = b.op(ours.Multiply(), large, root)
    # inf / inf is NaN, but the hypotenuse is infinite.
    return b.select(b.op(special.IsInf(), large), large, made)


def digamma(b: Build, x: Value) -> Value:
    """The derivative of lgamma; at zeros, where XLA's is NaN, the infinity of its side."""
    (x,) = b.operands(x, dtype=b.out.dtype)
    pole = b.op(ours.Divide(), b.like(x, -1), x)
    return b.select(b.compare("EQ", x, b.like(x, 0)), pole, b.op(special.Digamma(), x))


def angle(b: Build, x: Value) -> Value:
    """The argument of complex numbers; 0 or pi for real ones."""
    if dtype_of(x).is_complex:
        return b.op(functions.Atan2(), b.op(Imag(), x), b.op(Real(), x))
    x = b.convert(x, b.out.dtype)
    zero = b.like(x, 0)
    made = b.select(b.compare("LT", x, zero), b.like(x, math.pi), zero)
    return b.select(b.is_nan(x), x, made)


def polygamma(b: Build, n: int, x: Value) -> Value:
    """The n-th derivative of digamma."""
    wide = b.convert(x, computed_in(b.out.dtype))
    if n == 0:
        return digamma(b, x)
    made = b.op(special.Polygamma(), b.like(wide, n), wide)
    # At poles of odd order XLA's is NaN.
    zero = b.like(wide, 0)
    is_whole = b.compare("EQ", wide, b.op(ours.Floor(), wide))
    is_pole = b.op(ours.And(), is_whole, b.compare("LE", wide, zero))
    infinity = b.like(wide, math.inf if n % 2 else -math.inf)
    return b.convert(b.select(is_pole, infinity, made), b.out.dtype)


_UNARY: dict[str, Op] = {
    "acos": special.Acos(),
    "acosh": special.Acosh(),
    "asin": special.Asin(),
    "asinh": special.Asinh(),
    "atan": special.Atan(),
    "atanh": special.Atanh(),
    "bitwise_not": ours.Not(),
    "cos": functions.Cosine(),
    "cosh": special.Cosh(),
    "erf": special.Erf(),
    "erfc": special.Erfc(),
    "erfinv": special.ErfInv(),
    "exp": functions.Exponential(),
    "expm1": functions.ExponentialMinusOne(),
    "lgamma": special.Lgamma(),
    "log": functions.Log(),
    "log1p": functions.LogPlusOne(),
    "neg": ours.Negate(),
    "rsqrt": functions.Rsqrt(),
    "sigmoid": functions.Logistic(),
    "sin": functions.Sine(),
    "sinh": special.Sinh(),
    "special_i1e": special.BesselI1e(),
    "sqrt": functions.Sqrt(),
    "tan": functions.Tan(),
    "tanh": functions.Tanh(),
}
_BINARY: dict[str, Op] = {
    "atan2.default": functions.Atan2(),
    "bitwise_and.Scalar": ours.And(),
    "bitwise_and.Tensor": ours.And(),
    "bitwise_or.Scalar": ours.Or(),
    "bitwise_or.Tensor": ours.Or(),
    "bitwise_xor.Scalar": ours.Xor(),
    "bitwise_xor.Tensor": ours.Xor(),
    "fmod.Scalar": ours.Remainder(),
    "fmod.Tensor": ours.Remainder(),
    "maximum.default": ours.Maximum(),
    "minimum.default": ours.Minimum(),
    "mul.Scalar": ours.Multiply(),
    "mul.Tensor": ours.Multiply(),
    "nextafter.default": special.NextAfter(),
    "special_zeta.default": special.Zeta(),
}
_DIRECTIONS = ("eq", "ne", "lt", "le", "gt", "ge")

LOWERINGS: dict[str, AtenLowering] = {
    "aten._neg_view.default": partial(unary, ours.Negate()),
    **{f"aten.{name}.default": partial(unary, op) for name, op in _UNARY.items()},
    **{f"aten.{name}": partial(binary, op) for name, op in _BINARY.items()},
    **{
        f"aten.{name}.{kind}": partial(compare, name.upper())
        for name in _DIRECTIONS
        for kind in ("Tensor", "Scalar")
    },
    **{
        f"aten.{name}.{kind}": partial(scaled, op)
        for name, op in (("add", ours.Add()), ("sub", ours.Subtract()))
        for kind in ("Tensor", "Scalar")
    },
    "aten.abs.default": absolute,
    "aten.bitwise_left_shift.Tensor": partial(shift, ours.ShiftLeft()),
    "aten.bitwise_left_shift.Scalar_Tensor": partial(shift, ours.ShiftLeft()),
    "aten.bitwise_left_shift.Tensor_Scalar": partial(shift, ours.ShiftLeft()),
    "aten.bitwise_right_shift.Scalar_Tensor": shift_right,
    "aten.bitwise_right_shift.Tensor": shift_right,
    "aten.bitwise_right_shift.Tensor_Scalar": shift_right,
    "aten.__lshift__.Tensor": partial(shift, ours.ShiftLeft()),
    "aten.__lshift__.Scalar": partial(shift, ours.ShiftLeft()),
    "aten.__rshift__.Tensor": shift_right,
    "aten.__rshift__.Scalar": shift_right,
    "aten.angle.default": angle,
    "aten.ceil.default": partial(rounded, ours.Ceil()),
    "aten.clamp.Tensor": clamp,
    "aten.clamp.default": clamp,
    "aten.copysign.Scalar": copy_sign,
    "aten.copysign.Tensor": copy_sign,
    "aten.digamma.default": digamma,
    "aten.div.Scalar": divide,
    "aten.div.Scalar_mode": divide_rounded,
    "aten.div.Tensor": divide,
    "aten.div.Tensor_mode": divide_rounded,
    "aten.exp2.default": exp2,
    "aten.floor.default": partial(rounded, ours.Floor()),
    "aten.fmax.default": partial(ignoring_nan, ours.Maximum()),
    "aten.fmin.default": partial(ignoring_nan, ours.Minimum()),
    "aten.hypot.default": hypotenuse,
    "aten.isinf.default": is_infinite,
    "aten.isnan.default": Build.is_nan,
    "aten.log10.default": partial(in_base, 10),
    "aten.log2.default": partial(in_base, 2),
    "aten.logical_and.default": partial(logical, ours.And()),
    "aten.logical_not.default": logical_not,
    "aten.logical_or.default": partial(logical, ours.Or()),
    "aten.logical_xor.default": partial(logical, ours.Xor()),
    "aten.polygamma.default": polygamma,
    "aten.pow.Scalar": power,
    "aten.pow.Tensor_Scalar": power,
    "aten.pow.Tensor_Tensor": power,
    "aten.reciprocal.default": reciprocal,
    "aten.relu.default": relu,
    "aten.remainder.Scalar": remainder,
    "aten.remainder.Scalar_Tensor": remainder,
    "aten.remainder.Tensor": remainder,
    "aten.round.default": partial(rounded, ours.RoundNearestEven()),
    "aten.rsub.Scalar": reversed_subtract,
    "aten.rsub.Tensor": reversed_subtract,
    "aten.sign.default": sign,
    "aten.signbit.default": sign_bit,
    "aten.trunc.default": trunc,
    "aten.where.self": where,
}
