"""Conversions between element types, and bitcasts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.emit.llvm.math.pointwise_kinds import Emit
from weft.emit.llvm.math.polynomial import (
    FLOAT_BITS,
    at_least,
    at_most,
    bits_of,
    float_of,
    magnitude,
    where,
    with_sign,
)
from weft.emit.llvm.writer.narrow import decode, own_bits, own_number, round_to
from weft.emit.llvm.writer.storage import Held, register_kind, to_memory, to_register, wrap
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.ir.op import Op
from weft.ir.types import DType
from weft.ops.elementwise import convert as ops
from weft.ops.shape import BitcastConvert


def convert(v: Vectors, x: Held, source: DType, target: DType) -> Held:
    """Conversion: floats are rounded; float to integer truncates and saturates."""
    if target.is_complex:
        real = convert(v, x[:1], source.real, target.real)[0]
        if source.is_complex:
            return real, convert(v, x[1:], source.real, target.real)[0]
        return real, v.constant(0.0, real.kind)
    return (_convert(v, x[0], source.real, target),)


def _convert(v: Vectors, x: Vector, source: DType, target: DType) -> Vector:
    if source is target:
        return x
    if target.kind == "bool":
        return v.compare("une" if x.is_float else "ne", x, v.constant(0, x.kind))
    if target.is_float:
        return _to_float(v, x, source, target)
    if source.is_float:
        return _saturated(v, x, target)
    return _to_integer(v, x, source, target)


def _to_integer(v: Vectors, x: Vector, source: DType, target: DType) -> Vector:
    """Integers and booleans to integers, with wraparound."""
    kind = register_kind(target)
    extend = "sext" if source.kind == "int" else "zext"
    wide = v.cast(extend if target.bits > x.bits else "trunc", x, kind)
    return wrap(v, wide, target) if target.bits < 8 else wide


def _to_float(v: Vectors, x: Vector, source: DType, target: DType) -> Vector:
    kind = register_kind(target)
    # Two roundings, to f32 and then to the narrow type, may differ from one; rounding to odd first
    # makes the second decide as if it had seen all bits.
    if target.bits < 32 and (source.bits > 32 if source.is_float else source.bits > 16):
        return round_to(v, _odd(v, _double(v, x, source)), target)
    if not x.is_float:
        x = v.cast("sitofp" if source.kind == "int" else "uitofp", x, kind)
    elif x.kind != kind:
        x = v.cast("fpext" if kind == "double" else "fptrunc", x, kind)
    return x if target.bits >= 32 else round_to(v, x, target)


def _double(v: Vectors, x: Vector, source: DType) -> Vector:
    """Numbers as f64; longer integers are rounded to odd, to avoid double rounding."""
    if x.is_float:
        return x
    signed = source.kind == "int"
    if source.bits == 64:
        low = v.constant(0x7FF, "i64")
        # 64 bits minus f64's 53: the last 11 become one sticky bit.
        bare = v.binary("and", x, v.constant(~0x7FF, "i64"))
        some = v.compare("ne", v.binary("and", x, low), v.constant(0, "i64"))
        odd = v.select(some, v.binary("or", bare, v.constant(0x800, "i64")), bare)
        size = v.intrinsic("smax", x, v.neg(x)) if signed else x
        long = v.compare("ugt", size, v.constant(1 << 53, "i64"))
        x = v.select(long, odd, x)
    return v.cast("sitofp" if signed else "uitofp", x, "double")


def _odd(v: Vectors, x: Vector) -> Vector:
    """f64 to f32 by rounding to odd, so that a second rounding to a narrower type is exact.

    Every inexact result has an odd last bit (Boldo and Melquiond, 2008).
    """
    near = v.cast("fptrunc", x, "float")
    back = v.cast("fpext", near, "double")
    bits = bits_of(v, near)
    beyond = v.compare("ogt", magnitude(v, back), magnitude(v, x))
    # Truncated: where fptrunc rounded away from zero, one step back toward it.
    bits = v.sub(bits, v.cast("zext", beyond, "i32"))
    inexact = v.cast("zext", v.compare("une", back, x), "i32")
    return float_of(v, v.binary("or", bits, inexact))


def _saturated(v: Vectors, x: Vector, target: DType) -> Vector:
    """Truncated toward zero; saturated out of range, and 0 for NaN."""
    kind = register_kind(target)
    signed = target.kind == "int"
    high = (1 << target.bits - signed) - 1
    low = -high - 1 if signed else 0
    # fptosi is poison out of range, so the value is brought into range before.
    if target.bits <= FLOAT_BITS[x.kind].mantissa:  # both ends of the range are exact as floats
        x = v.select(v.compare("uno", x, x), v.constant(0.0, x.kind), x)
        near = at_most(v, at_least(v, x, low), high)
        if target.bits < 32:
            return v.cast("trunc", v.cast("fptosi", near, "i32"), kind)
        return v.cast("fptosi" if signed else "fptoui", near, kind)
    # high itself is not a float here (2^63 - 1 rounds up): compared with the next power of two.
    large = v.compare("oge", x, v.constant(float(high + 1), x.kind))
    small = v.compare("ole", x, v.constant(float(low if signed else -1), x.kind))
    outside = v.binary("or", v.binary("or", large, small), v.compare("uno", x, x))
    inside = v.select(outside, v.constant(0.0, x.kind), x)
    truncated = v.cast("fptosi" if signed else "fptoui", inside, kind)
    truncated = v.select(large, v.constant(high, kind), truncated)
    return v.select(small, v.constant(low, kind), truncated)


def _emit_convert(
    v: Vectors, op: Op, args: list[Held], arg_dtypes: Sequence[DType], dtype: DType
) -> Held:
    return convert(v, args[0], arg_dtypes[0], dtype)


def _emit_complex(
    v: Vectors, op: Op, args: list[Held], arg_dtypes: Sequence[DType], dtype: DType
) -> Held:
    return args[0][0], args[1][0]


# Bits


def _bitcast(
    v: Vectors, op: Op, args: list[Held], arg_dtypes: Sequence[DType], dtype: DType
) -> Held:
    if dtype.is_complex or arg_dtypes[0] is dtype:
        return args[0]
    stored = to_memory(v, args[0][0], arg_dtypes[0])
    if stored.is_float:
        stored = bits_of(v, stored)
    if dtype.is_float and dtype.bits >= 32:
        return (float_of(v, stored),)
    return (to_register(v, stored, dtype),)


def _other_width(arg_dtypes: Sequence[DType], dtype: DType) -> str | None:
    return "elements of another width" if arg_dtypes[0].bits != dtype.bits else None


def _reduce_precision(
    v: Vectors, op: Op, args: list[Held], arg_dtypes: Sequence[DType], dtype: DType
) -> Held:
    """Rounded to fewer mantissa bits; overflow is infinite, underflow is zero."""
    assert isinstance(op, ops.ReducePrecision)
    x = own_number(v, args[0][0], dtype)
    rounded = _round_mantissa(v, x, dtype, dtype.mantissa - op.mantissa_bits)
    if op.exponent_bits < dtype.bits - 1 - dtype.mantissa:
        # 2^(emax + 1) of the smaller format; as emin is 1 - emax, its least normal number is 4 /
        # limit.
        limit = 2.0 ** (2 ** (op.exponent_bits - 1))
        infinity = with_sign(v, v.constant(math.inf, x.kind), rounded)
        zero = with_sign(v, v.constant(0.0, x.kind), rounded)
        size = magnitude(v, rounded)
        rounded = where(v, "oge", size, limit, infinity, rounded)
        rounded = where(v, "olt", size, 4 / limit, zero, rounded)
    rounded = where(v, "olt", magnitude(v, x), math.inf, rounded, x)
    return (own_number(v, rounded, dtype),)


def _few_bits(arg_dtypes: Sequence[DType], dtype: DType) -> str | None:
    return f"of {dtype}" if dtype.bits < 8 or dtype.name == "f8E8M0FNU" else None


def _round_mantissa(v: Vectors, x: Vector, dtype: DType, dropped: int) -> Vector:
    """Round away the last mantissa bits, to nearest even."""
    if dropped <= 0:
        return x
    bits = own_bits(v, x, dtype)
    one, amount = v.constant(1, bits.kind), v.constant(dropped, bits.kind)
    odd = v.binary("and", v.binary("lshr", bits, amount), one)
    # Just less than half of the last kept bit, or half exactly if that bit is odd: ties go to even.
    # A carry out of the mantissa increments the exponent, as it should.
    bits = v.add(v.add(bits, v.constant((1 << dropped - 1) - 1, bits.kind)), odd)
    bits = v.binary("and", bits, v.constant(-(1 << dropped), bits.kind))
    return decode(v, bits, dtype) if dtype.bits < 32 else float_of(v, bits)


EMIT: dict[type[Op], Emit] = {
    ops.Convert: Emit(_emit_convert),
    ops.Complex: Emit(_emit_complex),
    ops.ReducePrecision: Emit(_reduce_precision, _few_bits),
    BitcastConvert: Emit(_bitcast, _other_width),
}
