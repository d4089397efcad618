"""Sums along the dim of a one-hot: one term is left, which needs no loop.

The gradient of cross-entropy has one: a log-softmax subtracts the sum of what it is given, and the
loss gives one element of each row.
"""

from __future__ import annotations

import numpy as np

from weft.ir.location import Location
from weft.ir.module import Node, Value, apply, tensor_of
from weft.ir.op import Op
from weft.ir.rebuild import NodeRule, Rewritten
from weft.ir.types import TensorType
from weft.ops.elementwise.convert import Convert
from weft.ops.elementwise.pointwise import (
    Add,
    And,
    Compare,
    Divide,
    Multiply,
    Negate,
    Pointwise,
    Select,
    Subtract,
)
from weft.ops.reduce import Reduce
from weft.ops.shape import BroadcastInDim, Constant, Iota, Reshape
from weft.optimize.collectives.facts import plain_combiner
from weft.optimize.simplification.splats import is_number, splat, splat_of

_DEPTH = 12  # of the ops between a one-hot and its sum


def sum_one_hot(node: Node) -> Rewritten:
    """sum(f(iota == k)) -> select(0 <= k < size, f(true), f(false)), if f(false) is 0 or NaN."""
    assert isinstance(node.op, Reduce)
    if len(node.operands) != 2 or len(node.op.dimensions) != 1 or plain_combiner(node) != "add":
        return None
    term, init = node.operands
    type, (dim,) = tensor_of(term), node.op.dimensions
    if not type.is_static or type.sizes[dim] < 2 or not is_number(init, 0):
        return None
    if node.types[0] is not type.with_shape(type.shape[:dim] + type.shape[dim + 1 :]):
        return None
    sums = _OneHot(dim, type, node.loc)
    if not sums.vanishes(term, _DEPTH) or sums.place is None:
        return None
    at = sums.without_dim(sums.place, _DEPTH)
    hit, missed = (sums.at(one).without_dim(term, _DEPTH) for one in (True, False))
    if at is None or hit is None or missed is None:
        return None
    # The other terms are zeros, or all NaN.
    one = sums.apply(Add(), hit, missed)
    found = sums.apply(Select(), sums.is_inside(at), one, missed)
    return apply(Add(), found, splat(0, tensor_of(found), node.loc).results[0], loc=node.loc)


class _OneHot:
    """A sum's terms without the dim: the hit one, or any other."""

    def __init__(self, dim: int, type: TensorType, loc: Location, *, hit: bool = False) -> None:
        self.dim, self.type, self.loc, self.hit = dim, type, loc, hit
        self.choice: Value | None = None  # iota == place
        self.place: Value | None = None
        self.known: dict[Value, Value | None] = {}

    def at(self, hit: bool) -> _OneHot:
        """The same one-hot, there."""
        made = _OneHot(self.dim, self.type, self.loc, hit=hit)
        made.choice, made.place = self.choice, self.place
        return made

    def apply(self, op: Op, *operands: Value) -> Value:
        return apply(op, *operands, loc=self.loc).results[0]

    def is_inside(self, at: Value) -> Value:
        """Whether a place is one of the dim's positions."""
        type, size = tensor_of(at), self.type.sizes[self.dim]
        least, most = (splat(n, type, self.loc).results[0] for n in (0, size - 1))
        return self.apply(
            And(), self.apply(Compare("GE"), at, least), self.apply(Compare("LE"), at, most)
        )

    # Zeros

    def vanishes(self, value: Value, depth: int) -> bool:
        """Whether a value is 0 or NaN where the one-hot is not hit."""
        if is_number(value, 0):
            return True
        node = value.node
        if node is None or not depth:
            return False
        operands = node.operands
        match node.op:
            case Negate():
                return self.vanishes(operands[0], depth - 1)
            case Convert(out=out) if out.dtype.is_float:
                return self._is_choice(operands[0]) or self.vanishes(operands[0], depth - 1)
            case Convert():
                return self._is_choice(operands[0])
            case Multiply():
                return any(self.vanishes(one, depth - 1) for one in operands)
            case Divide() if self.type.dtype.is_float:
                return self.vanishes(operands[0], depth - 1)
            case Select():
                rest = operands[2:] if self._is_choice(operands[0]) else operands[1:]
                return all(self.vanishes(one, depth - 1) for one in rest)
        return False

    def _is_choice(self, value: Value) -> bool:
        """Whether a value is the one-hot's comparison, the first of which is kept."""
        if self.choice is not None:
            return value is self.choice
        node = value.node
        if node is None or not isinstance(node.op, Compare):
            return False
        if node.op.comparison_direction != "EQ" or tensor_of(node.operands[0]).dtype.is_float:
            return False
        for position, place in (node.operands, node.operands[::-1]):
            # A device of a mesh adds where its part of the dim begins: that stays in the place.
            if (start := self._start(position)) is not None:
                moved = place if start is position else self.apply(Subtract(), place, start)
                self.choice, self.place = value, moved
                return True
        return False

    def _start(self, position: Value) -> Value | None:
        """The first of the positions along the dim; the positions themselves where it is 0."""
        node = position.node
        if node is None:
            return None
        if self._counts(node, self.dim):
            # Positions beyond the type would wrap around, and be hit by mistake.
            fits = self.type.sizes[self.dim] - 1 <= tensor_of(position).dtype.limits[1]
            return position if fits else None
        if isinstance(node.op, Add):
            for one, other in (node.operands, node.operands[::-1]):
                if self._start(one) is one and self.without_dim(other, _DEPTH) is not None:
                    return other
        return None

    def _counts(self, node: Node, dim: int) -> bool:
        """Whether a node's elements are their positions along the dim."""
        match node.op:
            case Iota(iota_dimension=counted):
                return counted == dim
            case BroadcastInDim(broadcast_dimensions=dims) if dim in dims:
                inner, at = node.operands[0].node, dims.index(dim)
                same = tensor_of(node.operands[0]).sizes[at] == self.type.sizes[self.dim]
                return inner is not None and same and self._counts(inner, at)
            case Constant(value=held) if not held.is_splat:  # a small iota, folded
                shape = [-1 if d == dim else 1 for d in range(held.type.rank)]
                positions = np.arange(held.type.sizes[dim]).reshape(shape)
                return bool((held.array == positions).all())
        return False

    # Without the dim

    def without_dim(self, value: Value, depth: int) -> Value | None:
        """A value at one position of the dim; None if it differs there in another way."""
        if value not in self.known:
            self.known[value] = self._without_dim(value, depth)
        return self.known[value]

    def _without_dim(self, value: Value, depth: int) -> Value | None:
        type, node = tensor_of(value), value.node
        if type.rank == 0:
            return value
        slim = type.with_shape(type.shape[: self.dim] + type.shape[self.dim + 1 :])
        if value is self.choice:
            return splat(self.hit, slim, self.loc).results[0]
        if (element := splat_of(value)) is not None:
            return splat(element, slim, self.loc).results[0]
        if node is None or not depth:
            return None
        match node.op:
            case BroadcastInDim(broadcast_dimensions=dims):
                (inner,) = node.operands
                if self.dim in dims:  # repeated from size 1
                    before, at = tensor_of(inner), dims.index(self.dim)
                    if before.sizes[at] != 1:
                        return None
                    shape = before.shape[:at] + before.shape[at + 1 :]
                    inner = self.apply(Reshape(before.with_shape(shape)), inner)
                left = tuple([d - (d > self.dim) for d in dims if d != self.dim])
                return self.apply(BroadcastInDim(left, slim), inner)
            case Iota(iota_dimension=dim) if dim != self.dim:
                return self.apply(Iota(dim - (dim > self.dim), slim))
            case Select() if node.operands[0] is self.choice:
                return self.without_dim(node.operands[1 if self.hit else 2], depth - 1)
            case Convert():
                op: Op = Convert(slim)
            case Pointwise() | Compare() | Select():
                op = node.op
            case _:
                return None
        operands = [self.without_dim(one, depth - 1) for one in node.operands]
        found = [one for one in operands if one is not None]
        return self.apply(op, *found) if len(found) == len(operands) else None


RULES: dict[type[Op], tuple[NodeRule, ...]] = {Reduce: (sum_one_hot,)}
