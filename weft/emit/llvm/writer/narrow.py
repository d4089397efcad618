"""Floats of 16 bits and fewer: their bits in memory, and f32 values in registers."""

from __future__ import annotations

import math
from functools import cache

from weft.emit.llvm.jit.supplied import bf16_bits
from weft.emit.llvm.math.polynomial import at_most, bits_of, magnitude
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.ir.types import DType, finfo
from weft.records import dataclass

_HALF_BIAS, _HALF_MANTISSA = 15, 10


@dataclass(frozen=True, slots=True)
class Format:
    """A float format of up to 8 bits: |x| = mantissa * 2^(exponent - bias); special values."""

    bits: int
    mantissa: int
    bias: int
    largest: float
    has_infinity: bool
    has_nan: bool
    has_negative_zero: bool  # otherwise these bits are the only NaN

    @property
    def fits_half(self) -> bool:
        """Whether f16 covers its exponents, without the one reserved for infinity."""
        return self.has_infinity or self.bias <= _HALF_BIAS

    @property
    def sign(self) -> int:
        """The sign bit."""
        return 1 << (self.bits - 1)

    @property
    def least_exponent(self) -> int:
        """The exponent of the least normal number."""
        return 1 - self.bias


@cache
def format_of(dtype: DType) -> Format:
    """The format of a signed float type of 4, 6 or 8 bits."""
    info = finfo(dtype)
    ending = dtype.name.lstrip("f0123456789").lower().partition("m")[2].lstrip("0123456789b")
    return Format(
        bits=dtype.bits,
        mantissa=int(info.nmant),
        bias=1 - round(math.log2(float(info.tiny))),
        largest=float(info.max),
        has_infinity=ending == "",
        has_nan=dtype.bits == 8,
        has_negative_zero=ending != "fnuz",
    )


def decode(v: Vectors, stored: Vector, dtype: DType) -> Vector:
    """Bits in memory -> f32."""
    match dtype.name:
        case "f16":
            wide = v.cast("fpext", v.cast("bitcast", stored, "half"), "float")
        case "bf16":
            high = v.binary("shl", v.cast("zext", stored, "i32"), v.constant(16, "i32"))
            wide = v.cast("bitcast", high, "float")
        case "f8E8M0FNU":
            wide = _decode_power(v, stored)
        case _:
            wide = _decode_small(v, stored, format_of(dtype))
    # Encoding it again would give the same bits: a value that is only copied keeps them, NaNs too.
    v.code.facts[wide.text, dtype.name] = stored.text
    return wide


def encode(v: Vectors, x: Vector, dtype: DType) -> Vector:
    """f32 -> bits in memory, rounded to nearest even."""
    kind = f"i{8 * dtype.numpy.itemsize}"
    if known := v.code.facts.get((x.text, dtype.name)):
        return Vector(known, kind, x.width)
    match dtype.name:
        case "f16":
            return v.cast("bitcast", v.cast("fptrunc", x, "half"), "i16")
        case "bf16":
            return bf16_bits(v, x)
        case "f8E8M0FNU":
            return _encode_power(v, x)
        case _:
            return _encode_small(v, x, format_of(dtype))


def round_to(v: Vectors, x: Vector, dtype: DType) -> Vector:
    """f32 rounded to a narrower type, still held as f32."""
    if (x.text, dtype.name) in v.code.facts:
        return x
    return decode(v, encode(v, x, dtype), dtype)


def own_number(v: Vectors, x: Vector, dtype: DType) -> Vector:
    """A float rounded to its own type."""
    return round_to(v, x, dtype) if dtype.bits < 32 else x


def own_bits(v: Vectors, x: Vector, dtype: DType) -> Vector:
    """A float as the bits of its own type."""
    return encode(v, x, dtype) if dtype.bits < 32 else bits_of(v, x)


# Powers of two without a sign


def _decode_power(v: Vectors, stored: Vector) -> Vector:
    code = v.cast("zext", stored, "i32")
    bits = v.binary("shl", code, v.constant(23, "i32"))
    # 2^-127 is subnormal in f32: its exponent field is 0 and its mantissa 1/2.
    least = v.compare("eq", code, v.constant(0, "i32"))
    bits = v.select(least, v.constant(0x400000, "i32"), bits)
    nan = v.compare("eq", code, v.constant(255, "i32"))
    return v.cast("bitcast", v.select(nan, v.constant(0x7FC00000, "i32"), bits), "float")


def _encode_power(v: Vectors, x: Vector) -> Vector:
    bits = v.cast("bitcast", x, "i32")
    twenty_three = v.constant(23, "i32")
    half = v.constant(0x400000, "i32")  # and the bits of the least power
    # Half of the mantissa is added: the exponent is rounded to the nearest power, ties up.
    code = v.binary("lshr", v.add(bits, half), twenty_three)
    code = v.select(v.compare("eq", bits, half), v.constant(0, "i32"), code)
    # Zero, negative numbers, infinity and NaN have no power of two.
    good = v.compare("ult", v.sub(bits, v.constant(1, "i32")), v.constant(0x7F7FFFFF, "i32"))
    return v.cast("trunc", v.select(good, code, v.constant(255, "i32")), "i8")


# Eight bits and fewer: the exponent field moves into that of an f16, and is rebiased


def _decode_small(v: Vectors, stored: Vector, form: Format) -> Vector:
    wide = v.cast("zext", stored, "i16")
    size = v.binary("and", wide, v.constant(form.sign - 1, "i16"))
    shift = v.constant(16 - form.bits, "i16")
    sign = v.binary("shl", v.binary("and", wide, v.constant(form.sign, "i16")), shift)
    value = _from_code(v, size, sign, form)
    if not form.has_negative_zero:
        nan = v.compare("eq", wide, v.constant(form.sign, "i16"))
        return v.select(nan, v.constant(-math.nan), value)
    if not form.has_nan or (form.bias == _HALF_BIAS and form.has_infinity):
        return value
    return _mark_special(v, size, value, form)


def _from_code(v: Vectors, size: Vector, sign: Vector, form: Format) -> Vector:
    """Exponent, mantissa, and an f16 sign -> f32."""
    if form.fits_half:
        placed = v.binary("shl", size, v.constant(_HALF_MANTISSA - form.mantissa, "i16"))
        half = v.cast("bitcast", v.binary("or", placed, sign), "half")
        value, bias = v.cast("fpext", half, "float"), _HALF_BIAS
    else:
        placed = v.binary("shl", v.cast("zext", size, "i32"), v.constant(23 - form.mantissa, "i32"))
        high = v.binary("shl", v.cast("zext", sign, "i32"), v.constant(16, "i32"))
        value, bias = v.cast("bitcast", v.binary("or", placed, high), "float"), 127
    if form.bias == bias:
        return value
    # Rebiased by a product and not in the bits: subnormals become normal by themselves.
    return v.mul(value, v.constant(2.0 ** (bias - form.bias)))


def _to_code(v: Vectors, near: Vector, form: Format) -> Vector:
    """Representable magnitudes -> exponent and mantissa."""
    if form.fits_half:
        scaled = v.mul(near, v.constant(2.0 ** (form.bias - _HALF_BIAS)))
        half = v.cast("bitcast", v.cast("fptrunc", scaled, "half"), "i16")
        return v.binary("lshr", half, v.constant(_HALF_MANTISSA - form.mantissa, "i16"))
    scaled = v.mul(near, v.constant(2.0 ** (form.bias - 127)))
    bits = v.cast("bitcast", scaled, "i32")
    return v.cast("trunc", v.binary("lshr", bits, v.constant(23 - form.mantissa, "i32")), "i16")


def _mark_special(v: Vectors, size: Vector, value: Vector, form: Format) -> Vector:
    """NaN, and infinity if there is one, in place of magnitudes beyond the maximum."""
    above = v.constant(_code(form, form.largest) + 1, "i16")
    special = v.constant(math.inf if form.has_infinity else math.nan)
    signed = v.intrinsic("copysign", special, value)
    value = v.select(v.compare("eq", size, above), signed, value)
    if not form.has_infinity:
        return value
    nan = v.intrinsic("copysign", v.constant(math.nan), value)
    return v.select(v.compare("ugt", size, above), nan, value)


def _code(form: Format, number: float) -> int:
    """The bits of a positive normal number."""
    fraction, exponent = math.frexp(number)
    mantissa = round((fraction * 2 - 1) * (1 << form.mantissa))
    return (exponent - 1 + form.bias << form.mantissa) + mantissa


def _encode_small(v: Vectors, x: Vector, form: Format) -> Vector:
    # Clamped: infinity's exponent plus the shift of `_round_small` would run into the sign bit.
    # Twice the largest is still recognized as an overflow.
    size = at_most(v, magnitude(v, x), 2 * form.largest)
    near = _round_small(v, size, form)
    code = _to_code(v, near, form)
    bits = v.cast("bitcast", x, "i32")
    sign = v.binary("lshr", bits, v.constant(32 - form.bits, "i32"))
    sign = v.binary("and", v.cast("trunc", sign, "i16"), v.constant(form.sign, "i16"))
    return v.cast("trunc", _with_special(v, x, near, code, sign, form), "i8")


def _round_small(v: Vectors, size: Vector, form: Format) -> Vector:
    """Magnitudes rounded to the format: adding a large number rounds off the low bits."""
    exponent = v.binary("and", v.cast("bitcast", size, "i32"), v.constant(0xFF << 23, "i32"))
    least = v.constant((127 + form.least_exponent) << 23, "i32")
    # Below the least normal number the steps stay equal: subnormals round at a fixed place.
    exponent = v.intrinsic("umax", exponent, least)
    shift = v.constant((23 - form.mantissa) << 23, "i32")
    large = v.cast("bitcast", v.add(exponent, shift), "float")
    return v.sub(v.add(size, large), large)


def _with_special(
    v: Vectors, x: Vector, near: Vector, code: Vector, sign: Vector, form: Format
) -> Vector:
    """The bits with their sign, with NaN and overflow handled."""
    nan = v.compare("uno", x, x)
    large = v.compare("ogt", near, v.constant(form.largest))
    top = _code(form, form.largest)
    if not form.has_negative_zero:
        signed = v.select(
            v.compare("eq", code, v.constant(0, "i16")), code, v.binary("or", code, sign)
        )
        return v.select(v.binary("or", nan, large), v.constant(form.sign, "i16"), signed)
    code = v.select(large, v.constant(top + form.has_nan, "i16"), code)
    if form.has_nan:
        # With an infinity at top + 1 the quiet NaN has the mantissa's first bit; without, it is top
        # + 1.
        quiet = top + 1 + form.has_infinity * (1 << form.mantissa - 1)
        code = v.select(nan, v.constant(quiet, "i16"), code)
        return v.binary("or", code, sign)
    flipped = v.binary("xor", sign, v.constant(form.sign, "i16"))
    return v.select(nan, flipped, v.binary("or", code, sign))
