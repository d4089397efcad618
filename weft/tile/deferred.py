"""Work that a node defers to its readers: sums over devices, and broadcasts.

all_reduce(dot(x, y)) is one contraction with longer sums: where both operands vary along the axes
of the following collective, the per-device sums are not needed. Only for floats: the order of a
collective's sums is unspecified, and narrow floats are rounded once, as on one device. A broadcast
that only host functions read is deferred to them: numpy broadcasts by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from weft.executable.stack_dims import group_dims
from weft.ir.module import Node, Region, Value
from weft.ir.op import Op
from weft.ir.types import DType
from weft.ops.contract import Dot, DotGeneral
from weft.ops.distributed.collective import AllReduce, ReduceScatter
from weft.ops.distributed.local import VariadicReduceScatter
from weft.ops.shape import Broadcast, BroadcastInDim, Reshape, Transpose
from weft.tile.scope import Scope
from weft.varying.masks import union


class Functions(Protocol):
    """Properties of the functions that compute host nodes."""

    def adds(self, dtype: DType) -> bool:
        """Whether arrays of a type are added by one ufunc."""
        ...

    def repeats(self, op: Op, dtype: DType) -> bool:
        """Whether an op's function broadcasts operands by itself."""
        ...


DOTS = (DotGeneral, Dot)
BROADCASTS = (BroadcastInDim, Broadcast)


def uses_of(region: Region) -> dict[Value, list[Node]]:
    """The readers of each value; results and captures by regions count twice."""
    uses: dict[Value, list[Node]] = {}
    for node in region.nodes:
        for value in node.operands:
            uses.setdefault(value, []).append(node)
        for inner in node.regions:
            for value in (*inner.results, *uses_of(inner)):
                # Twice, so that a captured value never looks as if it had a single reader.
                uses.setdefault(value, []).extend((node, node))
    for value in region.results:
        uses.setdefault(value, []).extend(region.nodes[-1:] * 2)
    return uses


def summed_dims(
    node: Node, scope: Scope, uses: Mapping[Value, list[Node]], host: Functions
) -> tuple[int, list[Value]]:
    """The leading dims that a dot may sum over, and the values between it and its all_reduce."""
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
    if not _adds(current, host) or not _is_summed(chain[-1]):
        return 0, []
    dims = group_dims(current.op, scope.stack_dims, scope.world)
    if dims is None:
        return 0, []
    left, right = (union(m) for m in scope.of(node.operands))
    # Only dims along which both operands vary: summing over a dim that one of them is equal along
    # would multiply by its size.
    return left & right & scope.stack_dims.mask(dims), chain


def _adds(node: Node, host: Functions) -> bool:
    """Whether a node sums over devices along leading dims, some of which may be done already.

    It applies to all of its operands or to none: they keep their types, and have a ufunc.
    """
    dtypes = [getattr(v.type, "dtype", None) for v in (*node.operands, *node.results)]
    if any(d is None or not host.adds(d) for d in dtypes):
        return False
    if dtypes[: len(node.operands)] != dtypes[len(node.operands) :]:
        return False
    match node.op:
        case AllReduce() | ReduceScatter():
            names = node.regions[0].body.combiners
            return len(node.regions[0].nodes) == 1 and {*names} == {"stablehlo.add"}
        case VariadicReduceScatter():
            return node.op.reduction == "add"
    return False


def is_broadcast(node: Node) -> bool:
    """Whether a node is a broadcast."""
    return isinstance(node.op, BROADCASTS)


def spread_by_readers(
    node: Node, scope: Scope, uses: Mapping[Value, list[Node]], host: Functions
) -> bool:
    """Whether all readers of a broadcast broadcast by themselves."""
    (value,) = node.results
    readers = uses.get(value, [])
    if not readers or len(set(map(id, readers))) != len(readers):
        return False
    return all(_spreads(reader, value, scope, host) for reader in readers)


def _spreads(reader: Node, value: Value, scope: Scope, host: Functions) -> bool:
    """Whether a reader broadcasts by itself, and its other operand has the full shape."""
    if len(reader.operands) != 2 or reader.regions or reader.op.collective:
        return False
    (other,) = [v for v in reader.operands if v is not value] or [value]
    if other is value or other in scope.placed or other.type is not value.type:
        return False
    dtype = getattr(value.type, "dtype", None)
    return dtype is not None and host.repeats(reader.op, dtype)


def is_dot(node: Node) -> bool:
    """Whether a node is a contraction with operands of its result's type."""
    if not isinstance(node.op, DOTS):
        return False
    values = (*node.operands, *node.results)
    kinds = {str(getattr(v.type, "dtype", "")) for v in values}
    return len(kinds) == 1 and _is_summed(values[0])


def _is_summed(value: Value) -> bool:
    """Whether sums of a value's elements are rounded."""
    dtype = getattr(value.type, "dtype", None)
    return dtype is not None and (dtype.is_float or dtype.is_complex)
