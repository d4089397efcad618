"""Two arrays taken by turns, which JAX writes as the sum of two padded ones."""

from __future__ import annotations

from weft.ir.module import Node, Value, apply, tensor_of
from weft.ir.op import Op
from weft.ir.rebuild import NodeRule, Rewritten
from weft.ops.elementwise.pointwise import Add, Or
from weft.ops.shape import Reshape
from weft.ops.slicing import Concatenate, Pad, Slice
from weft.optimize.simplification.splats import is_number, splat


def interleaved(node: Node) -> Rewritten:
    """pad(x, between) + pad(y, before and between) -> reshape(concatenate(x, y)), along a new dim.

    Of zeros in every other place: `associative_scan` has two such sums at each of its steps.
    """
    pads = [value.node for value in node.operands]
    if not all(p is not None and isinstance(p.op, Pad) and not p.attrs for p in pads):
        return None
    for first, second in (pads, pads[::-1]):
        assert first is not None and second is not None
        dim = _turns(first, second)
        if dim is not None:
            return _by_turns(node, first, second, dim)
    return None


def _turns(first: Node, second: Node) -> int | None:
    """The dim along which two pads fill even and odd places with zeros."""
    one, other = first.op, second.op
    assert isinstance(one, Pad) and isinstance(other, Pad)
    dims = [d for d, n in enumerate(one.interior_padding) if n]
    if len(dims) != 1 or one.interior_padding != other.interior_padding:
        return None
    (dim,) = dims
    count, rest = (tensor_of(n.operands[0]).sizes[dim] for n in (first, second))
    ends = [
        (one.interior_padding[dim], one.edge_padding_low[dim], other.edge_padding_low[dim]),
        (one.edge_padding_high[dim], other.edge_padding_high[dim]),
    ]
    shared = [(p[d] for d in range(len(p)) if d != dim) for p in _edges(one) + _edges(other)]
    if any(map(any, shared)) or rest < 1 or (count - rest, *ends) not in _TURNS:
        return None
    zeros = [is_number(n.operands[1], 0, negative=False) for n in (first, second)]
    return dim if all(zeros) else None


# One more of the first, or as many: interior and low edges, high edges.
_TURNS = ((0, (1, 0, 1), (1, 0)), (1, (1, 0, 1), (0, 1)))


def _edges(op: Pad) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return op.edge_padding_low, op.edge_padding_high


def _by_turns(node: Node, first: Node, second: Node, dim: int) -> Node:
    loc, out = node.loc, tensor_of(node.results[0])
    x, y = first.operands[0], second.operands[0]
    count, rest = (tensor_of(v).sizes[dim] for v in (x, y))
    if rest < count:
        none = (0,) * out.rank
        high = tuple([int(d == dim) for d in range(out.rank)])
        y = apply(Pad(none, high, none), y, second.operands[1], loc=loc).results[0]
    parts = [_spread(_plus_zero(node, value), dim, node) for value in (x, y)]
    joined = apply(Concatenate(dim + 1), *parts, loc=loc).results[0]
    sizes = (*out.sizes[:dim], 2 * count, *out.sizes[dim + 1 :])
    whole = apply(Reshape(out.with_shape(sizes)), joined, loc=loc)
    if rest == count:
        return whole
    ones = (1,) * out.rank
    return apply(Slice((0,) * out.rank, out.sizes, ones), whole.results[0], loc=loc)


def _plus_zero(node: Node, value: Value) -> Value:
    """The sum with the other's zero, which loses the sign of -0.0 only."""
    type = tensor_of(value)
    if not (type.dtype.is_float or type.dtype.is_complex):
        return value
    zero = splat(0, type, node.loc).results[0]
    return apply(node.op, value, zero, loc=node.loc).results[0]


def _spread(value: Value, dim: int, node: Node) -> Value:
    """A value with a new dim of size 1 after a dim."""
    type = tensor_of(value)
    sizes = (*type.sizes[: dim + 1], 1, *type.sizes[dim + 1 :])
    return apply(Reshape(type.with_shape(sizes)), value, loc=node.loc).results[0]


RULES: dict[type[Op], tuple[NodeRule, ...]] = {Add: (interleaved,), Or: (interleaved,)}
