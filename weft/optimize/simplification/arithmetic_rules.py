"""Exact rules of arithmetic, also for NaN, infinities and the sign of zero."""

from __future__ import annotations

import ml_dtypes

from weft.ir.module import Node, Value, apply
from weft.ir.op import Op
from weft.ir.rebuild import NodeRule, Rewritten
from weft.ir.types import DTYPES, DType, TensorType
from weft.ops.elementwise.convert import Complex, Convert, Imag, Real
from weft.ops.elementwise.pointwise import (
    Abs,
    Add,
    And,
    Compare,
    Divide,
    Maximum,
    Minimum,
    Multiply,
    Negate,
    Not,
    Or,
    Power,
    Select,
    Subtract,
    Xor,
)
from weft.optimize.simplification.splats import is_number, splat, splat_of

_UNSIGNED_FLOAT = DTYPES["f8E8M0FNU"]  # it has no negative numbers: they become NaN
# Floats that have zeros of both signs and NaN, so that a wider one of them holds every value.
_USUAL_FLOATS = ("f8E4M3FN", "f8E5M2", "f16", "bf16", "f32", "f64")


def dtype(value: Value) -> DType:
    """The element type of a tensor."""
    assert isinstance(value.type, TensorType)
    return value.type.dtype


def whole(value: Value) -> bool:
    """Whether a value has integer or boolean arithmetic."""
    return dtype(value).kind in ("int", "uint", "bool")


def zero_like(node: Node) -> Node:
    """Zeros, or false, in place of a node."""
    (out,) = node.types
    assert isinstance(out, TensorType)
    return splat(0, out, node.loc)


def add_nothing(node: Node) -> Rewritten:
    """x + 0 -> x, when integers; x + -0.0 -> x, when floats (+0.0 would lose the sign of -0.0)."""
    for x, other in (node.operands, reversed(node.operands)):
        # Complex zeros have two signs, and (x + yi) + (-0.0 + 0.0i) may change one of them.
        if is_number(other, 0, negative=True) and not dtype(x).is_complex:
            return (x,)
    return None


def subtract_nothing(node: Node) -> Rewritten:
    """x - 0 -> x, when integers or 0 is +0.0; x - x -> 0, when integers."""
    x, other = node.operands
    if is_number(other, 0, negative=False) and not dtype(x).is_complex:
        return (x,)
    return zero_like(node) if x is other and whole(x) else None


def multiply_by_one(node: Node) -> Rewritten:
    """x * 1 -> x; x * 0 -> 0, when integers."""
    for x, other in (node.operands, reversed(node.operands)):
        if is_number(other, 1) and not dtype(x).is_complex:
            return (x,)
        # Not for floats: NaN * 0 and inf * 0 are NaN, and -1 * 0 is -0.
        if is_number(other, 0) and whole(x):
            return zero_like(node)
    return None


def by_one(node: Node) -> Rewritten:
    """x / 1 -> x; x to the power of 1 -> x."""
    x, other = node.operands
    return (x,) if is_number(other, 1) and not dtype(x).is_complex else None


def twice(node: Node) -> Rewritten:
    """f(f(x)) -> x, for negate and not."""
    inner = node.operands[0].node
    if inner is None or inner.op is not node.op or dtype(node.operands[0]) is _UNSIGNED_FLOAT:
        return None
    return inner.operands


def abs_of_sign(node: Node) -> Rewritten:
    """abs(-x) -> abs(x); abs(abs(x)) -> abs(x), when real."""
    inner = node.operands[0].node
    if inner is None or dtype(node.operands[0]).is_complex:
        return None
    if dtype(node.operands[0]) is _UNSIGNED_FLOAT:
        return None
    if isinstance(inner.op, Abs):
        return node.operands if not dtype(inner.operands[0]).is_complex else None
    return apply(node.op, *inner.operands, loc=node.loc) if isinstance(inner.op, Negate) else None


def with_itself(node: Node) -> Rewritten:
    """f(x, x) -> x, for maximum, minimum, and, or."""
    x, other = node.operands
    return (x,) if x is other else None


def bits(node: Node) -> Rewritten:
    """x and 0 -> 0; x and 1.. -> x; x or 0 -> x; x or 1.. -> 1..; x xor 0 -> x; x xor x -> 0."""
    if isinstance(node.op, Xor) and node.operands[0] is node.operands[1]:
        return zero_like(node)
    for x, other in (node.operands, reversed(node.operands)):
        element = splat_of(other)
        if element is None:
            continue
        nothing = int(element) == 0
        # All bits set, as a signed or as an unsigned number.
        everything = int(element) in (-1, (1 << dtype(x).bits) - 1)
        match node.op:
            case And() if nothing or everything:
                return (other if nothing else x,)
            case Or() if nothing or everything:
                return (x if nothing else other,)
            case Xor() if nothing:
                return (x,)
    return None


def select_known(node: Node) -> Rewritten:
    """select(p, x, y) -> x or y, when p is constant or x is y; not p swaps them."""
    pred, on_true, on_false = node.operands
    if on_true is on_false:
        return (on_true,)
    chosen = splat_of(pred)
    if chosen is not None:
        return (on_true if chosen else on_false,)
    inner = pred.node
    if inner is not None and isinstance(inner.op, Not):
        return apply(Select(), inner.operands[0], on_false, on_true, loc=node.loc)
    return None


def compare_with_itself(node: Node) -> Rewritten:
    """x compared with x -> true or false, when integers."""
    x, other = node.operands
    # Not for floats: NaN is not equal to itself.
    if x is not other or not whole(x):
        return None
    assert isinstance(node.op, Compare)
    (out,) = node.types
    assert isinstance(out, TensorType)
    return splat(node.op.comparison_direction in ("EQ", "GE", "LE"), out, node.loc)


def convert_chain(node: Node) -> Rewritten:
    """convert(x) -> x, when of its own type; convert(convert(x)) -> one, if the first is exact."""
    (x,), (out,) = node.operands, node.types
    assert isinstance(out, TensorType)
    if x.type is out:
        return (x,)
    inner = x.node
    if inner is None or not isinstance(inner.op, Convert):
        return None
    (first,) = inner.operands
    if not holds(dtype(x), dtype(first)):
        return None
    return (first,) if first.type is out else apply(Convert(out), first, loc=node.loc)


def holds(wide: DType, narrow: DType) -> bool:
    """Whether one element type represents every value of the other."""
    if narrow.kind == "bool":
        return wide.kind == "bool" or (wide.is_integer and wide.bits > 2) or _usual(wide)
    if narrow.is_integer and wide.is_integer:
        # Magnitude bits: a sign takes one.
        room = wide.bits - (wide.kind == "int") - narrow.bits + (narrow.kind == "int")
        return room >= 0 and not (narrow.kind == "int" and wide.kind == "uint")
    # Integers as floats are left out: 2^24 + 1 as f32 has been rounded, so the second conversion
    # would see another number.
    if not _usual(narrow) or not _usual(wide):
        return False
    a, b = ml_dtypes.finfo(wide.numpy), ml_dtypes.finfo(narrow.numpy)
    return bool(
        a.nmant >= b.nmant
        and a.maxexp >= b.maxexp
        and float(a.smallest_subnormal) <= float(b.smallest_subnormal)
    )


def _usual(dtype: DType) -> bool:
    return dtype.name in _USUAL_FLOATS


def parts_of_complex(node: Node) -> Rewritten:
    """real(complex(x, y)) -> x, imag(complex(x, y)) -> y."""
    inner = node.operands[0].node
    if inner is None or not isinstance(inner.op, Complex):
        return None
    return (inner.operands[0 if isinstance(node.op, Real) else 1],)


def complex_of_parts(node: Node) -> Rewritten:
    """complex(real(x), imag(x)) -> x."""
    left, right = (value.node for value in node.operands)
    if left is None or right is None or left.operands != right.operands:
        return None
    if isinstance(left.op, Real) and isinstance(right.op, Imag):
        return left.operands if left.operands[0].type is node.types[0] else None
    return None


RULES: dict[type[Op], tuple[NodeRule, ...]] = {
    Add: (add_nothing,),
    Subtract: (subtract_nothing,),
    Multiply: (multiply_by_one,),
    Divide: (by_one,),
    Power: (by_one,),
    Negate: (twice,),
    Not: (twice,),
    Abs: (abs_of_sign,),
    Maximum: (with_itself,),
    Minimum: (with_itself,),
    And: (with_itself, bits),
    Or: (with_itself, bits),
    Xor: (bits,),
    Select: (select_known,),
    Compare: (compare_with_itself,),
    Convert: (convert_chain,),
    Real: (parts_of_complex,),
    Imag: (parts_of_complex,),
    Complex: (complex_of_parts,),
}
