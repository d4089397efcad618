"""Scatters: updates are applied by the owner of their element, or combined as partial results.

If the input is split along an indexed dim, every device applies the updates in its shard; the
others are out of bounds, and dropped. If the updates are split, every device scatters its own: the
first one into the input, the others into the identity, and the results are partial.
"""

from __future__ import annotations

from weft.ir.module import Node, Value
from weft.ir.rule import Rule
from weft.ir.types import TensorType
from weft.mesh.algebra import total_size
from weft.ops.combiners import BY_OP, identity
from weft.ops.elementwise.pointwise import Select
from weft.ops.scatter import Scatter
from weft.partition.partitioners.indices import (
    clamped,
    converted,
    counting,
    index_vectors,
    parts,
    shifted,
)
from weft.partition.piece import Partial, Piece, local_type
from weft.partition.site import NodeSite, is_all, tensor
from weft.partition.strategy.choose import unreduced_axes


def scatter_factors(node: Node, rule: Rule) -> frozenset[int]:
    """Batch dims, full window dims, updates, and inserted window dims."""
    op = node.op
    assert isinstance(op, Scatter)
    updates = {f for factors in rule.operands[-1] for f in factors}
    pointed = {rule.operands[0][d][0] for d in op.windows.start_map}
    return frozenset(
        n
        for n, f in enumerate(rule.factors)
        if f.role == "reduction"
        or (f.role == "pass" and (not f.needs_offset or (n in pointed and n not in updates)))
    )


def scatter(site: NodeSite) -> tuple[Piece, ...]:
    """Each device's updates, scattered into its shard of the input."""
    op, count = site.node.op, len(site.node.operands) // 2
    assert isinstance(op, Scatter)
    if op.windows.start_map:
        site.operands[count] = _indices(site, op, site.operands[count])
    axes, partial = unreduced_axes(site.rule, site.chosen), site.partial
    if axes and partial is None:
        # The factor may be split only if the region is a known combiner: partial results are
        # combined by a collective of that op.
        combine = BY_OP[site.node.bodies[0].combiners[0]]
        partial = Partial(axes, combine)
        for n in range(count):
            nothing = identity(combine, site.operands[n].type.dtype)
            held, update = site.operands[n], site.operands[count + 1 + n]
            if not is_all(site.node.operands[n], nothing):
                # On all devices but the first the input is the identity: it must count once in the
                # sum.
                first = site.builder.only_first(held.value, axes, nothing)
                site.operands[n] = held.moved(first, held.split)
            # Padding of split updates would be applied: it becomes the identity instead.
            if not op.windows.start_map:  # no indices that could be out of bounds
                counted = op.windows.batch(update.type.rank)
                value = site.builder.masked(update, counted, nothing)
                site.operands[count + 1 + n] = update.moved(value, update.split)
    operands = tuple(p.value for p in site.operands)
    local = op.local(tuple(v.type for v in operands), site.local_types())
    if site.operands[count].value.type is not site.node.operands[count].type:
        # Out-of-bounds indices break the sortedness.
        local = local.replace(indices_are_sorted=False)
    results = site.add(local, operands, site.context.regions(site.node))
    rows = zip(results, site.node.types, site.splits, strict=True)
    return tuple(Piece(v, tensor(t), s, partial) for v, t, s in rows)


def _indices(site: NodeSite, op: Scatter, indices: Piece) -> Piece:
    """The indices relative to the input shard's offset; those of padding are out of bounds."""
    windows, held = op.windows, site.operands[0]
    builder = site.builder
    cut = [d for d in windows.start_map if held.split[d]]
    padded = _padded_rows(site, indices)
    if not cut and not padded:
        return indices
    dtype = counting(held.type.sizes)
    wide = dict(zip(windows.operand_dims(held.type.rank), windows.window, strict=True))
    relative = []
    for dim, part in zip(
        windows.start_map, parts(builder, indices.value, windows.vector), strict=True
    ):
        # Windows that are entirely outside are clamped to just outside, against overflow.
        # A window that begins up to its width before the shard may still reach into it.
        width = site.operands[-1].type.sizes[wide[dim]] if dim in wide else 1
        part = clamped(builder, part, -width, held.type.sizes[dim])
        part = converted(builder, part, dtype)
        if dim in cut:
            piece = -(-held.type.sizes[dim] // total_size(held.split[dim], site.mesh))
            part = shifted(builder, part, site.start(held.split[dim], piece))
        relative.append(part)
    value = _dropped(site, indices, index_vectors(builder, relative, windows.vector), padded)
    return indices.moved(value, indices.split)


def _padded_rows(site: NodeSite, indices: Piece) -> list[int]:
    """The padded update dims of the indices, unless the updates are masked."""
    if site.partial is not None:
        return []
    rows = site.rule.operands[len(site.node.operands) // 2]
    return [
        dim
        for dim, (factor,) in enumerate(rows)
        if site.rule.factors[factor].role == "reduction"
        and indices.type.sizes[dim] % total_size(indices.split[dim], site.mesh)
    ]


def _dropped(site: NodeSite, indices: Piece, value: Value, padded: list[int]) -> Value:
    """Indices of padding replaced by one that puts the whole window out of bounds."""
    local: TensorType = local_type(indices.type, indices.split, site.mesh)
    for dim in padded:
        inside = site.builder.inside(local, dim, indices.split[dim], indices.type.sizes[dim])
        # Beyond the largest dim is beyond every dim, whichever the index is for.
        nowhere = site.builder.splat(max(site.operands[0].type.sizes), tensor(value.type))
        value = site.builder.emit(Select(), inside, value, nowhere)
    return value
