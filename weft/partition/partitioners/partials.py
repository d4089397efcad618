"""Reductions: local ones, and reductions of partial results without a matching collective."""

from __future__ import annotations

import numpy as np

from weft.ir.module import Node, Value
from weft.ir.op import Body
from weft.ir.rule import Rule, RuleBuilder
from weft.ir.types import I32, TensorType
from weft.mesh.algebra import Axes, total_size
from weft.ops.combiners import IDEMPOTENT, combine_of, identity
from weft.ops.distributed.collective import AllGather
from weft.ops.distributed.local import CHANNEL
from weft.ops.elementwise.pointwise import Add, Select
from weft.ops.index import Gather, GatherDims
from weft.ops.reduce import Reduce
from weft.ops.shape import Reshape
from weft.ops.sort import TopK
from weft.partition.builder import Builder
from weft.partition.partitioners.indices import converted
from weft.partition.piece import Piece, local_type
from weft.partition.site import NodeSite, is_all, tensor
from weft.partition.strategy.choose import unreduced_axes
from weft.partition.strategy.factors import plain_factors
from weft.partition.structural.regions import copied_region


def folded_factors(node: Node, rule: Rule) -> frozenset[int]:
    """All factors but whole ones: reduced dims may be split for any combiner."""
    folded = {n for n, f in enumerate(rule.factors) if f.role == "reduction" and f.size > 1}
    return plain_factors(node, rule) | folded


def stacked(builder: Builder, value: Value, axes: Axes, dim: int) -> Value:
    """The values of all devices along axes, concatenated along a dim."""
    type = tensor(value.type)
    count = total_size(axes, builder.mesh)
    sizes = tuple(s * count if d == dim else s for d, s in enumerate(type.sizes))
    whole = type.with_shape(sizes)
    if not all(sizes):
        return builder.splat(0, whole)
    op = AllGather(dim, builder.groups(axes), (whole,), CHANNEL, use_global_device_ids=True)
    return builder.emit(op, value)


# Arbitrary regions: body and initial values form a monoid (StableHLO, reduce), so the initial value
# is the identity: it may be combined more than once, and may replace padding.


def fold_partials(site: NodeSite) -> tuple[Piece, ...]:
    """A local reduction, then a reduction of all devices' partial results on every device."""
    op, count = site.node.op, len(site.node.operands) // 2
    assert isinstance(op, Reduce)
    builder, axes = site.builder, unreduced_axes(site.rule, site.chosen)
    inits = [p.value for p in site.operands[count:]]
    nothing = [_nothing(site, n, init) for n, init in enumerate(inits)]
    inputs = [_without_padding(site, n, op, nothing[n]) for n in range(count)]
    regions = site.context.regions(site.node)
    partial = site.add(op.replace(outs=site.local_types()), (*inputs, *nothing), regions)
    rows = []
    for value in partial:
        type = tensor(value.type)
        row = builder.emit(Reshape(type.with_shape((1, *type.sizes))), value)
        rows.append(stacked(builder, row, axes, 0))
    again = Reduce((0,), site.local_types())
    copies = tuple(copied_region(region) for region in regions)
    return site.result_pieces(*site.add(again, (*rows, *inits), copies))


def _nothing(site: NodeSite, n: int, init: Value) -> Value:
    """The identity of the reduction: of a plain op, else the initial value."""
    body = site.node.bodies[0]
    type = tensor(body.results[n])
    combine = combine_of(Body((), (type,), body.combiners[n : n + 1]))
    if combine is None:
        return converted(site.builder, init, type.dtype)
    return site.builder.splat(identity(combine, type.dtype), type)


def _without_padding(site: NodeSite, n: int, op: Reduce, nothing: Value) -> Value:
    placed = site.operands[n]
    value = placed.value
    local = local_type(placed.type, placed.split, site.mesh)
    for dim in op.dimensions:
        axes, size = placed.split[dim], placed.type.sizes[dim]
        if axes and size % total_size(axes, site.mesh):
            value = converted(site.builder, value, tensor(nothing.type).dtype)
            inside = site.builder.inside(local, dim, axes, size)
            filled = site.builder.spread(nothing, local)
            value = site.builder.emit(Select(), inside, value, filled)
    return value


# Top-k


def top_k_rule(node: Node) -> Rule:
    """Batch dims pass; the searched dim is reduced to the k largest."""
    op, operand = node.op, tensor(node.operands[0].type)
    assert isinstance(op, TopK)
    builder = RuleBuilder((operand,), node.types)
    last = operand.rank - 1
    for dim, size in enumerate(operand.sizes[:-1]):
        builder.factor([dim], [dim, dim], size)
    return builder.factor([last], [None, None], operand.sizes[-1], "reduction").build()


def top_k_factors(node: Node, rule: Rule) -> frozenset[int]:
    """The searched dim may be split if k is positive."""
    return folded_factors(node, rule) if node.op.k else plain_factors(node, rule)  # type: ignore[attr-defined]


def top_k(site: NodeSite) -> tuple[Piece, ...]:
    """The top k of each shard, then the top k of those; ties go to the first."""
    op, (operand,) = site.node.op, site.operands
    assert isinstance(op, TopK)
    axes = unreduced_axes(site.rule, site.chosen)
    if not axes:
        return site.plain()
    builder, last = site.builder, operand.type.rank - 1
    piece = tensor(operand.value.type).sizes[-1]
    filled = builder.masked(operand, (last,), _least(operand.type))
    values, places = site.add(TopK(min(op.k, piece)), (filled,))
    start = builder.spread(site.start(axes, piece), tensor(places.type))
    places = builder.emit(Add(), places, start)
    # Shards are stacked in the order of their offsets, so that ties still go to the least index.
    values, places = (stacked(builder, v, axes, last) for v in (values, places))
    best, at = site.add(TopK(op.k), (values,))
    return site.result_pieces(best, _taken_along(builder, places, at))


def _least(type: TensorType) -> object:
    """The last element in the order of top_k; padding comes after all equal elements."""
    if type.dtype.is_float:
        # top_k orders floats totally: -NaN comes after -inf.
        lowest = np.copysign(np.asarray(np.nan), -1).astype(type.dtype.numpy)
        if np.isnan(lowest.astype(np.float64)):
            return lowest
    return identity("max", type.dtype)


def _taken_along(builder: Builder, values: Value, at: Value) -> Value:
    """The elements of the last dim at these indices."""
    type, places = tensor(values.type), tensor(at.type)
    batch, last = tuple(range(type.rank - 1)), type.rank - 1
    if not all(places.sizes):
        return builder.splat(0, places.with_dtype(I32))
    dims = GatherDims((), (last,), batch, batch, (last,), places.rank)
    return builder.emit(Gather(dims, (1,) * type.rank), values, at)


def reduce(site: NodeSite) -> tuple[Piece, ...]:
    """Each device folds its piece; the first one along the axes starts from the initial value."""
    count = len(site.node.operands) // 2
    combine = next((f.combine for f in site.rule.factors if f.role == "reduction"), None)
    if combine is None and unreduced_axes(site.rule, site.chosen):
        return fold_partials(site)
    if site.partial is not None and combine is not None and combine not in IDEMPOTENT:
        for n in range(count, 2 * count):
            init = site.operands[n]
            nothing = identity(combine, init.type.dtype)
            if not is_all(site.node.operands[n], nothing):
                value = site.builder.only_first(init.value, site.partial.axes, nothing)
                site.operands[n] = init.moved(value, init.split)
    return site.plain()
