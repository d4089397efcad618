"""Rules on all_slice: a device slices its own shard as early as possible."""

from __future__ import annotations

from weft.ir.location import fuse
from weft.ir.module import Node, Value, tensor_of
from weft.ir.rebuild import Rewritten
from weft.ir.types import TensorType
from weft.mesh import Mesh
from weft.mesh.algebra import Axes, DimAxes, total_size
from weft.mesh.axes import named
from weft.mesh.cuts import cut_by, disjoint, inside, shared_start, without
from weft.ops.combiners import COMBINERS
from weft.ops.distributed.collective import AllGather, AllReduce, ReduceScatter
from weft.ops.distributed.local import AllSlice
from weft.ops.shape import BroadcastInDim, Transpose
from weft.optimize.collectives.facts import (
    Facts,
    collective_axes,
    defining_node,
    keeps_dtype,
    plain_combiner,
)
from weft.optimize.collectives.normal_form import CollectiveMaker


def split_of(op: object) -> DimAxes:
    """The axes of each dim of an all_slice."""
    assert isinstance(op, AllSlice)
    return tuple([dim.axes for dim in op.pieces.dims])


def _start(node: Node, facts: Facts, *others: Node) -> tuple[DimAxes, CollectiveMaker]:
    op = node.op
    assert isinstance(op, AllSlice)
    mesh = named(op.pieces.mesh, facts.module.meshes)
    loc = fuse(node.loc, *(other.loc for other in others))
    return split_of(op), CollectiveMaker(facts, op.pieces.mesh, mesh, loc)


def _same_mesh(node: Node, maker: CollectiveMaker) -> bool:
    groups = collective_axes(node)
    return groups is not None and maker.facts.mesh(groups) == maker.mesh


def slice_of_slice(node: Node, facts: Facts) -> Rewritten:
    """all_slice(all_slice(x)) -> one all_slice(x), when they split along different axes."""
    inner = defining_node(node.operands[0], AllSlice)
    if inner is None:
        return None
    split, maker = _start(node, facts, inner)
    first = split_of(inner.op)
    if not _same_mesh(inner, maker) or not disjoint(_flat(split), _flat(first)):
        return None
    both = tuple(a + b for a, b in zip(first, split, strict=True))
    return (maker.slice(inner.operands[0], both),)


def slice_of_gather(node: Node, facts: Facts) -> Rewritten:
    """all_slice(all_gather(x)) -> x, all_slice(x), all_to_all(x) or a smaller gather of a shard.

    If a collective remains, this slice must be the only use of the gather.
    """
    inner = defining_node(node.operands[0], AllGather)
    if inner is None:
        return None
    split, maker = _start(node, facts, inner)
    if not _same_mesh(inner, maker):
        return None
    assert isinstance(inner.op, AllGather)
    dim, (x,), groups = inner.op.all_gather_dim, inner.operands, collective_axes(inner)
    assert groups is not None
    _, gathered, rest = shared_start(groups.axes, split[dim], maker.mesh)
    others = tuple(() if d == dim else axes for d, axes in enumerate(split))
    if not gathered:
        left = tuple(rest if d == dim else axes for d, axes in enumerate(split))
        return (maker.slice(x, left),)
    if not _only_this(inner.results[0], node, facts):
        return None
    facts.dropped(inner)
    # Slices of other dims commute with the gather, on which they then act first.
    if not rest and disjoint(_flat(others), gathered):
        return (maker.gather(maker.slice(x, others), dim, gathered),)
    moved = [d for d, axes in enumerate(others) if axes]
    if not rest and len(moved) == 1 and others[moved[0]] == gathered:
        return (maker.exchange(x, moved[0], dim, gathered),)
    return None


def slice_of_reduce(node: Node, facts: Facts) -> Rewritten:
    """all_slice(all_reduce(x)) -> reduce_scatter(x), when only slices read the sum.

    Axes that are not reduced over are sliced first, those that are become reduce_scatters, and the
    remaining ones are reduced last, on the shard.
    """
    inner = defining_node(node.operands[0], AllReduce)
    if inner is None or not _few_slices(inner.results[0], facts):
        return None
    split, maker = _start(node, facts, inner)
    reduction, groups = plain_combiner(inner), collective_axes(inner)
    if groups is None or not _same_mesh(inner, maker) or reduction not in COMBINERS:
        return None
    if inner.operand_types != inner.types:
        return None
    order = _ordered(split, groups.axes, maker.mesh)
    first, scattered, last = zip(*order, strict=True)
    if not any(first) and not any(scattered):
        return None
    left = without(groups.axes, _flat(scattered), maker.mesh)
    if left is None or not disjoint(_flat(first), groups.axes):
        return None
    facts.dropped(inner)
    value = maker.slice(inner.operands[0], first)
    # The scatter over most devices first: it leaves the least for the others to send.
    for dim, axes in sorted(
        enumerate(scattered), key=lambda item: -total_size(item[1], maker.mesh)
    ):
        value = maker.scatter(value, dim, axes, reduction)
    return (maker.slice(maker.reduce(value, left, reduction), last),)


def _ordered(split: DimAxes, reduced: Axes, mesh: Mesh) -> list[tuple[Axes, Axes, Axes]]:
    """For each dim, the axes to slice along before, to scatter along, and to slice along after."""
    order = []
    for axes in split:
        parts = cut_by(axes, reduced, mesh)
        begin = 0
        while begin < len(parts) and disjoint((parts[begin],), reduced):
            begin += 1
        end = begin
        while end < len(parts) and inside(parts[end], reduced):
            end += 1
        # In the order of the split, major axes first: what lies behind the scattered run is sliced
        # last.
        order.append((parts[:begin], parts[begin:end], parts[end:]))
    return order


def slice_of_scatter(node: Node, facts: Facts) -> Rewritten:
    """all_slice(reduce_scatter(x)) -> reduce_scatter(all_slice(x)), when along other axes and dims.

    Fewer bytes are sent; this slice must be the only use of the scattered sum.
    """
    inner = defining_node(node.operands[0], ReduceScatter)
    if inner is None or not _only_this(inner.results[0], node, facts):
        return None
    split, maker = _start(node, facts, inner)
    reduction, groups = plain_combiner(inner), collective_axes(inner)
    if groups is None or not _same_mesh(inner, maker) or reduction not in COMBINERS:
        return None
    assert isinstance(inner.op, ReduceScatter)
    dim, (x,) = inner.op.scatter_dimension, inner.operands
    if split[dim] or not disjoint(_flat(split), groups.axes) or not keeps_dtype(inner):
        return None
    return (maker.scatter(maker.slice(x, split), dim, groups.axes, reduction),)


def slice_of_elementwise(node: Node, facts: Facts) -> Rewritten:
    """all_slice(f(x, y)) -> f(all_slice(x), all_slice(y)), when it alone reads an elementwise f."""
    inner = node.operands[0].node
    if inner is None or inner.attrs or inner.regions or len(inner.results) != 1:
        return None
    if not inner.op.elementwise or not inner.operands:
        return None
    if not _only_this(inner.results[0], node, facts):
        return None
    split, maker = _start(node, facts, inner)
    shape = tensor_of(inner.results[0]).shape
    if not _is_spread(inner.operands, shape):
        return None
    facts.dropped(inner)
    cut = [maker.slice(v, split) if tensor_of(v).shape == shape else v for v in inner.operands]
    out = tensor_of(node.results[0])
    op = inner.op.local(tuple([v.type for v in cut]), (out,))
    return (facts.make(op, *cut, loc=inner.loc),)


def _is_spread(operands: tuple[Value, ...], shape: tuple[object, ...]) -> bool:
    """Whether each operand has that shape or is a scalar."""
    types = [v.type for v in operands]
    return all(isinstance(t, TensorType) and t.shape in (shape, ()) for t in types)


def slice_of_transpose(node: Node, facts: Facts) -> Rewritten:
    """all_slice(transpose(x)) -> transpose(all_slice(x)), when it alone reads the transpose."""
    inner = defining_node(node.operands[0], Transpose)
    if inner is None or not _only_this(inner.results[0], node, facts):
        return None
    split, maker = _start(node, facts, inner)
    assert isinstance(inner.op, Transpose)
    facts.dropped(inner)
    order = inner.op.permutation
    before = tuple(split[order.index(d)] for d in range(len(order)))
    return (facts.make(inner.op, maker.slice(inner.operands[0], before), loc=inner.loc),)


def slice_of_broadcast(node: Node, facts: Facts) -> Rewritten:
    """all_slice(broadcast(x)) -> broadcast(all_slice(x)), when it alone reads the broadcast."""
    inner = defining_node(node.operands[0], BroadcastInDim)
    if inner is None or not _only_this(inner.results[0], node, facts):
        return None
    split, maker = _start(node, facts, inner)
    assert isinstance(inner.op, BroadcastInDim)
    (x,), places = inner.operands, inner.op.broadcast_dimensions
    wide = inner.op.out.sizes
    before = tuple(
        split[place] if size == wide[place] else ()
        for size, place in zip(tensor_of(x).sizes, places, strict=True)
    )
    facts.dropped(inner)
    made = BroadcastInDim(places, tensor_of(node.results[0]))
    return (facts.make(made, maker.slice(x, before), loc=inner.loc),)


def _flat(split: DimAxes) -> Axes:
    return tuple([axis for axes in split for axis in axes])


def _only_this(value: Value, node: Node, facts: Facts) -> bool:
    """Whether all uses of a value are slices like this one."""
    found = facts.readers.get(value)
    return not found or all(op is node.op for op in found)


def _few_slices(value: Value, facts: Facts) -> bool:
    """Whether all uses of a value are slices, few enough that scattering costs no more."""
    readers = facts.readers.get(value)
    if not readers:
        return True
    # One all_reduce costs as much as two reduce_scatters.
    return len(set(readers)) <= 2 and all(isinstance(op, AllSlice) for op in readers)


RULES = (
    slice_of_slice,
    slice_of_gather,
    slice_of_reduce,
    slice_of_scatter,
    slice_of_elementwise,
    slice_of_transpose,
    slice_of_broadcast,
)
