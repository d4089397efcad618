"""Prefix reductions, such as cumulative sums: local prefixes, then the offsets of shards."""

from __future__ import annotations

import numpy as np

from weft.ir.module import Node, Region, Value, apply
from weft.ir.rule import Combine
from weft.ir.types import TensorType
from weft.mesh.algebra import total_size
from weft.ops.combiners import COMBINERS, combine_of, identity
from weft.ops.distributed.collective import AllGather
from weft.ops.distributed.local import CHANNEL, INDEX
from weft.ops.elementwise.pointwise import Compare, Select
from weft.ops.reduce import Reduce
from weft.ops.shape import BroadcastInDim
from weft.ops.window import ReduceWindow
from weft.partition.partitioners.dilation import known_scalar
from weft.partition.partitioners.halo import resized, slice_between
from weft.partition.piece import Piece
from weft.partition.site import NodeSite, tensor
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class CumulativeWindow:
    """A window that covers a dim from one end up to each element."""

    dim: int
    combine: Combine
    is_backward: bool  # from the other end


def running(node: Node) -> CumulativeWindow | None:
    """The dim of a prefix reduction, if it has a plain combiner and starts from its identity."""
    op = node.op
    assert isinstance(op, ReduceWindow)
    combine, init = combine_of(node.bodies[0]), known_scalar(node.operands[-1])
    operand_type, made = tensor(node.operand_types[0]), tensor(node.types[0])
    if combine is None or len(node.results) > 1 or operand_type.dtype is not made.dtype:
        return None
    nothing = np.asarray(identity(combine, operand_type.dtype)).astype(operand_type.dtype.numpy)
    if init is None or bool((init != nothing).any()):
        return None
    window = op.window
    moved = [d for d in range(operand_type.rank) if not window.is_trivial(d)]
    if len(moved) != 1 or set(window.strides) | set(window.base_dilations) != {1}:
        return None
    (dim,) = moved
    size, padding = operand_type.sizes[dim], window.padding[dim]
    if window.sizes[dim] != size or window.window_dilations[dim] != 1:
        return None
    if padding not in ((size - 1, 0), (0, size - 1)):
        return None
    return CumulativeWindow(dim, combine, padding == (0, size - 1))


def run(site: NodeSite, scan: CumulativeWindow) -> tuple[Piece, ...]:
    """A local prefix reduction, combined with the totals of all earlier shards."""
    op, (operand, init) = site.node.op, site.operands
    assert isinstance(op, ReduceWindow)
    builder, dim = site.builder, scan.dim
    nothing = identity(scan.combine, operand.type.dtype)
    # Padding must not count in the totals of shards.
    value = builder.masked(operand, (dim,), nothing)
    result_type = tensor(value.type)
    piece = result_type.sizes[dim]
    window, padding = [1] * result_type.rank, [(0, 0)] * result_type.rank
    window[dim] = piece
    padding[dim] = (0, piece - 1) if scan.is_backward else (piece - 1, 0)
    local = ReduceWindow(tuple(window), (result_type,), padding=tuple(padding))
    regions = site.context.regions(site.node)
    (folded,) = site.add(local, (value, init.value), regions)
    end = 0 if scan.is_backward else piece - 1
    before = _before(site, scan, slice_between(builder, folded, dim, end, end + 1), init.value)
    kept = tuple(d for d in range(result_type.rank) if d != dim)
    spread = builder.emit(BroadcastInDim(kept, result_type), before)
    combined = COMBINERS[scan.combine]
    # In program order of the elements: the combiner need not commute.
    pair = (folded, spread) if scan.is_backward else (spread, folded)
    return site.result_pieces(builder.emit(combined, *pair))


def _before(site: NodeSite, scan: CumulativeWindow, end: Value, init: Value) -> Value:
    """The combined totals of all shards before a device's own."""
    builder, dim = site.builder, scan.dim
    axes = site.operands[0].split[dim]
    total_type = tensor(end.type)
    full = resized(total_type, dim, total_size(axes, site.mesh))
    op = AllGather(dim, builder.groups(axes), (full,), CHANNEL, use_global_device_ids=True)
    # The totals are tiny, so all of them are gathered and masked, rather than passed along a chain
    # of as many steps as there are devices.
    ends = builder.emit(op, end)
    at = builder.counted(full.with_dtype(INDEX.dtype), dim, None)
    own = builder.spread(builder.index(axes), full)
    direction = "GT" if scan.is_backward else "LT"
    is_before = builder.emit(Compare(direction, "SIGNED"), at, own)
    nothing = builder.splat(identity(scan.combine, total_type.dtype), full)
    ends = builder.emit(Select(), is_before, ends, nothing)
    out = total_type.with_shape((*total_type.sizes[:dim], *total_type.sizes[dim + 1 :]))
    region = _region(site, scan.combine, total_type.with_shape(()))
    return builder.emit(Reduce((dim,), (out,)), ends, init, regions=(region,))


def _region(site: NodeSite, combine: Combine, scalar: TensorType) -> Region:
    args = (Value(scalar, None, 0), Value(scalar, None, 1))
    node = apply(COMBINERS[combine], *args, loc=site.node.loc)
    return Region(args, [node], node.results)
