"""Functions that emitted kernels call, as `p`; importing this imports Triton."""

# Triton compiles these, and their arguments are tiles:
# ruff: noqa: ANN001, ANN201, ANN202, D103
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice as lib

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.693147182464599609375)  # the nearest f32
LN2_REST = tl.constexpr(-1.904654323148236e-09)
EXP_LEAST = tl.constexpr(-104.0)  # below, the exponential is 0
EXP2_MOST = tl.constexpr(127.99999237060547)  # the last f32 before 128, where exp2 is infinite


@triton.jit
def bound(a):
    """The bound of a loop, which the interpreter needs as a number."""
    return a


@triton.jit
def maximum(a, b):
    # StableHLO's maximum propagates NaN; the hardware's default returns the other operand.
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def divide(a, b):
    if a.dtype == tl.float32 and b.dtype == tl.float32:
        # Triton's `/` of f32 is an approximation within 2 ulp, and StableHLO's is correctly
        # rounded.
        return tl.div_rn(a, b)
    else:
        return a / b


@triton.jit
def sqrt(a):
    if a.dtype == tl.float32:
        return tl.sqrt_rn(a)
    else:
        return tl.sqrt(a)


@triton.jit
def exp(a):
    """In f32 the exponent is rounded before `exp2`: what that loses is added to first order."""
    if a.dtype == tl.float32:
        # exp2 is finite and positive at both ends, or 0, so that the correction makes no NaN. It
        # also makes infinities.
        a = maximum(a, EXP_LEAST)
        t = tl.minimum(a * LOG2E, EXP2_MOST)
        lost = tl.fma(t, -LN2_REST, tl.fma(t, -LN2, a))
        y = tl.exp2(t)
        return tl.fma(y, lost, y)
    else:
        return lib.exp(a)


@triton.jit
def fast_exp(a):
    """For results of fewer than 24 bits."""
    return tl.exp2(a * LOG2E)


@triton.jit
def logistic(a):
    # 1 as a tile of a's shape, which `div_rn` wants; a NaN stays one.
    return divide(tl.where(a == a, 1.0, a), 1.0 + exp(-a))


@triton.jit
def divide_rows(a, b):
    """By one divisor a row: multiplied by its reciprocal, to twice the bits.

    Correctly rounded, but for quotients within 2^-47 of the middle of two numbers, and divisors
    from 2^126, whose reciprocals are subnormal.
    """
    near = 1.0 / b  # within 2 ulp
    normal = (tl.abs(near) < float("inf")) & (near != 0.0)
    # Toward zero: the rest has its sign then, and an infinite operand makes no NaN of the two.
    below = (near.to(tl.int32, bitcast=True) - 3).to(tl.float32, bitcast=True)
    r = tl.where(normal, below, near)
    lost = tl.fma(-r, b, 1.0)
    rest = tl.where(normal, r * tl.fma(lost, lost, lost), near)
    return tl.fma(a, r, a * rest)


@triton.jit
def fast_logistic(a):
    """For results of fewer than 24 bits."""
    return 1.0 / (1.0 + fast_exp(-a))


@triton.jit
def fast_tanh(a):
    """For results of fewer than 24 bits."""
    y = 1.0 - 2.0 / (fast_exp(2.0 * a) + 1.0)
    return tl.where(tl.abs(a) < 0.01, a - a * a * a * 0.3333333, y)


@triton.jit
def sign(a):
    one = tl.where(a > 0, 1.0, -1.0).to(a.dtype)
    return tl.where((a == 0) | (a != a), a, one)


@triton.jit
def sign_of_integer(a):
    return (a > 0).to(a.dtype) - (a < 0).to(a.dtype)


@triton.jit
def is_finite(a):
    return tl.abs(a) < float("inf")


@triton.jit
def is_inf(a):
    return tl.abs(a) == float("inf")


@triton.jit
def truncated(a, low, high, least, most):
    """Toward zero, saturated at the ends of an integer type; 0 for NaN."""
    # Compared as floats first: converting a number outside of an integer type's range is undefined.
    inside = (a > low - 1.0) & (a < high)
    whole = tl.where(inside, a, 0.0).to(tl.int64)
    if most > 9223372036854775807:  # of unsigned integers of 64 bits
        whole = tl.where(inside, a, 0.0).to(tl.uint64)
    whole = tl.where(a >= high, most, whole)
    return tl.where(a < low, least, whole)


@triton.jit
def rounded_to_odd(a):
    """f64 as f32, inexact ones with an odd last bit: rounded again, they are rounded correctly."""
    near = a.to(tl.float32)
    back = near.to(tl.float64)
    bits = near.to(tl.int32, bitcast=True)
    below = tl.where(tl.abs(back) > tl.abs(a), bits - 1, bits) | 1
    return tl.where(back == a, bits, below).to(tl.float32, bitcast=True)


@triton.jit
def invert(a):
    """`~a`, which the interpreter refuses for unsigned integers."""
    return (a ^ a) - 1 - a


@triton.jit
def divide_integers(a, b):
    safe = tl.where(b == 0, b + 1, b)
    if a.dtype.is_int_signed():
        safe = tl.where(safe == -1, safe + 2, safe)
        negated = tl.where(b == -1, -a, a // safe)
        return tl.where(b == 0, (a ^ a) - 1, negated)
    else:
        return tl.where(b == 0, (a ^ a) - 1, a // safe)


@triton.jit
def remainder_integers(a, b):
    safe = tl.where(b == 0, b + 1, b)
    if a.dtype.is_int_signed():
        safe = tl.where(safe == -1, safe + 2, safe)
    return tl.where(b == 0, a, a % safe)


@triton.jit
def shift_left(a, b):
    width: tl.constexpr = a.dtype.primitive_bitwidth
    inside = (b >= 0) & (b < width)
    return tl.where(inside, a << tl.where(inside, b, 0), a ^ a)


@triton.jit
def shift_right_logical(a, b):
    width: tl.constexpr = a.dtype.primitive_bitwidth
    kind: tl.constexpr = tl.core.get_int_dtype(width, signed=False)
    inside = (b >= 0) & (b < width)
    moved = a.to(kind, bitcast=True) >> tl.where(inside, b, 0).to(kind)
    return tl.where(inside, moved.to(a.dtype, bitcast=True), a ^ a)


@triton.jit
def shift_right_arithmetic(a, b):
    width: tl.constexpr = a.dtype.primitive_bitwidth
    kind: tl.constexpr = tl.core.get_int_dtype(width, signed=True)
    inside = (b >= 0) & (b < width)
    # A shift by the width or more is undefined; StableHLO's fills with the sign.
    moved = a.to(kind, bitcast=True) >> tl.where(inside, b, width - 1).to(kind)
    return moved.to(a.dtype, bitcast=True)


@triton.jit
def count_ones(a):
    return lib.popc(a.to(tl.core.get_int_dtype(a.dtype.primitive_bitwidth, signed=True))).to(
        a.dtype
    )


@triton.jit
def leading_zeros(a):
    return lib.clz(a.to(tl.core.get_int_dtype(a.dtype.primitive_bitwidth, signed=True))).to(a.dtype)


# Products of tiles; those of f32 are exact, unlike Triton's default


@triton.jit
def dot(a, b, total):
    # Triton's default rounds f32 operands to TF32, of 10 mantissa bits.
    return tl.dot(a, b, total, input_precision="ieee")


@triton.jit
def dot_tf32(a, b, total):
    return tl.dot(a, b, total, input_precision="tf32")


@triton.jit
def dot_integers(a, b, total):
    return tl.dot(a, b, total, out_dtype=tl.int32)


# Sums of vectors


@triton.jit
def sum(a):
    return tl.sum(a, 0)


@triton.jit
def sums(a):
    return tl.cumsum(a, 0)


# Reductions along the last dim of a tile, which becomes one of size 1


@triton.jit
def _add(a, b):
    return a + b


@triton.jit
def _multiply(a, b):
    return a * b


@triton.jit
def _maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _and(a, b):
    return a & b


@triton.jit
def _or(a, b):
    return a | b


@triton.jit
def _xor(a, b):
    return a ^ b


@triton.jit
def sum_columns(a):
    return tl.sum(a, 0, keep_dims=True)


@triton.jit
def sum_row(a):
    return tl.reduce(a, 1, _add, keep_dims=True)


@triton.jit
def product_row(a):
    return tl.reduce(a, 1, _multiply, keep_dims=True)


@triton.jit
def max_row(a):
    return tl.reduce(a, 1, _maximum, keep_dims=True)


@triton.jit
def min_row(a):
    return tl.reduce(a, 1, _minimum, keep_dims=True)


@triton.jit
def and_row(a):
    return tl.reduce(a, 1, _and, keep_dims=True)


@triton.jit
def or_row(a):
    return tl.reduce(a, 1, _or, keep_dims=True)


@triton.jit
def xor_row(a):
    return tl.reduce(a, 1, _xor, keep_dims=True)


# Arguments of the largest and the least: NaN first, then the lower position


@triton.jit
def _first(a, a_at, b, b_at):
    """Whether the first of two equal or unordered keys comes first."""
    both = (a == b) | ((a != a) & (b != b))
    return ((a != a) & (b == b)) | (both & (a_at < b_at))


@triton.jit
def pick_max(a, a_at, a_value, b, b_at, b_value):
    kept = (a > b) | _first(a, a_at, b, b_at)
    return tl.where(kept, a, b), tl.where(kept, a_at, b_at), tl.where(kept, a_value, b_value)


@triton.jit
def pick_min(a, a_at, a_value, b, b_at, b_value):
    kept = (a < b) | _first(a, a_at, b, b_at)
    return tl.where(kept, a, b), tl.where(kept, a_at, b_at), tl.where(kept, a_value, b_value)


@triton.jit
def pick_max_row(key, at, value):
    return tl.reduce((key, at, value), 1, pick_max, keep_dims=True)


@triton.jit
def pick_min_row(key, at, value):
    return tl.reduce((key, at, value), 1, pick_min, keep_dims=True)


@triton.jit
def later_max(a, a_at, b, b_at):
    """Of a position and a later one: that of the larger key, NaN the largest."""
    better = (a == a) & ((b > a) | (b != b))
    return tl.where(better, b, a), tl.where(better, b_at, a_at)


@triton.jit
def later_min(a, a_at, b, b_at):
    better = (a == a) & ((b < a) | (b != b))
    return tl.where(better, b, a), tl.where(better, b_at, a_at)


@triton.jit
def _place_max(a, a_at, b, b_at):
    kept = (a > b) | _first(a, a_at, b, b_at)
    return tl.where(kept, a, b), tl.where(kept, a_at, b_at)


@triton.jit
def _place_min(a, a_at, b, b_at):
    kept = (a < b) | _first(a, a_at, b, b_at)
    return tl.where(kept, a, b), tl.where(kept, a_at, b_at)


@triton.jit
def place_max_row(key, at):
    return tl.reduce((key, at), 1, _place_max, keep_dims=True)


@triton.jit
def place_min_row(key, at):
    return tl.reduce((key, at), 1, _place_min, keep_dims=True)
