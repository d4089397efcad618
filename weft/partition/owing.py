"""Values that owe a sum: how they come to owe it, and the linear ops that leave it to be made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.ir.module import Node
from weft.ir.types import TensorType
from weft.ops.convert import Convert
from weft.ops.pointwise import Add, Multiply
from weft.ops.shape import Transpose
from weft.partition.builder import Builder
from weft.partition.placed import Axes, Owing, Placed, Split, local_type, split_of

if TYPE_CHECKING:
    from weft.partition.localize import Localizer

_LINEAR = frozenset((Add, Convert, Multiply, Transpose))


def owed_by(placed: Placed) -> Axes:
    """The axes that a value is owed over."""
    return placed.owing.axes if placed.owing else ()


def still_owed(placed: Placed, owed: Axes) -> Axes:
    """What of the axes is owed already."""
    return owed if owed == owed_by(placed) else ()


def made_owing(builder: Builder, placed: Placed, owed: Axes) -> Placed:
    """The value owed over axes: one device along them has it, the others zeros."""
    if not owed or placed.owing is not None:
        return placed
    chosen = builder.only_first(placed.value, owed, 0)
    return placed.moved(chosen, placed.split, Owing(owed, "add"))


def keeps_owing(localizer: Localizer, node: Node) -> bool:
    """Whether a linear op of values that owe a sum is to owe it, too; it is then computed so."""
    if type(node.op) not in _LINEAR:
        return False
    (result,) = node.results
    sharding = localizer.program.sharding(result)
    if sharding is None or not sharding.unreduced or not isinstance(result.type, TensorType):
        return False
    owed = Owing(sharding.unreduced, "add")
    owes = [localizer.first(value).owing == owed for value in node.operands]
    if not any(owes) or (isinstance(node.op, Multiply) and all(owes)):
        return False
    if isinstance(node.op, Add):
        owes = [True] * len(owes)  # one that owes nothing is added once
    split = split_of(sharding, result.type.rank)
    operands = [
        localizer.fetch(value, _source(node, split), owed.axes if owing else ())
        for value, owing in zip(node.operands, owes, strict=True)
    ]
    type_ = local_type(result.type, split, localizer.mesh)
    op = node.op.local(tuple(p.value.type for p in operands), (type_,))
    made = Node(op, tuple(p.value for p in operands), (type_,), (), node.attrs, node.loc)
    (value,) = localizer.builder.add(made)
    localizer.define(result, Placed(value, result.type, split, owed), localizer.wanted(result))
    return True


def _source(node: Node, split: Split) -> Split:
    """The split of an operand that gives a result this one."""
    if not isinstance(node.op, Transpose):
        return split
    order = node.op.permutation
    return tuple([split[order.index(dim)] for dim in range(len(order))])
