"""The ragged dot: every device computes the group sizes within its shard.

Ragged rows (or contracting dims) may be split, since groups get shorter on a shard. Groups may be
split too: an extra group of zeros skips the rows before a device's own groups.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from weft.ir.module import Node, Value
from weft.ir.rule import Rule, RuleFactor
from weft.ir.types import TensorType
from weft.mesh.algebra import Axes, total_size
from weft.ops.combiners import in_dtype
from weft.ops.elementwise.pointwise import Clamp, Compare, Select, Subtract
from weft.ops.ragged import RaggedDims, RaggedDot
from weft.ops.reduce import Reduce
from weft.ops.shape import BroadcastInDim, Iota
from weft.ops.slicing import Concatenate, Pad, Slice
from weft.partition.builder import Builder
from weft.partition.partitioners.indices import converted, counting, shifted
from weft.partition.piece import Piece
from weft.partition.site import NodeSite, tensor
from weft.partition.structural.stand_in import add_region
from weft.records import dataclass


def ragged_rule(node: Node) -> Rule:
    """The op's own rule, with the ragged dim and the groups splittable."""
    op = node.op
    assert isinstance(op, RaggedDot)
    rule = op.rule(*(tensor(v.type) for v in node.operands))
    dims, combine = op.ragged_dot_dimension_numbers, in_dtype("add", op.out.dtype)
    factors = list(rule.factors)
    for number, is_summed in (
        (rule.operands[0][dims.ragged][0], dims.mode == "contracting"),
        (rule.operands[2][-1][0], dims.mode == "free"),
    ):
        size = factors[number].size
        if is_summed:
            factors[number] = RuleFactor(size, "reduction", combine)
        elif number == rule.operands[0][dims.ragged][0] or dims.mode == "contracting":
            factors[number] = replace(factors[number], role="pass")
    return Rule(tuple(factors), rule.operands, rule.results)


def ragged_dot(site: NodeSite) -> tuple[Piece, ...]:
    """The dot of a shard, with local group sizes."""
    op = site.node.op
    assert isinstance(op, RaggedDot)
    dims = op.ragged_dot_dimension_numbers
    rows = site.operands[0].split[dims.ragged]
    groups = site.operands[2].split[-1]
    if dims.mode == "batch" or not (rows or groups):
        return site.plain()
    lhs, rhs = (p.value for p in site.operands[:2])
    counted = _Groups(site, dims, rows, groups)
    ends, begins = counted.ranges()
    sizes = site.builder.emit(Subtract(), ends, begins)
    if not groups:
        return _dot(site, op, (lhs, rhs, counted.narrow(sizes)))
    before = _first(site.builder, begins)
    sizes = site.builder.emit(Concatenate(tensor(sizes.type).rank - 1), before, sizes)
    if dims.mode == "free":
        rhs = _after_zeros(site.builder, rhs, dims.rhs_group_dimensions[0])
    (placed,) = _dot(site, op, (lhs, rhs, counted.narrow(sizes)), more=dims.mode != "free")
    if dims.mode == "contracting":
        return (placed,)
    # Rows before the own groups are masked: times zeros, NaN and infinity would stay NaN.
    value = counted.only_after(placed.value, before)
    return (placed.moved(value, placed.split, placed.partial),)


def _dot(
    site: NodeSite, op: RaggedDot, values: tuple[Value, Value, Value], more: bool = False
) -> tuple[Piece, ...]:
    """The op on local values; the result of an extra group is dropped."""
    out = tensor(site.local_types()[0])
    if not more:
        return site.result_pieces(*site.add(op.replace(out=out), values))
    longer = out.with_shape((out.sizes[0] + 1, *out.sizes[1:]))
    (made,) = site.add(op.replace(out=longer), values)
    starts = tuple(int(d == 0) for d in range(out.rank))
    return site.result_pieces(site.builder.emit(Slice(starts, longer.sizes, (1,) * out.rank), made))


def _first(builder: Builder, values: Value) -> Value:
    """The first element along the last dim, with the dim kept."""
    type = tensor(values.type)
    ends = (*type.sizes[:-1], 1)
    return builder.emit(Slice((0,) * type.rank, ends, (1,) * type.rank), values)


def _after_zeros(builder: Builder, value: Value, dim: int) -> Value:
    """A tensor with one row of zeros before it."""
    type = tensor(value.type)
    none = (0,) * type.rank
    low = tuple(int(d == dim) for d in range(type.rank))
    zero = builder.splat(0, type.with_shape(()))
    return builder.emit(Pad(low, none, none), value, zero)


@dataclass(frozen=True, slots=True)
class _Groups:
    """The bounds of groups on a shard."""

    site: NodeSite
    dims: RaggedDims
    rows: Axes  # axes of the ragged dim
    groups: Axes  # axes of the groups

    def ranges(self) -> tuple[Value, Value]:
        """The ends and starts of the device's groups in its shard."""
        builder, site = self.site.builder, self.site
        split = (*site.operands[2].split[:-1], ())
        group_sizes = site.operand(2, split)
        lhs = site.operands[0]
        whole = lhs.type.sizes
        dtype = counting(whole, group_sizes.type.dtype.bits)
        sizes = converted(builder, group_sizes.value, dtype)
        ends = _running_sums(builder, sizes)
        bounds = [ends, builder.emit(Subtract(), ends, sizes)]
        if self.rows:
            piece = -(-whole[self.dims.ragged] // total_size(self.rows, site.mesh))
            start = site.start(self.rows, piece)
            bounds = [self.within(shifted(builder, v, start), piece) for v in bounds]
        if self.groups:
            type = group_sizes.type.with_dtype(dtype)
            wanted = (*split[:-1], self.groups)
            bounds = [builder.reshard(Piece(v, type, split), wanted).value for v in bounds]
        return bounds[0], bounds[1]

    def within(self, places: Value, piece: int) -> Value:
        """Positions clamped to the shard."""
        builder, scalar = self.site.builder, tensor(places.type).with_shape(())
        return builder.emit(Clamp(), builder.splat(0, scalar), places, builder.splat(piece, scalar))

    def narrow(self, sizes: Value) -> Value:
        """Sizes in their original type."""
        return converted(self.site.builder, sizes, self.site.operands[2].type.dtype)

    def only_after(self, value: Value, before: Value) -> Value:
        """The rows from a position on; zeros before it."""
        builder, out = self.site.builder, tensor(value.type)
        row = len(self.dims.prefix(self.site.operands[0].type.rank))
        place = tensor(before.type)
        counted = out.with_dtype(place.dtype)
        # `before` has the dims ahead of the rows, or none, and one of size 1.
        at = tuple(range(row)) if place.rank > 1 else ()
        first = builder.emit(BroadcastInDim((*at, row), counted), before)
        rows = builder.emit(Iota(row, counted))
        own = builder.emit(Compare("GE", "SIGNED"), rows, first)
        return builder.emit(Select(), own, value, builder.splat(0, out))


def _running_sums(builder: Builder, sizes: Value) -> Value:
    """Prefix sums along the last dim."""
    type: TensorType = tensor(sizes.type)
    square = type.with_shape((*type.sizes, type.sizes[-1]))
    last = type.rank
    kept = tuple(range(last - 1))
    spread = builder.emit(BroadcastInDim((*kept, last), square), sizes)
    rows, columns = (builder.emit(Iota(d, square)) for d in (last - 1, last))
    # Quadratic in the groups, of which there are few, instead of a window as long as the dim.
    up_to = builder.emit(Compare("LE", "SIGNED"), columns, rows)
    taken = builder.emit(Select(), up_to, spread, builder.splat(0, square))
    zero = builder.constant(np.zeros((), type.dtype.numpy))
    region = add_region(type, builder.loc)
    return builder.emit(Reduce((last,), (type,)), taken, zero, regions=(region,))
