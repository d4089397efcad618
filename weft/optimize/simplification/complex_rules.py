"""Convolutions of complex numbers as four real ones, which are kernels."""

from __future__ import annotations

from collections.abc import Mapping

from weft.ir.module import Node, Value, apply
from weft.ir.op import Op
from weft.ir.rebuild import NodeRule, Rewritten
from weft.ir.types import TensorType
from weft.ops.convolution import Convolution
from weft.ops.elementwise.convert import Complex, Imag, Real
from weft.ops.elementwise.pointwise import Add, Subtract


def complex_convolution(node: Node) -> Rewritten:
    """(a + bi) * (c + di) -> a * c - b * d + (a * d + b * c) i, when both are complex."""
    op, operands = node.op, node.operands
    types = (*node.operand_types, *node.types)
    assert isinstance(op, Convolution)
    if not all(isinstance(t, TensorType) and t.dtype.is_complex for t in types):
        return None
    (a, b), (c, d) = [_parts(value, node) for value in operands]
    part = op.replace(out=TensorType(op.out.shape, op.out.dtype.real))

    def real_convolution(lhs: Value, rhs: Value) -> Value:
        return apply(part, lhs, rhs, loc=node.loc).results[0]

    real = apply(Subtract(), real_convolution(a, c), real_convolution(b, d), loc=node.loc)
    imag = apply(Add(), real_convolution(a, d), real_convolution(b, c), loc=node.loc)
    return apply(Complex(), real.results[0], imag.results[0], loc=node.loc)


def _parts(value: Value, node: Node) -> tuple[Value, Value]:
    real, imag = (apply(part(), value, loc=node.loc).results[0] for part in (Real, Imag))
    return real, imag


RULES: Mapping[type[Op], tuple[NodeRule, ...]] = {Convolution: (complex_convolution,)}
