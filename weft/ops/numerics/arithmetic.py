"""References of elementwise ops, on numpy arrays of every element type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.ir.types import Array, DType, dtype_of

Ufunc = Callable[..., Any]


def widen(x: Array) -> Array:
    """The same numbers in a type that numpy computes in: f64 for narrow floats, i8 for i4."""
    source = dtype_of(x.dtype)
    match source.kind:
        case "float" if source.bits < 32:
            with np.errstate(invalid="ignore"):  # a NaN is not an error
                # 53 bits are more than twice f16's 11, plus 2: a sum, product, quotient or root
                # rounded to f64 and then to the narrow type is as if rounded once (Figueroa, 1995).
                return x.astype(np.float64)
        case "int" if source.bits < 8:
            return x.astype(np.int8)
        case "uint" if source.bits < 8:
            return x.astype(np.uint8)
    return x


def to_double(x: Array) -> Array:
    """The same numbers as f64, or as pairs of f64."""
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64, copy=False)


def fit(x: Array, dtype: DType) -> Array:
    """The numbers in a type of the same kind: floats are rounded once, integers wrap around."""
    x = np.asarray(x)
    # The conversions of ml_dtypes round to f32 first: with a second rounding ties go wrong.
    if dtype.is_float and dtype.numpy.kind != "f" and x.dtype == np.float64:
        x = _round_to_odd(x)
    return x.astype(dtype.numpy, copy=False)


def _round_to_odd(x: Array) -> Array:
    """f64 to f32, rounded to odd, so that a further rounding to a narrower type is exact.

    Every inexact result has an odd last bit (Boldo and Melquiond, 2008).
    """
    # Truncate: step back where rounding went away from zero; then set the last bit if inexact.
    near = x.astype(np.float32)
    bits = near.view(np.uint32) - (np.abs(near) > np.abs(x))
    return np.asarray(bits | (near != x)).astype(np.uint32).view(np.float32)


def in_double(real: Ufunc, *, complex: Ufunc | None = None, integer: Ufunc | None = None) -> Ufunc:
    """A function computed in f64, its result rounded once to the type of the operands."""
    return _by_kind(to_double, real, complex or real, integer or real)


def in_own_type(
    real: Ufunc, *, complex: Ufunc | None = None, integer: Ufunc | None = None
) -> Ufunc:
    """A function computed in the type of the operands: one rounding, and integers wrap around."""
    return _by_kind(widen, real, complex or real, integer or real)


def _by_kind(prepare: Ufunc, real: Ufunc, complex: Ufunc, integer: Ufunc) -> Ufunc:
    def run(*arrays: Array) -> Array:
        dtype = dtype_of(arrays[0].dtype)
        with np.errstate(all="ignore"):
            match dtype.kind:
                case "float":
                    return fit(real(*[prepare(a) for a in arrays]), dtype)
                case "complex":
                    return fit(complex(*[prepare(a) for a in arrays]), dtype)
                case _:
                    # Never in f64, which holds 53 of an integer's 64 bits.
                    return fit(integer(*[widen(a) for a in arrays]), dtype)

    return run


# Integers


def _bits(x: Array) -> Array:
    """Integers as the unsigned integers of the same bits."""
    return x.view(f"u{x.dtype.itemsize}")


def divide_integers(lhs: Array, rhs: Array) -> Array:
    """The quotient, truncated; x / 0 has all bits set, and the least number / -1 wraps."""
    divisor = _safe(rhs)
    # numpy rounds down; the quotient of different signs is one too low unless exact.
    quotient = np.floor_divide(lhs, divisor)
    inexact = lhs - quotient * divisor != 0
    truncated = quotient + (inexact & ((lhs < 0) != (divisor < 0)))
    negated = np.where(_is_minus_one(rhs), np.negative(lhs), truncated)
    return np.where(rhs == 0, np.invert(np.zeros_like(lhs)), negated).astype(lhs.dtype)


def _is_minus_one(x: Array) -> Array:
    return np.asarray(x == -1) if x.dtype.kind == "i" else np.zeros(x.shape, bool)


def _safe(divisor: Array) -> Array:
    """The divisor with 1 in place of 0 and -1, which may trap."""
    return np.where((divisor == 0) | _is_minus_one(divisor), 1, divisor).astype(divisor.dtype)


def remainder_integers(lhs: Array, rhs: Array) -> Array:
    """The remainder of the truncated quotient, with the sign of the dividend; x % 0 is x."""
    return np.where(rhs == 0, lhs, np.fmod(lhs, _safe(rhs)))


def power_integers(lhs: Array, rhs: Array) -> Array:
    """lhs to the power of rhs, wrapping around; a negative power is the truncated inverse."""
    odd = (rhs & 1).astype(bool)
    inverse = np.where(lhs == 1, 1, np.where(_is_minus_one(lhs), np.where(odd, -1, 1), 0))
    # Square and multiply: products wrap around as StableHLO's do, unlike numpy's power of
    # negatives.
    base, exponent = lhs.copy(), np.where(rhs < 0, 0, rhs).astype(rhs.dtype)
    result = np.ones_like(lhs)
    while np.any(exponent):
        result = np.where(exponent & 1, result * base, result).astype(lhs.dtype)
        base, exponent = base * base, exponent >> 1
    return np.where(rhs < 0, inverse.astype(lhs.dtype), result)


def shift_left(lhs: Array, rhs: Array, width: int) -> Array:
    """A left shift; 0 if the amount is the width or more."""
    amount = _bits(rhs)
    # C leaves shifts by the width or more undefined: shift by less, and select.
    shifted = _bits(lhs) << np.minimum(amount, width - 1)
    return np.where(amount < width, shifted, 0).astype(shifted.dtype).view(lhs.dtype)


def shift_right_logical(lhs: Array, rhs: Array, width: int) -> Array:
    """A logical right shift; 0 if the amount is the width or more."""
    amount = _bits(rhs)
    # An i4 lies in an i8 with copies of its sign bit above it: these are not shifted in.
    own = _bits(lhs) & _mask(width, lhs)
    shifted = own >> np.minimum(amount, width - 1)
    return np.where(amount < width, shifted, 0).astype(shifted.dtype).view(lhs.dtype)


def shift_right_arithmetic(lhs: Array, rhs: Array, width: int) -> Array:
    """An arithmetic right shift, of unsigned integers too."""
    padding = 8 * lhs.dtype.itemsize - width
    # The element's own top bit is the sign, of an unsigned type, too: it is moved to the top of the
    # byte and back, as a signed integer. Shifts by the width or more leave copies of it.
    signed = (lhs << padding).view(f"i{lhs.dtype.itemsize}") >> padding
    return (signed >> np.minimum(_bits(rhs), width - 1).astype(signed.dtype)).view(lhs.dtype)


def _mask(width: int, like: Array) -> Array:
    return np.array((1 << width) - 1, f"u{like.dtype.itemsize}")


def with_width(function: Ufunc) -> Ufunc:
    """Pass the bit width of the element type to a function of bits."""

    def run(*arrays: Array) -> Array:
        dtype = dtype_of(arrays[0].dtype)
        # Views as bits need contiguous elements; ascontiguousarray gives scalars a dim.
        wide = [np.ascontiguousarray(widen(a)).reshape(a.shape) for a in arrays]
        return fit(function(*wide, dtype.bits), dtype)

    return run


def count_ones(x: Array, width: int) -> Array:
    """The number of bits that are set."""
    return np.asarray(np.bitwise_count(_bits(x) & _mask(width, x)))


def count_leading_zeros(x: Array, width: int) -> Array:
    """The number of zeros above the highest bit that is set."""
    rest = _bits(x) & _mask(width, x)
    length = sum((rest >> np.array(n, rest.dtype)) != 0 for n in range(width))
    return np.asarray(width - length)


def high_product(lhs: Array, rhs: Array, width: int) -> Array:
    """The upper half of the product's bits."""
    # Python's integers: the product of two i64 has 128 bits.
    product = (lhs.astype(object) * rhs.astype(object)) >> width
    return np.asarray(product, object).astype(lhs.dtype)


# Floats and complex numbers


def maximum(lhs: Array, rhs: Array) -> Array:
    """The larger one; NaN if either is NaN, and 0 is larger than -0."""
    # numpy returns either of two zeros. Their sum is the larger one: -0 only if both are.
    zeros = (lhs == 0) & (rhs == 0)
    return np.where(zeros, lhs + rhs, np.maximum(lhs, rhs))


def minimum(lhs: Array, rhs: Array) -> Array:
    """The smaller one; NaN if either is NaN, and -0 is smaller than 0."""
    return np.negative(maximum(np.negative(lhs), np.negative(rhs)))


def complex_less(lhs: Array, rhs: Array) -> Array:
    """Whether lhs < rhs in lexicographic order of (real, imag)."""
    first = lhs.real < rhs.real
    return np.asarray(first | ((lhs.real == rhs.real) & (lhs.imag < rhs.imag)))


def complex_maximum(lhs: Array, rhs: Array) -> Array:
    """The maximum in lexicographic order."""
    return np.where(complex_less(rhs, lhs), lhs, rhs)


def complex_minimum(lhs: Array, rhs: Array) -> Array:
    """The minimum in lexicographic order."""
    return np.where(complex_less(lhs, rhs), lhs, rhs)


def complex_multiply(lhs: Array, rhs: Array) -> Array:
    """(ac - bd) + (ad + bc)i, each product rounded, as compilers write it."""
    real = lhs.real * rhs.real - lhs.imag * rhs.imag
    return pair(real, lhs.real * rhs.imag + lhs.imag * rhs.real)


def pair(real: Array, imag: Array) -> Array:
    """The complex numbers of these parts, without any arithmetic on them."""
    # `real + 1j * imag` would multiply by a complex number: an infinite part makes the other one
    # NaN, and -0 becomes 0.
    held = np.result_type(real.dtype, imag.dtype)
    out = np.empty(np.broadcast_shapes(real.shape, imag.shape), np.result_type(held, np.complex64))
    out.real, out.imag = real, imag
    return out


def absolute(x: Array) -> Array:
    """|x|; the least integer wraps to itself, and complex numbers give the type of their parts."""
    dtype = dtype_of(x.dtype)
    with np.errstate(all="ignore"):
        if dtype.is_complex:
            size = np.abs(to_double(x))
            return fit(size, dtype.real)
        return fit(np.abs(widen(x)), dtype)


def imaginary(x: Array) -> Array:
    """The imaginary part; 0 for a real number."""
    return x.imag if x.dtype.kind == "c" else np.zeros_like(x)


def round_half_away(x: Array) -> Array:
    """The nearest integer; of two, the one farther from zero."""
    # Not trunc(x + 0.5), which rounds: the number before 0.5 would become 1. x - trunc(x) is exact.
    whole = np.trunc(x)
    return np.asarray(np.copysign(np.abs(whole) + (np.abs(x - whole) >= 0.5), x))


def sign(x: Array) -> Array:
    """-1, 0 or 1, with the sign of a zero kept, and NaN for NaN."""
    # np.sign gives +0 for both zeros.
    return np.where(x == 0, x, np.sign(x))


def logistic(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, small, 1.0) / (1 + small))


def reduce_precision(x: Array, exponent_bits: int, mantissa_bits: int) -> Array:
    """x rounded to a float format: overflow gives infinity, underflow zero."""
    dtype = dtype_of(x.dtype)
    # The mantissa first: rounding up may carry into the exponent, and so overflow.
    rounded = _round_mantissa(x, dtype.mantissa - mantissa_bits)
    wide = to_double(rounded)
    if exponent_bits < dtype.bits - 1 - dtype.mantissa:
        # Beyond the largest exponent is infinity; below the smallest normal number, 4 / limit, is
        # zero: subnormals are flushed.
        limit = 2.0 ** (2 ** (exponent_bits - 1))
        wide = np.where(np.abs(wide) >= limit, np.copysign(np.inf, wide), wide)
        wide = np.where(np.abs(wide) < 4 / limit, np.copysign(0.0, wide), wide)
    with np.errstate(all="ignore"):
        # Rounded bits of a NaN may be those of an infinity.
        return fit(np.where(np.isfinite(to_double(x)), wide, to_double(x)), dtype)


def _round_mantissa(x: Array, dropped: int) -> Array:
    """Floats with the last bits of the mantissa rounded away, ties to even."""
    bits = np.ascontiguousarray(x).reshape(x.shape).view(f"u{x.dtype.itemsize}")
    if dropped <= 0:
        return x
    one = np.array(1, bits.dtype)
    # Half a unit less one, plus the last kept bit: ties go to even, and a carry into the exponent
    # is the right rounding.
    odd = (bits >> one * dropped) & one
    bits = bits + ((one << one * (dropped - 1)) - one + odd)
    return np.asarray(bits >> one * dropped << one * dropped).view(x.dtype)


def next_after(lhs: Array, rhs: Array) -> Array:
    """The neighbour of lhs in the direction of rhs, which may be subnormal."""
    with np.errstate(all="ignore"):
        return np.where(lhs == rhs, rhs, np.nextafter(lhs, rhs))


# Conversion and comparison


def convert(x: Array, dtype: DType) -> Array:
    """The numbers in another type: floats are rounded, or truncated to integers and saturated."""
    source = dtype_of(x.dtype)
    with np.errstate(all="ignore"):
        if source.is_complex and not dtype.is_complex:
            return convert(x.real, dtype)
        if dtype.is_complex:
            if source.is_complex:
                return x.astype(dtype.numpy)
            real = convert(x, dtype.real)
            return pair(real, np.zeros_like(real))
        if dtype.kind == "bool":
            return np.asarray(widen(x) != 0)
        if dtype.is_float:
            # numpy rounds integers once to f32 and f64, but twice to narrower types, by way of f32.
            return fit(_exact_double(x) if dtype.bits < 32 else widen(x), dtype)
        return _saturate(x, dtype) if source.is_float else fit(widen(x), dtype)


def _exact_double(x: Array) -> Array:
    """Numbers as f64; integers that are too wide are rounded to odd, so that no tie arises."""
    if x.dtype.kind in "iu" and x.dtype.itemsize == 8:
        # 64 bits less the 53 of a mantissa: the dropped 11 bits become a sticky last bit.
        folded = (x >> 11 | ((x & 0x7FF) != 0)) << 11
        limit = np.array(1 << 53, x.dtype)
        long = (x > limit) | (x < -limit) if x.dtype.kind == "i" else x > limit
        x = np.where(long, folded, x)
    return x.astype(np.float64)


def _saturate(x: Array, dtype: DType) -> Array:
    """Truncated toward zero; beyond the type's range its nearest number, and 0 for NaN."""
    # StableHLO leaves what is out of range to implementations; XLA saturates.
    signed = dtype.kind == "int"
    low = -(1 << (dtype.bits - 1)) if signed else 0
    high = (1 << (dtype.bits - signed)) - 1
    held = np.dtype(np.int64 if signed else np.uint64)
    whole = np.trunc(to_double(x))
    # high + 1 is a power of two, exact in f64; high itself may not be.
    inside = (whole >= float(low)) & (whole < float(high + 1))
    number = np.where(inside, whole, 0).astype(held)
    number = np.where(whole >= float(high + 1), held.type(high), number)
    return fit(np.where(whole < float(low), held.type(low), number), dtype)


ORDERS: dict[str, Ufunc] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "GE": np.greater_equal,
    "GT": np.greater,
    "LE": np.less_equal,
    "LT": np.less,
}


def compare(lhs: Array, rhs: Array, direction: str, *, total: bool = False) -> Array:
    """The comparison as booleans; `total` orders -NaN < -inf < .. < -0 < 0 < .. < inf < NaN."""
    if lhs.dtype.kind == "c":
        return _compare_complex(lhs, rhs, direction, total=total)
    keys = [_total_key(x) if total else widen(x) for x in (lhs, rhs)]
    return np.asarray(ORDERS[direction](*keys))


def _compare_complex(lhs: Array, rhs: Array, direction: str, *, total: bool) -> Array:
    def part(word: str) -> tuple[Array, Array]:
        return tuple(  # type: ignore[return-value]  # it is two
            compare(a, b, word, total=total)
            for a, b in ((lhs.real, rhs.real), (lhs.imag, rhs.imag))
        )

    real_equal, imag_equal = part("EQ")
    match direction:
        case "EQ":
            return real_equal & imag_equal
        case "NE":
            return ~(real_equal & imag_equal)
    # (a, b) <= (c, d) where a < c, or a == c and b <= d: the real parts are compared strictly.
    real, _ = part(direction[0] + "T")
    _, imag = part(direction)
    return real | (real_equal & imag)


def _total_key(x: Array) -> Array:
    """Integers in the order of the floats: sign and magnitude as two's complement."""
    dtype = dtype_of(x.dtype)
    bits = np.ascontiguousarray(x).reshape(x.shape).view(f"i{x.dtype.itemsize}")
    if dtype.name == "f8E8M0FNU":  # it has no sign
        return _bits(bits)
    width = 8 * x.dtype.itemsize
    # Types of 4 and 6 bits lie low in a byte: their sign bit is moved to its top.
    bits = bits << (width - dtype.bits)
    return np.where(bits < 0, bits ^ np.array((1 << (width - 1)) - 1, bits.dtype), bits)
