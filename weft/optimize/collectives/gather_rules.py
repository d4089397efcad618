"""Rules on all_gather, all_to_all and permutes: chains become one, fewer bytes are sent."""

from __future__ import annotations

from weft.ir.location import fuse
from weft.ir.module import Node, Region, Value, apply, tensor_of
from weft.ir.op import Op
from weft.ir.rebuild import Rewritten
from weft.ir.types import DTYPES
from weft.mesh.algebra import Axes, total_size
from weft.mesh.cuts import disjoint, shared_end
from weft.ops.distributed.collective import AllGather, AllToAll
from weft.ops.distributed.local import AllSlice, PermuteAlongAxes
from weft.ops.elementwise.convert import Convert
from weft.ops.reduce import Reduce
from weft.ops.shape import BroadcastInDim
from weft.ops.slicing import Slice
from weft.optimize.collectives.facts import Facts, collective_axes, defining_node
from weft.optimize.collectives.group_rules import zeros
from weft.optimize.collectives.normal_form import CollectiveMaker
from weft.optimize.collectives.slice_rules import split_of


def _start(node: Node, facts: Facts, *others: Node) -> tuple[Axes, CollectiveMaker] | None:
    groups = collective_axes(node)
    if groups is None:
        return None
    loc = fuse(node.loc, *(other.loc for other in others))
    return groups.axes, CollectiveMaker(facts, groups.mesh, facts.mesh(groups), loc)


def gather_of_gather(node: Node, facts: Facts) -> Rewritten:
    """all_gather(all_gather(x)) -> one of both axes, when along one dim and without other uses."""
    inner = defining_node(node.operands[0], AllGather)
    if inner is None or not facts.once(inner.results[0]):
        return None
    outer, first = _start(node, facts, inner), _start(inner, facts)
    if outer is None or first is None or outer[1].mesh != first[1].mesh:
        return None
    assert isinstance(node.op, AllGather) and isinstance(inner.op, AllGather)
    dim = node.op.all_gather_dim
    if dim != inner.op.all_gather_dim or not disjoint(outer[0], first[0]):
        return None
    # The outer gather joins blocks of the inner one: its axes are the major ones.
    return (outer[1].gather(inner.operands[0], dim, outer[0] + first[0]),)


def gather_of_slice(node: Node, facts: Facts) -> Rewritten:
    """all_gather(all_slice(x)) -> x, when x is uniform along the axes; some axes may remain."""
    inner = defining_node(node.operands[0], AllSlice)
    found = _start(node, facts, inner) if inner is not None else None
    if inner is None or found is None:
        return None
    axes, maker = found
    groups = collective_axes(inner)
    if groups is None or facts.mesh(groups) != maker.mesh:
        return None
    assert isinstance(node.op, AllGather)
    (x,), dim, split = inner.operands, node.op.all_gather_dim, split_of(inner.op)
    # A gather undoes the minor axes of a split, hence the common suffix.
    undone, gathered, kept = shared_end(axes, split[dim], maker.mesh)
    if not undone or not facts.varying.is_equal(x, maker.groups(undone)):
        return None
    left = tuple(kept if d == dim else own for d, own in enumerate(split))
    return (maker.gather(maker.slice(x, left), dim, gathered),)


def gather_of_equal(node: Node, facts: Facts) -> Rewritten:
    """all_gather(x) -> x tiled, when it is uniform along the axes."""
    found = _start(node, facts)
    if found is None:
        return None
    axes, maker = found
    if not facts.varying.is_equal(node.operands[0], maker.groups(axes)):
        return None
    assert isinstance(node.op, AllGather)
    count = total_size(axes, maker.mesh)
    return (maker.tiled(node.operands[0], node.op.all_gather_dim, count),)


def gather_of_copies(node: Node, facts: Facts) -> Rewritten:
    """all_gather(broadcast(x)) -> broadcast(all_gather(x)), when along a dim that x has."""
    inner = defining_node(node.operands[0], BroadcastInDim)
    start = _start(node, facts) if inner is not None else None
    if inner is None or start is None:
        return None
    assert isinstance(node.op, AllGather) and isinstance(inner.op, BroadcastInDim)
    (x,), dim, places = inner.operands, node.op.all_gather_dim, inner.op.broadcast_dimensions
    if dim not in places or tensor_of(x).nbytes >= inner.op.out.nbytes:
        return None
    own = places.index(dim)
    # A dim of size 1 that the broadcast repeats is not split: there is nothing of x to gather.
    if tensor_of(x).sizes[own] != inner.op.out.sizes[dim]:
        return None
    axes, maker = start
    whole = maker.gather(x, own, axes)
    return apply(BroadcastInDim(places, tensor_of(node.results[0])), whole, loc=inner.loc)


# Bytes sent


def moved_convert(node: Node, facts: Facts) -> Rewritten:
    """collective(convert(x)) -> convert(collective(x)), when x has the narrower elements."""
    inner = defining_node(node.operands[0], Convert)
    if inner is None or len(node.operands) != 1 or collective_axes(node) is None:
        return None
    (x,) = inner.operands
    if tensor_of(x).dtype.bits >= tensor_of(inner.results[0]).dtype.bits or not _has_zero(
        x, node.op
    ):
        return None
    out = tensor_of(node.results[0])
    op = node.op
    if isinstance(op, AllGather):
        op = op.replace(outs=(out.with_dtype(tensor_of(x).dtype),))
    return apply(Convert(out), facts.make(op, x, loc=node.loc), loc=inner.loc)


def _has_zero(value: Value, op: Op) -> bool:
    """Whether the zeros that an op fills in convert to zeros of the other type."""
    # f8E8M0FNU has no zero, so a device without a source would get another number.
    makes = isinstance(op, PermuteAlongAxes) and -1 in op.sources
    return not makes or tensor_of(value).dtype is not DTYPES["f8E8M0FNU"]


def convert_of_moved(node: Node, facts: Facts) -> Rewritten:
    """convert(collective(x)) -> collective(convert(x)), when narrower and without other uses."""
    inner = defining_node(node.operands[0], AllGather, AllToAll, PermuteAlongAxes)
    if inner is None or collective_axes(inner) is None or not facts.once(inner.results[0]):
        return None
    out, (x,) = tensor_of(node.results[0]), inner.operands
    if out.dtype.bits >= tensor_of(x).dtype.bits:
        return None
    if not _has_zero(node.results[0], inner.op):
        return None
    narrow = facts.make(Convert(tensor_of(x).with_dtype(out.dtype)), x, loc=node.loc)
    op: Op = inner.op
    if isinstance(op, AllGather):
        op = op.replace(outs=(out,))
    return apply(op, narrow, loc=inner.loc)


def part_of_gather(node: Node, facts: Facts) -> Rewritten:
    """slice(all_gather(x)) -> all_gather(slice(x)), when other dims are sliced; also for reduce."""
    inner = defining_node(node.operands[0], AllGather)
    if inner is None or collective_axes(inner) is None or not facts.once(inner.results[0]):
        return None
    assert isinstance(inner.op, AllGather)
    dim, (x,), out = inner.op.all_gather_dim, inner.operands, tensor_of(node.results[0])
    smaller: tuple[Op, tuple[Value, ...], tuple[Region, ...], int] | None = None
    match node.op:
        case Slice():
            smaller = _cut(node.op, x, dim, tensor_of(inner.results[0]).sizes[dim])
        case Reduce(dimensions=dims) if dim not in dims and len(node.operands) == 2:
            smaller = _folded(node, inner, x, facts)
    if smaller is None or out.nbytes >= tensor_of(inner.results[0]).nbytes:
        return None
    op, operands, regions, at = smaller
    small = facts.make(op, *operands, regions=regions, loc=node.loc)
    return apply(inner.op.replace(all_gather_dim=at, outs=(out,)), small, loc=inner.loc)


def _cut(
    op: Slice, x: Value, dim: int, whole: int
) -> tuple[Op, tuple[Value, ...], tuple[Region, ...], int] | None:
    """The slice of a shard that keeps the gathered dim."""
    if (op.start_indices[dim], op.limit_indices[dim], op.strides[dim]) != (0, whole, 1):
        return None
    limits = list(op.limit_indices)
    limits[dim] = tensor_of(x).sizes[dim]
    return op.replace(limit_indices=tuple(limits)), (x,), (), dim


def _folded(
    node: Node, inner: Node, x: Value, facts: Facts
) -> tuple[Op, tuple[Value, ...], tuple[Region, ...], int] | None:
    """The reduction of a shard, over dims that are not gathered."""
    assert isinstance(node.op, Reduce) and isinstance(inner.op, AllGather)
    groups, init = collective_axes(inner), node.operands[1]
    # Each device would start from its own initial value otherwise.
    if groups is None or not facts.varying.is_equal(init, groups):
        return None
    dims, dim = node.op.dimensions, inner.op.all_gather_dim
    out = tensor_of(node.results[0])
    kept = tuple(s for d, s in enumerate(tensor_of(x).sizes) if d not in dims)
    op = node.op.replace(outs=(out.with_shape(kept),))
    return op, (x, init), node.regions, dim - sum(d < dim for d in dims)


# Exchanges and permutes


def exchange_back(node: Node, facts: Facts) -> Rewritten:
    """all_to_all(all_to_all(x)) -> x, when the second undoes the first."""
    inner = defining_node(node.operands[0], AllToAll)
    if inner is None:
        return None
    assert isinstance(node.op, AllToAll) and isinstance(inner.op, AllToAll)
    undone = node.op.replace(
        split_dimension=node.op.concat_dimension, concat_dimension=node.op.split_dimension
    )
    return inner.operands if undone is inner.op else None


def permute_of_equal(node: Node, facts: Facts) -> Rewritten:
    """permute(x) -> x, when all send to themselves, or x is uniform and all receive."""
    op = node.op
    assert isinstance(op, PermuteAlongAxes)
    if op.sources == tuple(range(len(op.sources))):
        return node.operands
    if max(op.sources) < 0:
        return tuple([zeros(t, node).results[0] for t in node.types])
    if min(op.sources) >= 0 and all(facts.varying.is_equal(v, op.over) for v in node.operands):
        return node.operands
    return None


def permute_of_permute(node: Node, facts: Facts) -> Rewritten:
    """permute(permute(x)) -> one permute(x), when both are along the same axes."""
    inner = defining_node(node.operands[0], PermuteAlongAxes)
    if inner is None or len(node.operands) != 1:
        return None
    assert isinstance(node.op, PermuteAlongAxes) and isinstance(inner.op, PermuteAlongAxes)
    if node.op.axes != inner.op.axes:
        return None
    first = inner.op.sources
    # The source of the source; a device that the first permute left out has sent zeros.
    sources = tuple(first[s] if s >= 0 else -1 for s in node.op.sources)
    made = PermuteAlongAxes(node.op.axes, sources)
    return apply(made, *inner.operands, loc=fuse(node.loc, inner.loc))


GATHER_RULES = (gather_of_slice, gather_of_equal, gather_of_gather, gather_of_copies, moved_convert)
EXCHANGE_RULES = (exchange_back, moved_convert)
PERMUTE_RULES = (permute_of_equal, permute_of_permute, moved_convert)
