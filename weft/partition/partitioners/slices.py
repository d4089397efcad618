"""Slices, paddings and reversals along split dims, with halo exchange."""

from __future__ import annotations

from weft.ir.module import Node
from weft.mesh import Mesh
from weft.mesh.algebra import DimAxes, total_size
from weft.ops.shape import Reverse
from weft.ops.slicing import Pad, Slice
from weft.partition.partitioners.dilation import (
    DeviceView,
    DilatedValue,
    Dilation,
    dilated_view,
    scalar_fill,
)
from weft.partition.partitioners.halo import fetch
from weft.partition.partitioners.views import Views, empty
from weft.partition.piece import Piece
from weft.partition.site import NodeSite, tensor


def slice_views(
    node: Node, operands: tuple[DimAxes, ...], results: tuple[DimAxes, ...], mesh: Mesh
) -> Views:
    """The range from the first to the last element of a device's result shard."""
    op = node.op
    assert isinstance(op, Slice)
    operand, out = tensor(node.operand_types[0]), tensor(node.types[0])
    views = []
    for dim, axes in enumerate(results[0]):
        size, length = operand.sizes[dim], out.sizes[dim]
        if not axes or size == length:
            continue
        count = total_size(axes, mesh)
        piece, stride = -(-length // count), op.strides[dim]
        starts = tuple(op.start_indices[dim] + t * piece * stride for t in range(count))
        # To the last element that is taken, not to a multiple of the stride: less is fetched.
        width = (piece - 1) * stride + 1
        kept_by = [min(piece, length - t * piece) for t in range(count)]
        stops = tuple(s + (n - 1) * stride + 1 for s, n in zip(starts, kept_by, strict=True))
        views.append((0, DeviceView(dim, axes, Dilation(size), starts, width, stops)))
    return views


def cut(site: NodeSite) -> tuple[Piece, ...]:
    """Each device fetches the range of its result shard, and slices it."""
    if empty(site):
        return site.zeros()
    op, (operand,) = site.node.op, site.operands
    assert isinstance(op, Slice)
    value, out = operand.value, tensor(site.local_types()[0])
    starts, limits, strides = list(op.start_indices), list(op.limit_indices), list(op.strides)
    for dim, axes in enumerate(site.splits[0]):
        if axes:
            # A split dim is already cut by where the shard lies; views, below, put the stride back.
            starts[dim], limits[dim], strides[dim] = 0, out.sizes[dim], 1
    for _, view in slice_views(site.node, (operand.split,), site.splits, site.mesh):
        value = fetch(site.builder, value, view.dim, view.axes, view.wanted)
        limits[view.dim], strides[view.dim] = view.width, op.strides[view.dim]
    local = Slice(tuple(starts), tuple(limits), tuple(strides))
    is_part = any(starts) or tuple(limits) != tensor(value.type).sizes or set(strides) - {1}
    return site.result_pieces(site.add(local, (value,))[0] if is_part else value)


def pad_views(
    node: Node, operands: tuple[DimAxes, ...], results: tuple[DimAxes, ...], mesh: Mesh
) -> Views:
    """The elements in a device's shard of the padded tensor."""
    op = node.op
    assert isinstance(op, Pad)
    operand_type, result_type = tensor(node.operand_types[0]), tensor(node.types[0])
    views = []
    for dim, axes in enumerate(results[0]):
        amounts = (
            op.edge_padding_low[dim],
            op.edge_padding_high[dim],
            op.interior_padding[dim],
        )
        if not axes or not any(amounts):
            continue
        count, size = total_size(axes, mesh), result_type.sizes[dim]
        piece = -(-size // count)
        spread = Dilation(operand_type.sizes[dim], amounts[0], amounts[2] + 1)
        starts = tuple(t * piece for t in range(count))
        stops = tuple(min(s + piece, size) for s in starts)
        views.append((0, DeviceView(dim, axes, spread, starts, piece, stops)))
    return views


def pad(site: NodeSite) -> tuple[Piece, ...]:
    """Each device fetches the elements of its result shard, and pads them."""
    if empty(site):
        return site.zeros()
    op, (operand, value) = site.node.op, site.operands
    assert isinstance(op, Pad)
    fill = scalar_fill(site.node.operands[1], value.value)
    edges = [op.edge_padding_low, op.edge_padding_high, op.interior_padding]
    low, high, interior = ([*amounts] for amounts in edges)
    for dim, axes in enumerate(site.splits[0]):
        if axes:
            low[dim] = high[dim] = interior[dim] = 0
    seen = DilatedValue(operand.value)
    for _, view in pad_views(site.node, (operand.split,), site.splits, site.mesh):
        seen = dilated_view(site.builder, seen.value, view, fill)
        low[view.dim], high[view.dim], interior[view.dim] = seen.low, seen.high, seen.step - 1
    if not any((*low, *high, *interior)):
        return site.result_pieces(seen.value)
    local = Pad(tuple(low), tuple(high), tuple(interior))
    return site.result_pieces(*site.add(local, (seen.value, value.value)))


def reverse_views(
    node: Node, operands: tuple[DimAxes, ...], results: tuple[DimAxes, ...], mesh: Mesh
) -> Views:
    """The mirrored range."""
    op = node.op
    assert isinstance(op, Reverse)
    operand_type = tensor(node.operand_types[0])
    views = []
    for dim, axes in enumerate(results[0]):
        if not axes or dim not in op.dimensions:
            continue
        count, size = total_size(axes, mesh), operand_type.sizes[dim]
        piece = -(-size // count)
        # Before 0 for the last shards of an uneven dim: reversed, these zeros are the padding at
        # its end.
        starts = tuple(size - (t + 1) * piece for t in range(count))
        stops = tuple(s + piece for s in starts)
        views.append((0, DeviceView(dim, axes, Dilation(size), starts, piece, stops)))
    return views


def reverse(site: NodeSite) -> tuple[Piece, ...]:
    """Each device fetches the mirrored range, and reverses it."""
    if empty(site):
        return site.zeros()
    (operand,) = site.operands
    value = operand.value
    for _, view in reverse_views(site.node, (operand.split,), site.splits, site.mesh):
        value = fetch(site.builder, value, view.dim, view.axes, view.wanted)
    return site.result_pieces(*site.add(site.node.op, (value,)))
