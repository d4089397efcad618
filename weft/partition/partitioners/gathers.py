"""Gathers: an indexed split dim is read by masked local look-ups.

Along such a dim every device looks up the indices in its own shard and gives zeros for the rest, so
the results are partial sums over the axes that split the dim.
"""

from __future__ import annotations

from weft.ir.module import Node, Value
from weft.ir.rule import Rule
from weft.ir.types import DType, TensorType
from weft.mesh.algebra import Axes, total_size
from weft.ops.combiners import in_dtype
from weft.ops.elementwise.pointwise import And, Compare, Select
from weft.ops.index import Gather, Windows, gather_windows
from weft.ops.shape import BroadcastInDim
from weft.partition.partitioners.indices import (
    clamped,
    converted,
    counting,
    index_vectors,
    parts,
    shifted,
)
from weft.partition.partitioners.indices import without_vector as flat
from weft.partition.piece import Partial, Piece
from weft.partition.site import NodeSite, tensor
from weft.partition.strategy.choose import unreduced_axes
from weft.partition.strategy.factors import plain_factors
from weft.records import dataclass


def gather_factors(node: Node, rule: Rule) -> frozenset[int]:
    """Batch and window dims; and indexed dims, if the element type has an additive identity."""
    op = node.op
    assert isinstance(op, Gather)
    pointed = gather_windows(op.dimension_numbers).start_map
    free = set(plain_factors(node, rule))
    if has_zero(tensor(node.types[0]).dtype):
        for dim, factors in enumerate(rule.operands[0]):
            factor = rule.factors[factors[0]]
            if factor.role == "reduction" and dim in pointed and factor.size > 1:
                free.add(factors[0])
    return frozenset(free)


def has_zero(dtype: DType) -> bool:
    """Whether an element type has an additive identity."""
    # Powers of two alone: it has neither zeros nor signs.
    return dtype.name != "f8E8M0FNU"


def gather(site: NodeSite) -> tuple[Piece, ...]:
    """The windows in each shard; zeros for those of other shards."""
    op, (operand, indices) = site.node.op, site.operands
    assert isinstance(op, Gather)
    local = op.local((operand.value.type, indices.value.type), site.local_types())
    if indices.value.type is not indices.type:  # padding may break the sortedness of indices
        local = local.replace(indices_are_sorted=False)
    axes = unreduced_axes(site.rule, site.chosen)
    if not axes:
        return site.result_pieces(*site.add(local, (operand.value, indices.value)))
    lookup = _Lookup(site, gather_windows(op.dimension_numbers), op.slice_sizes)
    places, inside = lookup.run()
    (rows,) = site.add(local, (operand.value, places))
    out = tensor(rows.type)
    batch = tuple(lookup.windows.batch(out.rank))
    mask = inside
    if tensor(inside.type).shape != out.shape:
        mask = site.builder.emit(
            BroadcastInDim(batch, out.with_dtype(tensor(inside.type).dtype)), inside
        )
    # A select, not a product with the mask: NaN and infinity times 0 are NaN.
    masked = site.builder.emit(Select(), mask, rows, site.builder.splat(0, out))
    partial = Partial(axes, in_dtype("add", out.dtype))
    return (Piece(masked, tensor(site.node.types[0]), site.splits[0], partial),)


@dataclass(frozen=True, slots=True)
class _Lookup:
    """Local indices into a shard, and the mask of those inside it."""

    site: NodeSite
    windows: Windows
    sizes: tuple[int, ...]

    def run(self) -> tuple[Value, Value]:
        """Indices relative to the shard's offset, and whether they are inside."""
        operand, indices = self.site.operands
        builder, vector = self.site.builder, self.windows.vector
        dtype = counting(operand.type.sizes)
        relative, inside = [], None
        pairs = zip(self.windows.start_map, parts(builder, indices.value, vector), strict=True)
        for dim, part in pairs:
            # Out-of-bounds indices are clamped to the global tensor, as in StableHLO.
            part = clamped(builder, part, 0, operand.type.sizes[dim] - self.sizes[dim])
            # Relative indices are negative before a device's shard: unsigned or narrow indices
            # would wrap around into it.
            part = converted(builder, part, dtype)
            if self.is_cut(dim):
                part, is_here = self.cut(dim, part)
                inside = is_here if inside is None else builder.emit(And(), inside, is_here)
            relative.append(part)
        assert inside is not None
        return index_vectors(builder, relative, vector), inside

    def is_cut(self, dim: int) -> bool:
        """Whether an indexed dim is split."""
        (factor,) = self.site.rule.operands[0][dim]
        return self.site.rule.factors[factor].role == "reduction" and bool(self.axes(dim))

    def axes(self, dim: int) -> Axes:
        """The axes that split a dim of the operand."""
        return self.site.operands[0].split[dim]

    def cut(self, dim: int, part: Value) -> tuple[Value, Value]:
        """Indices into a dim relative to the shard's offset, and the mask of those inside."""
        builder, axes = self.site.builder, self.axes(dim)
        room = self.site.operands[0].type.sizes[dim]
        # Rounded up: all shards are equally long, and the last ones are padded.
        piece = -(-room // total_size(axes, self.site.mesh))
        moved = shifted(builder, part, self.site.start(axes, piece))
        place = flat(builder, moved, self.windows.vector)
        type: TensorType = tensor(place.type)
        low = builder.emit(Compare("GE", "SIGNED"), place, builder.splat(0, type))
        high = builder.emit(Compare("LT", "SIGNED"), place, builder.splat(piece, type))
        return moved, builder.emit(And(), low, high)
