"""One op being partitioned: its local operands, and the requested splits of its results."""

from __future__ import annotations

from dataclasses import field

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
from weft.records import dataclass


@dataclass
class NodeSite:
    """A node, the axes of its factors, and its operands in the implied splits."""

    context: Context
    node: Node
    rule: Rule
    chosen: FactorAxes
    splits: tuple[DimAxes, ...]  # of the results
    partial: Partial | None  # of the results
    operands: list[Piece] = field(default_factory=list)

    @property
    def builder(self) -> Builder:
        """The builder that nodes are emitted to."""
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
        """Mask the padding of an operand by the reduction's identity."""
        placed = self.operands[n]
        combine = next(f.combine for f in self.rule.factors if f.role == "reduction" and f.combine)
        value = self.builder.masked(placed, dims, identity(combine, placed.type.dtype))
        self.operands[n] = placed.moved(value, placed.split, placed.partial)

    def plain(self) -> tuple[Piece, ...]:
        """The op itself on local shards."""
        values = tuple(p.value for p in self.operands)
        types = tuple(v.type for v in values)
        op = self.node.op.local(types, self.local_types())
        regions = self.context.regions(self.node)
        return self.result_pieces(*self.add(op, values, regions))

    def add(
        self, op: Op, values: tuple[Value, ...], regions: tuple[Region, ...] = ()
    ) -> tuple[Value, ...]:
        """The node of an op on local values, with the attributes of the global one."""
        types = infer(op, tuple(v.type for v in values), tuple(r.body for r in regions))
        made = Node(op, values, types, regions, self.node.attrs, self.node.loc)
        return self.builder.add(made)

    def result_pieces(self, *values: Value) -> tuple[Piece, ...]:
        """Local results as pieces of the global ones, by the chosen axes."""
        return tuple(
            Piece(v, t, s, self.partial if isinstance(t, TensorType) else None)  # type: ignore[arg-type]
            for v, t, s in zip(values, self.node.types, self.splits, strict=True)
        )

    def zeros(self) -> tuple[Piece, ...]:
        """Zero results, for tensors without elements."""
        types = [tensor(t) for t in self.local_types()]
        return self.result_pieces(*[self.builder.splat(0, t) for t in types])

    def start(self, axes: Axes, size: int) -> Value:
        """The offset of the device's shard along a dim of that shard size, in i32."""
        return self.builder.scaled(self.builder.index(axes), size)


def tensor(type: Type) -> TensorType:
    """The type, checked to be a tensor's."""
    assert isinstance(type, TensorType)
    return type


def is_all(value: Value, number: object) -> bool:
    """Whether a value is a splat of that number."""
    node = value.node
    while node is not None and isinstance(node.op, BroadcastInDim):
        node = node.operands[0].node
    if node is None or not isinstance(node.op, Constant | ShardyConstant):
        return False
    return bool((node.op.value.elements == number).all())
