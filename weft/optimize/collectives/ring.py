"""Rings: a product in steps, whose shards rotate along a ring of devices meanwhile."""

from __future__ import annotations

from dataclasses import field, replace

import numpy as np

from weft.ir.attrs import Attrs
from weft.ir.dense import Dense
from weft.ir.location import UNKNOWN, Location, fuse
from weft.ir.module import Node, Value, apply
from weft.ir.op import Op
from weft.ir.types import F32, DType, TensorType
from weft.mesh import MeshAxes
from weft.ops.contract import DotGeneral
from weft.ops.distributed.collective import AllGather, ReduceScatter
from weft.ops.distributed.local import AxisIndex, PermuteAlongAxes
from weft.ops.elementwise.convert import Convert
from weft.ops.elementwise.pointwise import Add, Multiply, Remainder
from weft.ops.shape import Constant
from weft.ops.slicing import DynamicSlice, DynamicUpdateSlice
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Ring:
    """The devices along axes, and the nodes of a product on their ring."""

    axes: MeshAxes
    count: int
    loc: Location = UNKNOWN
    nodes: list[Node] = field(default_factory=list)

    def at(self, loc: Location) -> Ring:
        """The same ring with a further source location."""
        return replace(self, loc=fuse(self.loc, loc), nodes=[])

    def started(self) -> Ring:
        """The same ring without nodes."""
        return replace(self, nodes=[])

    def add(self, op: Op, *operands: Value, attrs: Attrs = ()) -> Value:
        """Append a node."""
        self.nodes.append(apply(op, *operands, attrs=attrs, loc=self.loc))
        return self.nodes[-1].results[0]

    def number(self, value: int) -> Value:
        """A constant index."""
        return self.add(Constant(Dense(np.asarray(value, np.int32))))

    def own_index(self) -> Value:
        """The device's index in the ring."""
        return self.add(AxisIndex(self.axes))

    def index_on(self, own: Value, places: int) -> Value:
        """The index of the device `places` further on."""
        if places % self.count == 0:
            return own
        return self.add(
            Remainder(), self.add(Add(), own, self.number(places)), self.number(self.count)
        )

    def moved(self, value: Value, places: int) -> Value:
        """The value of the device `places` further on."""
        sources = tuple((n + places) % self.count for n in range(self.count))
        return self.add(PermuteAlongAxes(self.axes, sources), value)

    def starts(self, index: Value, size: int, dim: int, rank: int) -> list[Value]:
        """The start of the shard of that index, dim by dim."""
        begin = index if size == 1 else self.add(Multiply(), index, self.number(size))
        zero = self.number(0) if rank > 1 else begin
        return [begin if d == dim else zero for d in range(rank)]

    def piece(self, value: Value, index: Value, dim: int, size: int) -> Value:
        """The shard of that index of a value."""
        type = value.type
        assert isinstance(type, TensorType)
        sizes = tuple(size if d == dim else s for d, s in enumerate(type.sizes))
        return self.add(DynamicSlice(sizes), value, *self.starts(index, size, dim, type.rank))

    def put(self, whole: Value, piece: Value, index: Value, dim: int) -> Value:
        """A value with the shard of that index overwritten."""
        type = piece.type
        assert isinstance(type, TensorType)
        starts = self.starts(index, type.sizes[dim], dim, type.rank)
        return self.add(DynamicUpdateSlice(), whole, piece, *starts)

    def zeros(self, type: TensorType) -> Value:
        """A tensor of zeros."""
        zero = np.zeros((), type.dtype.numpy)
        return self.add(Constant(Dense(zero, type)))


@dataclass(frozen=True, slots=True)
class ProductDim:
    """A dim of one operand of a product, and its counterparts in the other operand and result."""

    other: int | None  # None if only this operand has it
    result: int | None  # None if it is contracted


def dim_of(
    dot: DotGeneral, operands: tuple[TensorType, TensorType], side: int, dim: int
) -> ProductDim:
    """The counterparts of a dim of an operand."""
    dims = dot.dot_dimension_numbers
    for position, pair in enumerate(dims.batch):
        if pair[side] == dim:
            return ProductDim(pair[1 - side], position)
    for pair in dims.contract:
        if pair[side] == dim:
            return ProductDim(pair[1 - side], None)
    # The result has the batch dims first, then the free dims of the left operand, then of the
    # right.
    batch, left = len(dims.batch), dims.lhs_free(operands[0].rank)
    if side == 0:
        return ProductDim(None, batch + left.index(dim))
    return ProductDim(None, batch + len(left) + dims.rhs_free(operands[1].rank).index(dim))


def gathered_product(
    ring: Ring, dot: Node, gather: Node, side: int, lhs: Value, rhs: Value
) -> None:
    """dot(all_gather(x), w), where `lhs` or `rhs` is x: each shard of x is used as it passes."""
    op, gather_op = dot.op, gather.op
    assert isinstance(op, DotGeneral) and isinstance(gather_op, AllGather)
    whole = _types(dot)
    place = dim_of(op, whole, side, gather_op.all_gather_dim)
    piece, other = (lhs, rhs) if side == 0 else (rhs, lhs)
    part = piece.type
    assert isinstance(part, TensorType)
    size = part.sizes[gather_op.all_gather_dim]
    part_type = _part_type(op.out, place.result, size)
    if place.result is None:
        part_type = part_type.with_dtype(_sum_type(op.out.dtype))
    own = ring.own_index()
    # Only a buffer: every element is overwritten by the product of some step.
    result = None if place.result is None else ring.zeros(op.out)
    for step in range(ring.count):
        # The send comes before the product that hides it; the last step needs no send.
        following = ring.moved(piece, 1) if step < ring.count - 1 else piece
        index = ring.index_on(own, step)
        cut = other if place.other is None else ring.piece(other, index, place.other, size)
        sides = (piece, cut) if side == 0 else (cut, piece)
        product = ring.add(op.replace(out=part_type), *sides, attrs=dot.attrs)
        if place.result is not None:
            assert result is not None
            result = ring.put(result, product, index, place.result)
        else:
            result = product if result is None else ring.add(Add(), result, product)
        piece = following
    assert result is not None
    if result.type is not op.out:
        ring.add(Convert(op.out), result)


def scattered_product(ring: Ring, dot: Node, scatter: Node, lhs: Value, rhs: Value) -> None:
    """reduce_scatter(dot(x, w)): partial sums rotate, and each device adds its term."""
    op, split = dot.op, scatter.op
    assert isinstance(op, DotGeneral) and isinstance(split, ReduceScatter)
    dim = split.scatter_dimension
    size = op.out.sizes[dim] // ring.count
    cuts = _dims_of_result(op, _types(dot), dim)
    part_type = _part_type(op.out, dim, size)
    own = ring.own_index()
    total: Value | None = None
    for step in range(ring.count):
        arriving = None if total is None else ring.moved(total, -1)
        # Backward, so that after the last step every device has the total of its own shard.
        index = ring.index_on(own, ring.count - 1 - step)
        sides = [
            value if at is None else ring.piece(value, index, at, size)
            for value, at in zip((lhs, rhs), cuts, strict=True)
        ]
        total = ring.add(op.replace(out=part_type), *sides, attrs=dot.attrs)
        if arriving is not None:
            total = ring.add(Add(), arriving, total)


def _types(dot: Node) -> tuple[TensorType, TensorType]:
    lhs, rhs = dot.operand_types
    assert isinstance(lhs, TensorType) and isinstance(rhs, TensorType)
    return lhs, rhs


def _dims_of_result(
    dot: DotGeneral, operands: tuple[TensorType, TensorType], dim: int
) -> tuple[int | None, int | None]:
    """The dim of each operand for a dim of the result."""
    dims: list[int | None] = [None, None]
    for side, type in enumerate(operands):
        for d in range(type.rank):
            if dim_of(dot, operands, side, d).result == dim:
                dims[side] = d
    return dims[0], dims[1]


def _part_type(out: TensorType, dim: int | None, size: int) -> TensorType:
    return out.with_shape(tuple(size if d == dim else s for d, s in enumerate(out.sizes)))


def _sum_type(dtype: DType) -> DType:
    """The accumulation type of partial products: 16 bits would round after every step."""
    return F32 if dtype.is_float and dtype.bits < F32.bits else dtype
