"""Rules on all_reduce and reduce_scatter: fewer of them, of fewer bytes, along fewer axes."""

from __future__ import annotations

import numpy as np

from weft.ir.location import fuse
from weft.ir.module import Node, Region, Value, apply, tensor_of
from weft.ir.rebuild import Rewritten
from weft.ir.rule import Combine
from weft.mesh.algebra import Axes, total_size
from weft.mesh.cuts import disjoint
from weft.ops.combiners import COMBINERS, IDEMPOTENT, combiner
from weft.ops.distributed.collective import AllGather, AllReduce, ReduceScatter
from weft.ops.elementwise.pointwise import Subtract
from weft.ops.shape import BroadcastInDim, Constant
from weft.ops.slicing import Pad
from weft.optimize.collectives.facts import (
    Facts,
    collective_axes,
    defining_node,
    keeps_dtype,
    plain_combiner,
)
from weft.optimize.collectives.normal_form import CollectiveMaker

Plain = tuple[Axes, Combine, CollectiveMaker]


def plain(node: Node, facts: Facts, *others: Node) -> Plain | None:
    """The axes of a reduction on one operand, its combining op, and a builder for its mesh."""
    groups = collective_axes(node)
    if groups is None:
        return None
    reduction = plain_combiner(node)
    if reduction not in COMBINERS or not keeps_dtype(node):
        return None
    loc = fuse(node.loc, *(other.loc for other in others))
    return groups.axes, reduction, CollectiveMaker(facts, groups.mesh, facts.mesh(groups), loc)


def reduce_of_equal(node: Node, facts: Facts) -> Rewritten:
    """all_reduce(x) -> x * n, when x is uniform along the axes, or some of them."""
    found = plain(node, facts)
    if found is None:
        return None
    axes, reduction, maker = found
    (x,) = node.operands
    equal, rest = facts.varying.split(x, maker.groups(axes))
    # Sums of n equal terms are x * n, maxima are x. `repeated` gives None where n is not exact in
    # the element type (257 in bf16), which would change the result.
    if not equal:
        return None
    value = maker.repeated(x, reduction, total_size(equal, maker.mesh))
    return None if value is None else (maker.reduce(value, rest, reduction),)


def scatter_of_equal(node: Node, facts: Facts) -> Rewritten:
    """reduce_scatter(x) -> all_slice(x) * n, when x is uniform along the axes."""
    found = plain(node, facts)
    if found is None:
        return None
    axes, reduction, maker = found
    (x,) = node.operands
    if not facts.varying.is_equal(x, maker.groups(axes)):
        return None
    assert isinstance(node.op, ReduceScatter)
    split = tuple(axes if d == node.op.scatter_dimension else () for d in range(tensor_of(x).rank))
    # Sliced first: only the shard is multiplied.
    value = maker.repeated(maker.slice(x, split), reduction, total_size(axes, maker.mesh))
    return None if value is None else (value,)


def reduce_of_reduce(node: Node, facts: Facts) -> Rewritten:
    """all_reduce(all_reduce(x)) -> one all_reduce(x), when alike and along different axes."""
    inner = defining_node(node.operands[0], AllReduce)
    found = None if inner is None else _both(node, inner, facts, inner)
    if inner is None or found is None:
        return None
    (axes, reduction, maker), (before, *_) = found
    return (maker.reduce(inner.operands[0], axes + before, reduction),)


def _both(node: Node, inner: Node, facts: Facts, *others: Node) -> tuple[Plain, Plain] | None:
    """A reduction and that of its operand, if they combine alike along disjoint axes."""
    outer, first = plain(node, facts, *others), plain(inner, facts)
    if outer is None or first is None or not facts.once(inner.results[0]):
        return None
    same = outer[1] == first[1] and outer[2].mesh == first[2].mesh
    return (outer, first) if same and disjoint(outer[0], first[0]) else None


def reduce_of_gather(node: Node, facts: Facts) -> Rewritten:
    """all_reduce(all_gather(x)) -> all_gather(all_reduce(x)), when along different axes."""
    inner = defining_node(node.operands[0], AllGather)
    found = plain(node, facts) if inner is not None else None
    if inner is None or found is None or not facts.once(inner.results[0]):
        return None
    axes, reduction, maker = found
    groups = collective_axes(inner)
    if groups is None or facts.mesh(groups) != maker.mesh or not disjoint(axes, groups.axes):
        return None
    assert isinstance(inner.op, AllGather)
    small = maker.reduce(inner.operands[0], axes, reduction)
    return apply(inner.op, small, loc=inner.loc)


def reduce_of_copies(node: Node, facts: Facts) -> Rewritten:
    """all_reduce(broadcast(x)) -> broadcast(all_reduce(x)), when smaller; also for zeros."""
    inner = node.operands[0].node
    if inner is None or inner.attrs or not isinstance(inner.op, BroadcastInDim | Pad):
        return None
    parts = plain(node, facts)
    (x, *rest) = inner.operands
    if parts is None or tensor_of(x).nbytes >= tensor_of(node.results[0]).nbytes:
        return None
    axes, reduction, maker = parts
    if rest and not _stays(rest[0], reduction, axes, maker):
        return None
    return apply(inner.op, maker.reduce(x, axes, reduction), *rest, loc=inner.loc)


def _stays(value: Value, reduction: Combine, axes: Axes, maker: CollectiveMaker) -> bool:
    """Whether combining a uniform scalar over devices gives the scalar itself."""
    if reduction in IDEMPOTENT:
        return maker.facts.varying.is_equal(value, maker.groups(axes))
    return reduction == "add" and is_zero(value)


def is_zero(value: Value) -> bool:
    """Whether a value is a constant of zeros."""
    node = value.node
    if node is None or not isinstance(node.op, Constant):
        return False
    return node.op.value.is_splat and not np.any(node.op.value.elements)


def scatter_of_scatter(node: Node, facts: Facts) -> Rewritten:
    """reduce_scatter(reduce_scatter(x)) -> one of both axes, when alike and along one dim."""
    inner = defining_node(node.operands[0], ReduceScatter)
    found = None if inner is None else _both(node, inner, facts, inner)
    if inner is None or found is None:
        return None
    (axes, reduction, maker), (before, *_) = found
    assert isinstance(node.op, ReduceScatter) and isinstance(inner.op, ReduceScatter)
    dim = node.op.scatter_dimension
    if dim != inner.op.scatter_dimension:
        return None
    # The inner scatter has split the dim first: its axes are the major ones.
    return (maker.scatter(inner.operands[0], dim, before + axes, reduction),)


def scatter_of_reduce(node: Node, facts: Facts) -> Rewritten:
    """reduce_scatter(all_reduce(x)) -> all_reduce(reduce_scatter(x)): the shard is smaller."""
    inner = defining_node(node.operands[0], AllReduce)
    found = None if inner is None else _both(node, inner, facts)
    if inner is None or found is None:
        return None
    outer, first = found
    assert isinstance(node.op, ReduceScatter)
    piece = outer[2].scatter(inner.operands[0], node.op.scatter_dimension, *outer[:2])
    return (first[2].reduce(piece, *first[:2]),)


# Users of sums


def sum_of_sums(node: Node, facts: Facts) -> Rewritten:
    """all_reduce(x) + all_reduce(y) -> all_reduce(x + y), when nothing else reads them."""
    left = defining_node(node.operands[0], AllReduce, ReduceScatter)
    right = left and defining_node(node.operands[1], AllReduce, ReduceScatter)
    if left is None or right is None or left.op is not right.op or left is right:
        return None
    if not all(facts.once(n.results[0]) for n in (left, right)):
        return None
    first, second = plain(left, facts, right), plain(right, facts)
    if first is None or second is None or first[1] != second[1]:
        return None
    if left.operand_types != right.operand_types:
        return None
    wanted = COMBINERS[first[1]]
    # A combiner commutes with itself, and a difference with sums; other pairs do not.
    if node.op is not wanted and not (isinstance(node.op, Subtract) and first[1] == "add"):
        return None
    together = facts.make(node.op, left.operands[0], right.operands[0], loc=node.loc)
    return apply(left.op, together, regions=(fresh(left),), loc=first[2].loc)


def fresh(node: Node) -> Region:
    """A copy of a reduction's region, for another reduction."""
    reduction = plain_combiner(node)
    assert reduction is not None
    return combiner(reduction, tensor_of(node.operands[0]))


def cut_of_sum(node: Node, facts: Facts) -> Rewritten:
    """slice(all_reduce(x)) -> all_reduce(slice(x)), when nothing else reads the sum."""
    x, *starts = node.operands
    inner = defining_node(x, AllReduce)
    if inner is None or not facts.once(inner.results[0]):
        return None
    found = plain(inner, facts)
    if found is None or tensor_of(node.results[0]).nbytes >= tensor_of(x).nbytes:
        return None
    axes, reduction, maker = found
    # Devices that cut at different places would sum elements that do not belong together.
    if not all(facts.varying.is_equal(start, maker.groups(axes)) for start in starts):
        return None
    cut = facts.make(node.op, inner.operands[0], *starts, loc=node.loc)
    return (maker.reduce(cut, axes, reduction),)


def fold_of_sum(node: Node, facts: Facts) -> Rewritten:
    """reduce(all_reduce(x)) -> all_reduce(reduce(x)), when alike and nothing else reads the sum."""
    if len(node.operands) != 2 or not keeps_dtype(node):
        return None
    x, init = node.operands
    inner = defining_node(x, AllReduce)
    if inner is None or not facts.once(inner.results[0]):
        return None
    parts = plain(inner, facts)
    if parts is None or plain_combiner(node) != parts[1]:
        return None
    if tensor_of(node.results[0]).nbytes >= tensor_of(x).nbytes:
        return None
    axes, reduction, maker = parts
    if not _stays(init, reduction, axes, maker):
        return None
    small = facts.make(node.op, inner.operands[0], init, regions=node.regions, loc=node.loc)
    return (maker.reduce(small, axes, reduction),)


REDUCE_RULES = (reduce_of_equal, reduce_of_reduce, reduce_of_gather, reduce_of_copies)
SCATTER_RULES = (scatter_of_equal, scatter_of_scatter, scatter_of_reduce)
