"""What a node leaves to those that read it: sums over devices, and repeated elements.

all_reduce(dot(x, y)) is one product with longer sums: where both operands vary along the axes of
the collective that follows, nobody needs the devices' own sums. Only floats are summed so; the
order of a collective's sums is nobody's promise, and narrow ones are rounded once, as on one
device. And a broadcast that functions of numpy read is left to these: they repeat elements without
being told.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.ir.module import Node, Region, Value
from weft.ops.collective import AllReduce, ReduceScatter
from weft.ops.contract import Dot, DotGeneral
from weft.ops.local import ReduceScatterTogether
from weft.ops.pointwise import Add, Compare
from weft.ops.shape import Broadcast, BroadcastInDim, Reshape, Transpose
from weft.run.kernels_pointwise import is_native, ufunc_of
from weft.run.scope import Scope
from weft.varying.masks import union

DOTS = (DotGeneral, Dot)
BROADCASTS = (BroadcastInDim, Broadcast)


def uses_of(region: Region) -> dict[Value, list[Node]]:
    """Who reads each value of a region; its end, and a node whose regions read it, count twice."""
    found: dict[Value, list[Node]] = {}
    for node in region.nodes:
        for value in node.operands:
            found.setdefault(value, []).append(node)
        for inner in node.regions:
            for value in (*inner.results, *uses_of(inner)):
                found.setdefault(value, []).extend((node, node))
    for value in region.results:
        found.setdefault(value, []).extend(region.nodes[-1:] * 2)
    return found


def summed_dims(
    node: Node, scope: Scope, uses: Mapping[Value, list[Node]]
) -> tuple[int, list[Value]]:
    """The leading dims over which a dot may sum at once, and the values between it and its sum."""
    chain: list[Value] = []
    current = node
    while len(current.results) == 1:
        (value,) = current.results
        chain.append(value)
        readers = uses.get(value, [])
        if len(readers) != 1:
            return 0, []
        (current,) = readers
        if not isinstance(current.op, Reshape | Transpose):
            break
    if not _adds(current) or not _is_summed(chain[-1]):
        return 0, []
    dims = scope.group_dims(current)
    if dims is None:
        return 0, []
    left, right = (union(m) for m in scope.of(node.operands))
    return left & right & scope.layout.mask(dims), chain


def _adds(node: Node) -> bool:
    """Whether a node sums over devices along leading dims, of which some may be done already.

    It does for all of its operands or for none: they keep their types, and numpy adds them up.
    """
    dtypes = [getattr(v.type, "dtype", None) for v in (*node.operands, *node.results)]
    if any(d is None or ufunc_of(Add, d) is None for d in dtypes):
        return False
    if dtypes[: len(node.operands)] != dtypes[len(node.operands) :]:
        return False
    match node.op:
        case AllReduce() | ReduceScatter():
            names = node.regions[0].body.combiners
            return len(node.regions[0].nodes) == 1 and {*names} == {"stablehlo.add"}
        case ReduceScatterTogether():
            return node.op.reduction == "add"
    return False


def is_broadcast(node: Node) -> bool:
    """Whether a node repeats elements."""
    return isinstance(node.op, BROADCASTS)


def spread_by_readers(node: Node, scope: Scope, uses: Mapping[Value, list[Node]]) -> bool:
    """Whether all who read a broadcast are functions of numpy that repeat elements themselves."""
    (value,) = node.results
    readers = uses.get(value, [])
    if not readers or len(set(map(id, readers))) != len(readers):
        return False
    return all(_spreads(reader, value, scope) for reader in readers)


def _spreads(reader: Node, value: Value, scope: Scope) -> bool:
    """Whether a node is such a function, and its other operand has the full shape."""
    if len(reader.operands) != 2 or reader.regions or reader.op.collective:
        return False
    (other,) = [v for v in reader.operands if v is not value] or [value]
    if other is value or other in scope.placed or other.type is not value.type:
        return False
    dtype = getattr(value.type, "dtype", None)
    if dtype is None or not is_native(dtype) or dtype.is_complex:
        return False
    if isinstance(reader.op, Compare):
        return reader.op.compare_type != "TOTALORDER"
    return ufunc_of(type(reader.op), dtype) is not None


def is_dot(node: Node) -> bool:
    """Whether a node is a product of two operands of its own result's type."""
    if not isinstance(node.op, DOTS):
        return False
    values = (*node.operands, *node.results)
    kinds = {str(getattr(v.type, "dtype", "")) for v in values}
    return len(kinds) == 1 and _is_summed(values[0])


def _is_summed(value: Value) -> bool:
    """Whether a value holds numbers whose sums round."""
    dtype = getattr(value.type, "dtype", None)
    return dtype is not None and (dtype.is_float or dtype.is_complex)
