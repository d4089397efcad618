"""One op while it is partitioned: its pieces of operands, and what is asked of its results."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.ir.module import Node, Region, Value
from weft.ir.op import Op, infer
from weft.ir.rule import Rule
from weft.ir.types import TensorType, Type, Types
from weft.mesh import Mesh
from weft.mesh.algebra import Axes, DimAxes
from weft.ops.combiners import identity
from weft.ops.distributed.sharding import ShardyConstant
from weft.ops.shape import BroadcastInDim, Constant
from weft.partition.builder import Builder
from weft.partition.context import Context
from weft.partition.piece import Partial, Piece, local_type
from weft.partition.strategy.factors import FactorAxes


@dataclass
class NodeSite:
    """A node, the axes chosen for its factors, and its operands as these ask for them."""

    context: Context
    node: Node
    rule: Rule
    chosen: FactorAxes
    splits: tuple[DimAxes, ...]  # of the results
    partial: Partial | None  # of the results
    operands: list[Piece] = field(default_factory=list)

    @property
    def builder(self) -> Builder:
        """Where nodes are emitted."""
        return self.context.builder

    @property
    def mesh(self) -> Mesh:
        """The mesh."""
        return self.context.mesh

    def operand(self, n: int, split: DimAxes) -> Piece:
        """An operand in another split."""
        return self.context.fetch(self.node.operands[n], split)

    def local_types(self) -> Types:
        """The local types of the results."""
        return tuple(
            local_type(t, s, self.mesh) if isinstance(t, TensorType) else t
            for t, s in zip(self.node.types, self.splits, strict=True)
        )

    def mask(self, n: int, dims: tuple[int, ...]) -> None:
        """Replace the padding of an operand by what does not count in the reduction."""
        placed = self.operands[n]
        combine = next(f.combine for f in self.rule.factors if f.role == "reduction" and f.combine)
        value = self.builder.masked(placed, dims, identity(combine, placed.type.dtype))
        self.operands[n] = placed.moved(value, placed.split, placed.partial)

    def plain(self) -> tuple[Piece, ...]:
        """The op itself on the pieces."""
        values = tuple(p.value for p in self.operands)
        types = tuple(v.type for v in values)
        op = self.node.op.local(types, self.local_types())
        regions = self.context.regions(self.node)
        return self.placed(*self.add(op, values, regions))

    def add(
        self, op: Op, values: tuple[Value, ...], regions: tuple[Region, ...] = ()
    ) -> tuple[Value, ...]:
        """The node of an op on local values, with the attributes of the global one."""
        types = infer(op, tuple(v.type for v in values), tuple(r.body for r in regions))
        made = Node(op, values, types, regions, self.node.attrs, self.node.loc)
        return self.builder.add(made)

    def placed(self, *values: Value) -> tuple[Piece, ...]:
        """Local results as the pieces that the choice of axes makes of the global ones."""
        return tuple(
            Piece(v, t, s, self.partial if isinstance(t, TensorType) else None)  # type: ignore[arg-type]
            for v, t, s in zip(values, self.node.types, self.splits, strict=True)
        )

    def zeros(self) -> tuple[Piece, ...]:
        """Results that have no elements worth computing."""
        types = [tensor(t) for t in self.local_types()]
        return self.placed(*[self.builder.splat(0, t) for t in types])

    def start(self, axes: Axes, size: int) -> Value:
        """Where the device's piece begins along a dim whose pieces have that size, in i32."""
        return self.builder.scaled(self.builder.index(axes), size)


def tensor(type: Type) -> TensorType:
    """A type that is known to be a tensor's."""
    assert isinstance(type, TensorType)
    return type


def is_all(value: Value, number: object) -> bool:
    """Whether every element of a value is known to be that number."""
    node = value.node
    while node is not None and isinstance(node.op, BroadcastInDim):
        node = node.operands[0].node
    if node is None or not isinstance(node.op, Constant | ShardyConstant):
        return False
    return bool((node.op.value.elements == number).all())
