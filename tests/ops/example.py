"""Examples of ops: one op with concrete operands, from which every generic test is made."""

from __future__ import annotations

from dataclasses import dataclass

from weft.ir.module import Function, Module, Node, Region, Value, apply
from weft.ir.op import Op
from weft.ir.types import Array, TensorType, Types, type_of


@dataclass(frozen=True)
class Example:
    """An op, the arrays it is applied to, and its regions."""

    op: Op
    arrays: tuple[Array, ...]
    regions: tuple[Region, ...] = ()

    @property
    def types(self) -> Types:
        """The operand types."""
        return tuple(type_of(a) for a in self.arrays)

    def node(self) -> Node:
        """The op on arguments of these types."""
        return apply(self.op, *(Value(t) for t in self.types), regions=self.regions)

    def module(self) -> Module:
        """A module whose main applies the op to its arguments."""
        args = tuple(Value(t, None, n) for n, t in enumerate(self.types))
        node = apply(self.op, *args, regions=self.regions)
        return Module({"main": Function("main", Region(args, [node], node.results))})


def binary_region(op: Op, dtype: str) -> Region:
    """A region `(a, b) -> op(a, b)` on scalars, as reductions take."""
    from weft.ir.types import DTYPES

    scalar = TensorType((), DTYPES[dtype])
    args = (Value(scalar, None, 0), Value(scalar, None, 1))
    node = apply(op, *args)
    return Region(args, [node], node.results)
