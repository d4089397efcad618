"""Data movement kernels: views where possible, with the leading dims in place."""

from __future__ import annotations

import math

import numpy as np

from weft.emit.numpy.pointwise import constant
from weft.executable.items import Site
from weft.ir.op import Op
from weft.ir.types import Array
from weft.kernels.host import HostKernel, Maker
from weft.ops.control import OptimizationBarrier
from weft.ops.distributed.sharding import ANNOTATIONS, ShardyConstant
from weft.ops.shape import (
    BitcastConvert,
    Broadcast,
    BroadcastInDim,
    GetDimensionSize,
    Iota,
    Reshape,
    Reverse,
    Transpose,
    iota,
)
from weft.ops.slicing import Concatenate, Pad, Slice
from weft.ops.slicing import pad as padded


def reshape(site: Site) -> HostKernel:
    """A view, unless the array is not contiguous."""
    sizes, lead = site.result().sizes, site.lead
    return HostKernel(lambda x: x.reshape(x.shape[:lead] + sizes), shares=True)


def transpose(site: Site) -> HostKernel:
    """A transposed view."""
    op, lead = site.op, site.lead
    assert isinstance(op, Transpose)
    order = (*range(lead), *(lead + d for d in op.permutation))
    return HostKernel(lambda x: x.transpose(order), shares=True)


def broadcast_in_dim(site: Site) -> HostKernel:
    """A broadcast view."""
    op = site.op
    assert isinstance(op, BroadcastInDim)
    return _broadcast(site, op.broadcast_dimensions)


def broadcast(site: Site) -> HostKernel:
    """A broadcast view with new major dims."""
    added = site.result().rank - site.operand(0).rank
    return _broadcast(site, tuple(range(added, site.result().rank)))


def _broadcast(site: Site, dims: tuple[int, ...]) -> HostKernel:
    lead, sizes, operand_sizes = site.lead, site.result().sizes, site.operand(0).sizes
    order = (*range(lead), *(lead + d for d in sorted(range(len(dims)), key=dims.__getitem__)))
    in_order = list(order) == sorted(order)
    shape = [1] * len(sizes)
    for source, target in enumerate(dims):
        shape[target] = operand_sizes[source]
    target_shape = tuple(shape)
    if site.spread_by_readers:
        if in_order:
            return HostKernel(lambda x: x.reshape(x.shape[:lead] + target_shape), shares=True)
        return HostKernel(
            lambda x: x.transpose(order).reshape(x.shape[:lead] + target_shape), shares=True
        )

    def run(x: Array) -> Array:
        moved = x if in_order else x.transpose(order)
        head = x.shape[:lead]
        return np.broadcast_to(moved.reshape(head + target_shape), head + sizes)

    return HostKernel(run, shares=True)


def cut(site: Site) -> HostKernel:
    """A sliced view."""
    op = site.op
    assert isinstance(op, Slice)
    dims = zip(op.start_indices, op.limit_indices, op.strides, strict=True)
    window = (slice(None),) * site.lead + tuple([slice(*dim) for dim in dims])
    return HostKernel(lambda x: x[window], shares=True)


def reverse(site: Site) -> HostKernel:
    """A reversed view."""
    op, lead = site.op, site.lead
    assert isinstance(op, Reverse)
    dims = tuple(lead + d for d in op.dimensions)
    return HostKernel(lambda x: np.flip(x, dims), shares=True)


def concatenate(site: Site) -> HostKernel:
    """The operands concatenated, each broadcast to the union of the masks."""
    op, lead, out = site.op, site.lead, site.out()
    assert isinstance(op, Concatenate)
    axis = lead + op.dimension
    if all(site.mask(n) == out for n in range(len(site.given))):
        return HostKernel(
            lambda *xs: np.concatenate(xs, axis),
            lambda *xs: np.concatenate(xs[:-1], axis, out=xs[-1]),
        )

    def run(*arrays: Array) -> Array:
        head = np.broadcast_shapes(*[a.shape[:lead] for a in arrays])
        return np.concatenate([np.broadcast_to(a, head + a.shape[lead:]) for a in arrays], axis)

    return HostKernel(run)


def pad(site: Site) -> HostKernel:
    """The operand copied into an array of the padding value."""
    op, lead = site.op, site.lead
    assert isinstance(op, Pad)
    given = (op.edge_padding_low, op.edge_padding_high, op.interior_padding)
    dims = [(0, 0, 0)] * lead + list(zip(*given, strict=True))
    tail = (1,) * site.operand(0).rank

    def run(x: Array, value: Array) -> Array:
        head = np.broadcast_shapes(x.shape[:lead], value.shape)
        spread = np.broadcast_to(x, head + x.shape[lead:])
        return padded(spread, value.reshape(value.shape + tail), dims)

    return HostKernel(run)


def counted(site: Site) -> HostKernel:
    """An iota, once for all devices."""
    op = site.op
    assert isinstance(op, Iota)
    made = iota(op.out, op.iota_dimension)
    made = made.reshape((1,) * site.lead + made.shape)
    return HostKernel(lambda: made, shares=True)


def bitcast(site: Site) -> HostKernel:
    """A view of the same bytes, for elements of whole bytes."""
    op, lead = site.op, site.lead
    assert isinstance(op, BitcastConvert)
    source, target, sizes = site.operand(0).dtype, op.out.dtype, op.out.sizes
    whole = all(t.bits == 8 * t.numpy.itemsize for t in (source, target))
    ratio = max(1, target.bits // source.bits)

    # To a wider type, the elements of the last dim are the parts of one.
    def view(x: Array) -> Array:
        flat = np.ascontiguousarray(x).reshape(-1, ratio)
        return flat.view(target.numpy).reshape(x.shape[:lead] + sizes)

    def by_bits(x: Array) -> Array:
        count = math.prod(x.shape[:lead])
        stacked = BitcastConvert(op.out.with_shape((count, *sizes)))
        made: Array = stacked.reference(x.reshape(count, *x.shape[lead:]))
        return made.reshape(x.shape[:lead] + sizes)

    return HostKernel(view, shares=True) if whole else HostKernel(by_bits)


def dimension_size(site: Site) -> HostKernel:
    """A static size."""
    op, lead = site.op, site.lead
    assert isinstance(op, GetDimensionSize)
    size = site.operand(0).sizes[op.dimension]
    return HostKernel(lambda x: np.full(x.shape[:lead], size, np.int32))


def same(site: Site) -> HostKernel:
    """The operands unchanged."""
    if len(site.node.results) == 1:
        return HostKernel(lambda x: x, shares=True)
    return HostKernel(lambda *xs: xs, shares=True)


KERNELS: dict[type[Op], Maker] = {
    Reshape: reshape,
    Transpose: transpose,
    BroadcastInDim: broadcast_in_dim,
    Broadcast: broadcast,
    Slice: cut,
    Reverse: reverse,
    Concatenate: concatenate,
    Pad: pad,
    Iota: counted,
    BitcastConvert: bitcast,
    GetDimensionSize: dimension_size,
    OptimizationBarrier: same,
    ShardyConstant: constant,
    **dict.fromkeys(ANNOTATIONS, same),
}
