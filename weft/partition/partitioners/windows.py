"""Sliding windows along split dims, with halo exchange."""

from __future__ import annotations

from weft.ir.module import Node
from weft.ir.rule import Rule
from weft.mesh import Mesh
from weft.mesh.algebra import Axes, DimAxes, total_size
from weft.ops.window import ReduceWindow, WindowDims
from weft.partition.partitioners.cumulative import run, running
from weft.partition.partitioners.dilation import DeviceView, Dilation, dilated_view, scalar_fill
from weft.partition.partitioners.halo import row_bytes
from weft.partition.partitioners.views import Views, empty, sent_by
from weft.partition.piece import Piece, local_type
from weft.partition.site import NodeSite, tensor
from weft.partition.strategy.factors import FactorAxes, split_by_factors


def window_view(
    window: WindowDims, n: int, dim: int, axes: Axes, sizes: tuple[int, int], mesh: Mesh
) -> DeviceView:
    """The view under a device's window positions: n is the window's dim, dim the tensor's."""
    size, places = sizes
    count = total_size(axes, mesh)
    piece, stride = -(-places // count), window.strides[n]
    own = (window.sizes[n] - 1) * window.window_dilations[n] + 1
    starts = tuple(t * piece * stride for t in range(count))
    used = [min(piece, places - t * piece) for t in range(count)]
    stops = tuple(
        s + (u - 1) * stride + own if u > 0 else s for s, u in zip(starts, used, strict=True)
    )
    spread = Dilation(size, window.padding[n][0], window.base_dilations[n])
    return DeviceView(dim, axes, spread, starts, (piece - 1) * stride + own, stops)


def window_views(
    node: Node, operands: tuple[DimAxes, ...], results: tuple[DimAxes, ...], mesh: Mesh
) -> Views:
    """The views of all inputs."""
    op = node.op
    assert isinstance(op, ReduceWindow)
    given, made, window = tensor(node.operand_types[0]), tensor(node.types[0]), op.window
    views = []
    for dim, axes in enumerate(results[0]):
        sizes = given.sizes[dim], made.sizes[dim]
        if axes and not (window.is_trivial(dim) and sizes[0] == sizes[1]):
            view = window_view(window, dim, dim, axes, sizes, mesh)
            views += [(n, view) for n in range(len(node.results))]
    return views


def window_sent(node: Node, rule: Rule, by_factor: FactorAxes, mesh: Mesh) -> float:
    """The bytes of the halos of all windows."""
    scan = running(node)
    (split, *_) = [split_by_factors(by_factor, dims, rule, mesh) for dims in rule.results]
    if scan is None or split is None or not split[scan.dim]:
        return sent_by(window_views)(node, rule, by_factor, mesh)
    type = local_type(tensor(node.types[0]), split, mesh)
    return row_bytes(type, scan.dim) * (total_size(split[scan.dim], mesh) - 1)


def reduce_window(site: NodeSite) -> tuple[Piece, ...]:
    """A local reduction over the windows of the view."""
    op = site.node.op
    assert isinstance(op, ReduceWindow)
    if empty(site):
        return site.zeros()
    found = running(site.node)
    if found is not None and site.splits[0][found.dim]:
        return run(site, found)
    count, window = len(site.node.results), op.window
    values = [p.value for p in site.operands]
    padding, steps = [*window.padding], [*window.base_dilations]
    splits = tuple(p.split for p in site.operands)
    for n, view in window_views(site.node, splits, site.splits, site.mesh):
        fill = scalar_fill(site.node.operands[count + n], values[count + n])
        seen = dilated_view(site.builder, values[n], view, fill)
        values[n] = seen.value
        padding[view.dim], steps[view.dim] = (seen.low, seen.high), seen.step
    local = op.replace(outs=site.local_types(), padding=tuple(padding), base_dilations=tuple(steps))
    return site.result_pieces(*site.add(local, tuple(values), site.context.regions(site.node)))
