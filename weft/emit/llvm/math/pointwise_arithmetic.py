"""Arithmetic, rounding, comparison and selection, elementwise."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.emit.llvm.math import complex as math_complex
from weft.emit.llvm.math import pointwise_complex as pairs
from weft.emit.llvm.math import pointwise_integer as integers
from weft.emit.llvm.math.logistic import divide, negative, one_plus, tolerant_divide
from weft.emit.llvm.math.pointwise_kinds import Emit, by_kind
from weft.emit.llvm.math.polynomial import float_of, magnitude, where, with_sign
from weft.emit.llvm.writer.narrow import decode, own_bits, own_number
from weft.emit.llvm.writer.storage import Held
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.ir.op import Op
from weft.ir.types import DType
from weft.ops.elementwise import convert, special
from weft.ops.elementwise import pointwise as ops


def _fma_flag(v: Vectors) -> str:
    """The flag that allows contraction of a product and a sum into an FMA."""
    return " contract" if v.code.excess_precision else ""


def _add(v: Vectors, a: Vector, b: Vector) -> Vector:
    for one, other in ((a, b), (b, a)) if v.code.excess_precision else ():
        if one == v.constant(1.0, one.kind):
            return one_plus(v, other)
    return v.binary(f"fadd{_fma_flag(v)}", a, b)


def _subtract(v: Vectors, a: Vector, b: Vector) -> Vector:
    return v.binary(f"fsub{_fma_flag(v)}", a, b)


def _multiply(v: Vectors, a: Vector, b: Vector) -> Vector:
    return v.binary(f"fmul{_fma_flag(v)}", a, b)


def _square(v: Vectors, a: Vector) -> Vector:
    return _multiply(v, a, a)


def _both(v: Vectors, a: Vector, b: Vector) -> Vector:
    return v.binary("and", a, b)


def _either(v: Vectors, a: Vector, b: Vector) -> Vector:
    return v.binary("or", a, b)


def _same(v: Vectors, a: Vector) -> Vector:
    return a


def _zero(v: Vectors, a: Vector) -> Vector:
    return v.constant(0.0, a.kind)


def _sign(v: Vectors, a: Vector) -> Vector:
    one = with_sign(v, v.constant(1.0, a.kind), a)
    return where(v, "one", a, 0.0, one, a)


def _rounding(name: str) -> Emit:
    def real(v: Vectors, a: Vector) -> Vector:
        return v.intrinsic(name, a)

    return by_kind(real=real)


# Ops on the bits of a number round it to its type first


def _asks(how: str, limit: float, *, of_size: bool) -> Emit:
    def emit(
        v: Vectors, op: Op, args: list[Held], arg_dtypes: Sequence[DType], dtype: DType
    ) -> Held:
        x = own_number(v, args[0][0], arg_dtypes[0])
        x = magnitude(v, x) if of_size else x
        return (v.compare(how, x, v.constant(limit, x.kind)),)

    return Emit(emit)


_FLOAT_ORDER = {"EQ": "oeq", "NE": "une", "GE": "oge", "GT": "ogt", "LE": "ole", "LT": "olt"}
_INTEGER_ORDER = {"EQ": "eq", "NE": "ne", "GE": "ge", "GT": "gt", "LE": "le", "LT": "lt"}


def _compare(
    v: Vectors, op: Op, args: list[Held], arg_dtypes: Sequence[DType], result_dtype: DType
) -> Held:
    assert isinstance(op, ops.Compare)
    direction, dtype = op.comparison_direction, arg_dtypes[0]
    if dtype.is_complex:
        return (pairs.compare(v, direction, *args),)
    (a,), (b,) = args
    if dtype.is_float and op.compare_type != "TOTALORDER":
        return (v.compare(_FLOAT_ORDER[direction], a, b),)
    signed = dtype.kind == "int"
    if dtype.is_float:
        signed = dtype.name != "f8E8M0FNU"
        a, b = (_total_key(v, own_bits(v, x, dtype), dtype) for x in (a, b))
    sign = "" if direction in ("EQ", "NE") else "s" if signed else "u"
    return (v.compare(sign + _INTEGER_ORDER[direction], a, b),)


def _total_key(v: Vectors, bits: Vector, dtype: DType) -> Vector:
    """Integers in the total order of the floats: sign-magnitude to two's complement."""
    if dtype.name == "f8E8M0FNU":  # unsigned format
        return bits
    # Formats shorter than their register: the sign is moved to the register's sign bit first.
    bits = v.binary("shl", bits, v.constant(bits.bits - dtype.bits, bits.kind))
    flipped = v.binary("xor", bits, v.constant((1 << bits.bits - 1) - 1, bits.kind))
    return v.select(v.compare("slt", bits, v.constant(0, bits.kind)), flipped, bits)


def _select(
    v: Vectors, op: Op, args: list[Held], arg_dtypes: Sequence[DType], dtype: DType
) -> Held:
    (chooser,), yes, no = args
    return tuple(v.select(chooser, a, b) for a, b in zip(yes, no, strict=True))


_maximum = by_kind(
    real=Vectors.maximum, complex=pairs.maximum, integer=integers.maximum, boolean=_either
)
_minimum = by_kind(
    real=Vectors.minimum, complex=pairs.minimum, integer=integers.minimum, boolean=_both
)


def _clamp(v: Vectors, op: Op, args: list[Held], arg_dtypes: Sequence[DType], dtype: DType) -> Held:
    low, x, high = args
    above = _maximum(v, op, [x, low], arg_dtypes, dtype)
    return _minimum(v, op, [above, high], arg_dtypes, dtype)


_NEXT_AFTER = ("bf16", "f16", "f32", "f64")


def _no_neighbours(arg_dtypes: Sequence[DType], dtype: DType) -> str | None:
    return None if dtype.name in _NEXT_AFTER else f"of {dtype}"


def _next_after(
    v: Vectors, op: Op, args: list[Held], arg_dtypes: Sequence[DType], dtype: DType
) -> Held:
    """The adjacent bit pattern; from zero, the least number of the right sign."""
    a, b = (own_number(v, x[0], dtype) for x in args)
    bits = own_bits(v, a, dtype)
    one, sign = (v.constant(n, bits.kind) for n in (1, -(1 << bits.bits - 1)))
    zero = v.constant(0.0, a.kind)
    outward = v.compare(
        "eq",
        *(v.cast("zext", c, "i8") for c in (v.compare("olt", a, b), v.compare("ogt", a, zero))),
    )
    # Bits are sign and magnitude: one more is away from zero for either sign, and carries into the
    # exponent where a binade ends.
    moved = v.select(outward, v.add(bits, one), v.sub(bits, one))
    least = v.binary("or", v.binary("and", own_bits(v, b, dtype), sign), one)
    moved = v.select(v.compare("oeq", a, zero), least, moved)
    found = decode(v, moved, dtype) if dtype.bits < 32 else float_of(v, moved)
    found = v.select(v.compare("oeq", a, b), b, found)
    return (v.select(v.compare("uno", a, b), v.add(a, b), found),)


EMIT: dict[type[Op], Emit] = {
    ops.Abs: by_kind(real=magnitude, complex=math_complex.absolute, integer=integers.absolute),
    ops.Add: by_kind(real=_add, complex=pairs.add, integer=integers.add, boolean=_either),
    ops.Subtract: by_kind(real=_subtract, complex=pairs.subtract, integer=integers.subtract),
    ops.Multiply: by_kind(
        real=_multiply, complex=pairs.multiply, integer=integers.multiply, boolean=_both
    ),
    ops.Divide: by_kind(
        real=divide,
        tolerant=tolerant_divide,
        complex=math_complex.divide,
        integer=integers.divide,
    ),
    ops.Negate: by_kind(real=negative, complex=pairs.negate, integer=integers.negate),
    ops.Sign: by_kind(real=_sign, complex=math_complex.sign, integer=integers.sign),
    ops.Maximum: _maximum,
    ops.Minimum: _minimum,
    ops.Clamp: Emit(_clamp, _maximum.refuses),
    ops.Ceil: _rounding("ceil"),
    ops.Floor: _rounding("floor"),
    ops.RoundNearestAfz: _rounding("round"),
    ops.RoundNearestEven: _rounding("roundeven"),
    ops.IsFinite: _asks("olt", math.inf, of_size=True),
    ops.Compare: Emit(_compare),
    ops.Select: Emit(_select),
    convert.Real: by_kind(real=_same, complex=pairs.real),
    convert.Imag: by_kind(real=_zero, complex=pairs.imag),
    special.Conj: by_kind(real=_same, complex=pairs.conjugate),
    special.Square: by_kind(real=_square, complex=pairs.square),
    special.NextAfter: Emit(_next_after, _no_neighbours),
    special.IsInf: _asks("oeq", math.inf, of_size=True),
    special.IsPosInf: _asks("oeq", math.inf, of_size=False),
    special.IsNegInf: _asks("oeq", -math.inf, of_size=False),
}
