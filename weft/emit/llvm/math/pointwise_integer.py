"""Integer and bit ops, elementwise, with the reference's semantics of zero, overflow and shifts."""

from __future__ import annotations

from weft.emit.llvm.math.pointwise_kinds import Emit, by_kind
from weft.emit.llvm.writer.vector import Vector, Vectors, suffix
from weft.ir.op import Op
from weft.ir.types import DType
from weft.ops.elementwise import pointwise as ops
from weft.ops.elementwise import special

# Quotients


def divide(v: Vectors, dtype: DType, a: Vector, b: Vector) -> Vector:
    """The truncated quotient; x / 0 has all bits set, and the least number / -1 wraps."""
    found = _quotient(v, dtype, a, _safe(v, dtype, b))
    if dtype.kind == "int":
        found = v.select(_equals(v, b, -1), v.neg(a), found)
    return v.select(_equals(v, b, 0), v.constant(-1, a.kind), found)


def remainder(v: Vectors, dtype: DType, a: Vector, b: Vector) -> Vector:
    """The remainder of truncated division; x % 0 is x."""
    safe = _safe(v, dtype, b)
    rest = v.sub(a, v.mul(_quotient(v, dtype, a, safe), safe))
    return v.select(_equals(v, b, 0), a, rest)


def _equals(v: Vectors, x: Vector, value: int) -> Vector:
    return v.compare("eq", x, v.constant(value, x.kind))


def _safe(v: Vectors, dtype: DType, divisor: Vector) -> Vector:
    """Divisors with 1 in place of those that trap."""
    bad = _equals(v, divisor, 0)
    if dtype.kind == "int":
        bad = v.binary("or", bad, _equals(v, divisor, -1))
    return v.select(bad, v.constant(1, divisor.kind), divisor)


def _quotient(v: Vectors, dtype: DType, a: Vector, b: Vector) -> Vector:
    """a / b. Short integers are divided as floats, which is vectorizable and exact."""
    signed = dtype.kind == "int"
    # Constant divisors stay integral: LLVM turns them into multiplications and shifts.
    if v.width == 1 or a.bits == 64 or not b.text.startswith("%"):
        return v.binary("sdiv" if signed else "udiv", a, b)
    # The mantissa is longer than the integers. A true quotient lies at least 1 / b below the next
    # integer, which is more than half an ulp, so that rounding does not reach it.
    kind = "double" if a.bits == 32 else "float"
    x, y = (v.cast("sitofp" if signed else "uitofp", n, kind) for n in (a, b))
    return v.cast("fptosi" if signed else "fptoui", v.div(x, y), a.kind)


# Powers


def power(v: Vectors, dtype: DType, a: Vector, b: Vector) -> Vector:
    """a^b with wraparound; for negative b, the truncated inverse."""
    zero, one = v.constant(0, a.kind), v.constant(1, a.kind)
    negative = v.compare("slt", b, zero) if dtype.kind == "int" else None
    exponent = b if negative is None else v.select(negative, zero, b)
    carried = [(x.type, x.text) for x in (one, a, exponent)]
    with v.code.loop(0, dtype.bits, carried=carried) as loop:
        total, base, left = (Vector(name, a.kind, a.width) for name in loop.carried)
        odd = v.compare("ne", v.binary("and", left, one), zero)
        following = v.select(odd, v.mul(total, base), total)
        loop.carry(following.text, v.mul(base, base).text, v.binary("lshr", left, one).text)
    found = Vector(loop.carried[0], a.kind, a.width)
    return found if negative is None else v.select(negative, _inverse(v, a, b), found)


def _inverse(v: Vectors, a: Vector, b: Vector) -> Vector:
    """1 / a^-b, truncated."""
    zero, one, minus = (v.constant(n, a.kind) for n in (0, 1, -1))
    odd = v.compare("ne", v.binary("and", b, one), zero)
    of_minus = v.select(odd, minus, one)
    found = v.select(_equals(v, a, -1), of_minus, zero)
    return v.select(_equals(v, a, 1), one, found)


# Shifts and counts


def shift_left(v: Vectors, dtype: DType, a: Vector, b: Vector) -> Vector:
    """Shift left with zeros; 0 for a count of the width or more."""
    return _shift(v, dtype, "shl", a, b)


def shift_right_logical(v: Vectors, dtype: DType, a: Vector, b: Vector) -> Vector:
    """Logical shift right; 0 for a count of the width or more."""
    return _shift(v, dtype, "lshr", _bare(v, dtype, a), b)


def _shift(v: Vectors, dtype: DType, how: str, a: Vector, b: Vector) -> Vector:
    width = v.constant(dtype.bits, a.kind)
    # LLVM's shifts by the width or more are poison, even in lanes that a select drops.
    amount = v.intrinsic("umin", b, v.constant(dtype.bits - 1, a.kind))
    shifted = v.binary(how, a, amount)
    return v.select(v.compare("ult", b, width), shifted, v.constant(0, a.kind))


def shift_right_arithmetic(v: Vectors, dtype: DType, a: Vector, b: Vector) -> Vector:
    """Arithmetic shift right, of unsigned integers too."""
    amount = v.intrinsic("umin", b, v.constant(dtype.bits - 1, a.kind))
    spare = v.constant(a.bits - dtype.bits, a.kind)
    # i4 and the like: the bits above the type may be zeros, so its sign bit is spread first.
    signed = v.binary("ashr", v.binary("shl", a, spare), spare) if a.bits > dtype.bits else a
    return v.binary("ashr", signed, amount)


def _bare(v: Vectors, dtype: DType, a: Vector) -> Vector:
    """The bits of the type, zero-extended."""
    if a.bits == dtype.bits:
        return a
    return v.binary("and", a, v.constant((1 << dtype.bits) - 1, a.kind))


def count_ones(v: Vectors, dtype: DType, a: Vector) -> Vector:
    """Population count."""
    return v.intrinsic("ctpop", _bare(v, dtype, a))


def count_leading_zeros(v: Vectors, dtype: DType, a: Vector) -> Vector:
    """The number of zeros above the highest bit that is set."""
    name = f"llvm.ctlz.{suffix(a.kind, a.width)}"
    args = ((a.type, _bare(v, dtype, a).text), ("i1", "false"))
    found = Vector(v.code.call(a.type, name, *args), a.kind, a.width)
    return v.sub(found, v.constant(a.bits - dtype.bits, a.kind))


def high_product(v: Vectors, dtype: DType, a: Vector, b: Vector) -> Vector:
    """The high half of the product."""
    wide = f"i{2 * a.bits}"
    x, y = (v.cast("sext" if dtype.kind == "int" else "zext", n, wide) for n in (a, b))
    amount = v.constant(dtype.bits, wide)
    return v.cast("trunc", v.binary("lshr", v.mul(x, y), amount), a.kind)


# Plain arithmetic


def add(v: Vectors, dtype: DType, a: Vector, b: Vector) -> Vector:
    """a + b."""
    return v.add(a, b)


def subtract(v: Vectors, dtype: DType, a: Vector, b: Vector) -> Vector:
    """a - b."""
    return v.sub(a, b)


def multiply(v: Vectors, dtype: DType, a: Vector, b: Vector) -> Vector:
    """a * b."""
    return v.mul(a, b)


def negate(v: Vectors, dtype: DType, a: Vector) -> Vector:
    """-a."""
    return v.neg(a)


def absolute(v: Vectors, dtype: DType, a: Vector) -> Vector:
    """|a|; the least number wraps to itself."""
    return v.intrinsic("smax", a, v.neg(a))


def sign(v: Vectors, dtype: DType, a: Vector) -> Vector:
    """-1, 0 or 1."""
    low, high = v.constant(-1, a.kind), v.constant(1, a.kind)
    return v.intrinsic("smin", v.intrinsic("smax", a, low), high)


def maximum(v: Vectors, dtype: DType, a: Vector, b: Vector) -> Vector:
    """The larger one."""
    return v.intrinsic("smax" if dtype.kind == "int" else "umax", a, b)


def minimum(v: Vectors, dtype: DType, a: Vector, b: Vector) -> Vector:
    """The smaller one."""
    return v.intrinsic("smin" if dtype.kind == "int" else "umin", a, b)


def _bitwise(instruction: str) -> Emit:
    def integer(v: Vectors, dtype: DType, a: Vector, b: Vector) -> Vector:
        return v.binary(instruction, a, b)

    def boolean(v: Vectors, a: Vector, b: Vector) -> Vector:
        return v.binary(instruction, a, b)

    return by_kind(integer=integer, boolean=boolean)


def _invert(v: Vectors, dtype: DType, a: Vector) -> Vector:
    return v.binary("xor", a, v.constant(-1, a.kind))


def _opposite(v: Vectors, a: Vector) -> Vector:
    return v.binary("xor", a, v.constant(True, "i1"))


EMIT: dict[type[Op], Emit] = {
    ops.And: _bitwise("and"),
    ops.Or: _bitwise("or"),
    ops.Xor: _bitwise("xor"),
    ops.Not: by_kind(integer=_invert, boolean=_opposite),
    ops.Popcnt: by_kind(integer=count_ones),
    ops.CountLeadingZeros: by_kind(integer=count_leading_zeros),
    ops.ShiftLeft: by_kind(integer=shift_left),
    ops.ShiftRightLogical: by_kind(integer=shift_right_logical),
    ops.ShiftRightArithmetic: by_kind(integer=shift_right_arithmetic),
    special.Mulhi: by_kind(integer=high_product),
}
