"""Concatenated slices, such as a roll: every device gets ranges of the sources directly.

A slice that only concatenations along its dim read is not partitioned on its own, since its shards
would be on other devices than those of its source; the concatenation takes a range of the source.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft.ir.module import Node, Region, Value, apply, walk
from weft.ir.op import Op, op
from weft.ir.rule import Rule, RuleBuilder
from weft.ir.types import Array, TensorType, Type, Types
from weft.ir.work import Work, moved
from weft.mesh import Mesh
from weft.mesh.algebra import DimAxes, total_size
from weft.ops.elementwise.pointwise import Select
from weft.ops.slicing import Concatenate, Slice
from weft.partition.context import Context
from weft.partition.partitioners.exchange import DimRanges, ranges
from weft.partition.partitioners.halo import exchanged, fetch, inside, slice_between
from weft.partition.partitioners.views import empty
from weft.partition.piece import Piece, local_type
from weft.partition.site import NodeSite, tensor
from weft.partition.strategy.factors import FactorAxes, split_by_factors
from weft.partition.structural.stand_in import stand_in


@op("weft.join")
class Join(Op):
    """Ranges of operands along a dim, concatenated."""

    dimension: int
    sources: tuple[int, ...]  # for each range the operand
    starts: tuple[int, ...]
    limits: tuple[int, ...]

    def infer(self, *operands: Type) -> Type:
        given = tensor(operands[0])
        total = sum(b - a for a, b in zip(self.starts, self.limits, strict=True))
        at = self.dimension
        return given.with_shape((*given.sizes[:at], total, *given.sizes[at + 1 :]))

    def rule(self, *operands: TensorType) -> Rule:
        return self.split_rule(operands, (True,) * len(operands))

    def split_rule(self, operands: tuple[TensorType, ...], is_split: tuple[bool, ...]) -> Rule:
        """The dim is one factor of the result and of those operands that are split along it."""
        out = tensor(self.infer(*operands))
        builder = RuleBuilder(operands, (out,))
        for dim, size in enumerate(out.bounds):
            if dim != self.dimension:
                builder.factor([dim] * len(operands), [dim], size)
                continue
            builder.factor([dim if s else None for s in is_split], [dim], size, "permutation")
        return builder.build()

    def reference(self, *operands: Array) -> Array:
        parts = [
            np.take(operands[n], range(a, b), self.dimension)
            for n, a, b in zip(self.sources, self.starts, self.limits, strict=True)
        ]
        return np.concatenate(parts, self.dimension)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(bytes=2 * moved(*results))

    def wanted(self, count: int) -> Iterator[tuple[int, int, DimRanges]]:
        """For each range its operand, its end in the result, and each device's part of it."""
        spans = list(zip(self.sources, self.starts, self.limits, strict=True))
        piece, end = -(-sum(b - a for _, a, b in spans) // count), 0
        for n, start, limit in spans:
            firsts = tuple(t * piece - end + start for t in range(count))
            end += limit - start
            yield n, end, ranges(firsts, piece, limit, low=start)


# Deferred slices


def fusible_slices_of(region: Region) -> set[Value]:
    """The slices along one dim that only concatenations along it, in the same region, read."""
    slices: dict[Value, int] = {}
    for node in region.nodes:
        if isinstance(node.op, Concatenate):
            for value in node.operands:
                if value.node is not None and cut_dim(value.node) == node.op.dimension:
                    slices[value] = node.op.dimension
    if not slices:
        return set()
    # A reader inside of a nested region needs the slice as a value of its own.
    inner = {value for node in region.nodes for r in node.regions for value in _read(r)}
    other = set(region.results) | inner
    for node in region.nodes:
        joins = node.op.dimension if isinstance(node.op, Concatenate) else None
        other |= {v for v in node.operands if v in slices and slices[v] != joins}
    return set(slices) - other


def _read(region: Region) -> Iterator[Value]:
    yield from region.results
    for node in walk(region):
        yield from node.operands
        for inner in node.regions:
            yield from inner.results


def cut_dim(node: Node) -> int | None:
    """The only sliced dim of a slice, if its stride is 1."""
    if not isinstance(node.op, Slice) or any(stride != 1 for stride in node.op.strides):
        return None
    given, made = tensor(node.operand_types[0]), tensor(node.types[0])
    dims = [d for d, (a, b) in enumerate(zip(given.sizes, made.sizes, strict=True)) if a != b]
    return dims[0] if len(dims) == 1 else None


def wait(context: Context, node: Node) -> None:
    """A slice: deferred to the concatenations that read it, if its dim is split."""
    (value,), (source,) = node.results, node.operands
    dim = cut_dim(node) if value in context.fusible_slices else None
    if dim is not None and context.requested_split(source)[dim]:
        context.deferred_slices.add(value)
    else:
        context.compute(node)


def concatenation(context: Context, node: Node) -> None:
    """A concatenation, of ranges if its operands are deferred slices."""
    op = node.op
    assert isinstance(op, Concatenate)
    if not any(v in context.deferred_slices for v in node.operands):
        context.compute(node)
        return
    operands: list[Value] = []
    spans: list[tuple[int, int, int]] = []
    for value in node.operands:
        source, start = value, 0
        if value in context.deferred_slices:
            assert value.node is not None and isinstance(value.node.op, Slice)
            source, start = value.node.operands[0], value.node.op.start_indices[op.dimension]
        if source not in operands:
            operands.append(source)
        size = tensor(value.type).sizes[op.dimension]
        spans.append((operands.index(source), start, start + size))
    sources, starts, limits = zip(*spans, strict=True)
    made = apply(Join(op.dimension, sources, starts, limits), *operands, loc=node.loc)
    stand_in(context, node, [made], made.results)


# Concatenation


def join_rules(node: Node, splits: tuple[DimAxes, ...]) -> tuple[Rule, ...]:
    """An operand that is replicated along the dim may stay so."""
    op = node.op
    assert isinstance(op, Join)
    is_split = tuple(bool(split[op.dimension]) for split in splits)
    return (op.split_rule(tuple(tensor(t) for t in node.operand_types), is_split),)


def join_sent(node: Node, rule: Rule, by_factor: FactorAxes, mesh: Mesh) -> float:
    """The bytes sent for the ranges of the result's shards."""
    op = node.op
    assert isinstance(op, Join)
    splits = [split_by_factors(by_factor, dims, rule, mesh) for dims in rule.operands]
    out = split_by_factors(by_factor, rule.results[0], rule, mesh)
    if out is None or not out[op.dimension]:
        return 0.0
    total = 0.0
    for n, _, wanted in op.wanted(total_size(out[op.dimension], mesh)):
        split = splits[n]
        if split is not None and split[op.dimension]:
            local = local_type(tensor(node.operand_types[n]), split, mesh)
            total += exchanged(local, op.dimension, wanted).bytes
    return total


def join(site: NodeSite) -> tuple[Piece, ...]:
    """Each device fetches its part of every range, and selects each element's range."""
    op, builder = site.node.op, site.builder
    assert isinstance(op, Join)
    dim, axes = op.dimension, site.splits[0][op.dimension]
    if empty(site):
        return site.zeros()
    if not axes:
        return site.result_pieces(_concatenate_ranges(site, op))
    result_type = tensor(site.local_types()[0])
    value, before = None, 0
    for n, end, wanted in op.wanted(total_size(axes, site.mesh)):
        placed = site.operands[n]
        is_split = bool(placed.split[dim])
        part = fetch(builder, placed.value, dim, axes, wanted, is_split=is_split)
        if value is None:
            value = part
        else:
            # Selected from the last range on: element k belongs to the first range that ends behind
            # it, and each range was fetched for the whole width.
            is_before = inside(
                builder, result_type, dim, site.start(axes, result_type.sizes[dim]), None, before
            )
            value = builder.emit(Select(), is_before, value, part)
        before = end
    assert value is not None
    return site.result_pieces(value)


def _concatenate_ranges(site: NodeSite, op: Join) -> Value:
    """The concatenation of ranges along an unsplit dim."""
    parts = [
        slice_between(site.builder, site.operands[n].value, op.dimension, a, b)
        for n, a, b in zip(op.sources, op.starts, op.limits, strict=True)
    ]
    if len(parts) == 1:
        return parts[0]
    return site.add(Concatenate(op.dimension), tuple(parts))[0]
