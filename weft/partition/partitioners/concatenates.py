"""Concatenation along a split dim: every device gets the parts of its own shard."""

from __future__ import annotations

from collections.abc import Iterator

from weft.ir.module import Node
from weft.ir.rule import Rule, RuleBuilder
from weft.mesh import Mesh
from weft.mesh.algebra import DimAxes, total_size
from weft.ops.slicing import Concatenate
from weft.partition.partitioners.exchange import DimRanges, ranges
from weft.partition.partitioners.halo import HaloPart, assemble_parts, exchanged, parts_of
from weft.partition.partitioners.views import empty
from weft.partition.piece import Piece, local_type
from weft.partition.site import NodeSite, tensor
from weft.partition.strategy.factors import FactorAxes, split_by_factors


def concatenate_rules(node: Node, splits: tuple[DimAxes, ...]) -> tuple[Rule, ...]:
    """The concatenated dim is one factor; an operand that is replicated along it may stay so."""
    op = node.op
    assert isinstance(op, Concatenate)
    types = [tensor(t) for t in node.operand_types]
    out = tensor(node.types[0])
    builder = RuleBuilder(tuple(types), (out,))
    for dim, size in enumerate(out.bounds):
        if dim != op.dimension:
            builder.factor([dim] * len(types), [dim], size)
            continue
        is_split = [bool(split[dim]) for split in splits]
        builder.factor([dim if s else None for s in is_split], [dim], size, "permutation")
    return (builder.build(),)


def _wanted(node: Node, count: int) -> Iterator[DimRanges]:
    """For each operand its ranges in each shard of the result."""
    op = node.op
    assert isinstance(op, Concatenate)
    total = tensor(node.types[0]).sizes[op.dimension]
    piece, offset = -(-total // count), 0
    for type in node.operand_types:
        size = tensor(type).sizes[op.dimension]
        starts = tuple(t * piece - offset for t in range(count))
        yield ranges(starts, piece, size)
        offset += size


def concatenate_sent(node: Node, rule: Rule, by_factor: FactorAxes, mesh: Mesh) -> float:
    """The bytes sent for the ranges of the result's shards."""
    op = node.op
    assert isinstance(op, Concatenate)
    splits = [split_by_factors(by_factor, dims, rule, mesh) for dims in rule.operands]
    (made,) = [split_by_factors(by_factor, dims, rule, mesh) for dims in rule.results]
    if made is None or not made[op.dimension]:
        return 0.0
    total, axes = 0.0, made[op.dimension]
    for wanted, type, split in zip(
        _wanted(node, total_size(axes, mesh)), node.operand_types, splits, strict=True
    ):
        if split is not None and split[op.dimension]:
            local = local_type(tensor(type), split, mesh)
            total += exchanged(local, op.dimension, wanted).bytes
    return total


def concatenate(site: NodeSite) -> tuple[Piece, ...]:
    """The ranges of all operands in order, each overwriting the tail of the one before."""
    op = site.node.op
    assert isinstance(op, Concatenate)
    axes, dim = site.splits[0][op.dimension], op.dimension
    if not axes:
        return site.plain()
    if empty(site):
        return site.zeros()
    parts: list[HaloPart] = []
    wanted = _wanted(site.node, total_size(axes, site.mesh))
    for placed, each in zip(site.operands, wanted, strict=True):
        is_split = bool(placed.split[dim])
        parts += parts_of(site.builder, placed.value, dim, axes, each, is_split=is_split)
    return site.result_pieces(
        assemble_parts(site.builder, parts, dim, axes, tensor(site.local_types()[0]))
    )
