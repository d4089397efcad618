"""Select-and-scatter along split dims: devices compute all windows that overlap their shards."""

from __future__ import annotations

from weft.ir.module import Node, Region
from weft.ir.rule import Combine, Rule, RuleBuilder
from weft.mesh import Mesh
from weft.mesh.algebra import DimAxes, total_size
from weft.ops.combiners import combine_of, identity
from weft.ops.elementwise.pointwise import Compare
from weft.ops.window import SelectAndScatter, WindowDims
from weft.partition.partitioners.dilation import DeviceView, Dilation, PaddingScalar, dilated_view
from weft.partition.partitioners.halo import slice_from
from weft.partition.partitioners.views import Views, empty
from weft.partition.piece import Piece
from weft.partition.site import NodeSite, tensor
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class OverlappingWindows:
    """The windows that overlap each device's shard of a dim, and the elements under them."""

    windows: tuple[int, ...]  # the first one of each device
    last: tuple[int, ...]  # the last one
    count: int  # windows per device, some of them beyond its last one
    starts: tuple[int, ...]  # the first element of each device's view
    stops: tuple[int, ...]
    width: int


def touching(window: WindowDims, dim: int, size: int, count: int) -> OverlappingWindows:
    """An equal number of windows for every device, whose view covers its shard."""
    piece, own, stride = -(-size // count), window.sizes[dim], window.strides[dim]
    low = window.padding[dim][0]
    # The first window whose last element, n * stride - low + own - 1, is not before the shard.
    first = tuple(-((own - 1 - low - t * piece) // stride) for t in range(count))
    if any(n * stride - low > t * piece for t, n in enumerate(first)):
        first = tuple(n - 1 for n in first)  # else a shard would begin before its first window
    starts = tuple(n * stride - low for n in first)
    last = tuple((t * piece + piece - 1 + low) // stride for t in range(count))
    stops = tuple(n * stride - low + own for n in last)
    ends = [max(stop, (t + 1) * piece) for t, stop in enumerate(stops)]
    width = max(own, *(end - start for start, end in zip(starts, ends, strict=True)))
    return OverlappingWindows(first, last, (width - own) // stride + 1, starts, stops, width)


def pool_rules(node: Node, splits: tuple[DimAxes, ...]) -> tuple[Rule, ...]:
    """A dim is one factor of operand, source and result."""
    op = node.op
    assert isinstance(op, SelectAndScatter)
    types = tuple(tensor(t) for t in node.operand_types)
    builder = RuleBuilder(types, (op.out,))
    for dim, size in enumerate(types[0].bounds):
        role = "pass" if op.window.is_trivial(dim) else "permutation"
        builder.factor((dim, dim, None), (dim,), size, role)  # type: ignore[arg-type]
    return (builder.build(),)


def pool_factors(node: Node, rule: Rule) -> frozenset[int]:
    """The splittable factors; dims with padding only if padding is never selected."""
    can_fill = outside(node.regions[0]) is not None and combine_of(node.bodies[1]) is not None
    return frozenset(n for n, f in enumerate(rule.factors) if f.role == "pass" or can_fill)


def outside(select: Region) -> Combine | None:
    """The op whose identity is never selected, if the region is a plain comparison."""
    match select.nodes:
        case [Node(op=Compare(comparison_direction=way), operands=operands)] if (
            operands == select.args and select.results == select.nodes[0].results
        ):
            return "max" if way in ("GE", "GT") else "min" if way in ("LE", "LT") else None
    return None


def pool_views(
    node: Node, operands: tuple[DimAxes, ...], results: tuple[DimAxes, ...], mesh: Mesh
) -> Views:
    """The views of operand and source under overlapping windows."""
    op = node.op
    assert isinstance(op, SelectAndScatter)
    operand, source = tensor(node.operand_types[0]), tensor(node.operand_types[1])
    views = []
    for dim, axes in enumerate(results[0]):
        if not axes or op.window.is_trivial(dim):
            continue
        size, places = operand.sizes[dim], source.sizes[dim]
        near = touching(op.window, dim, size, total_size(axes, mesh))
        seen = DeviceView(dim, axes, Dilation(size), near.starts, near.width, near.stops)
        ends = tuple(n + 1 for n in near.last)
        views += [
            (0, seen),
            (1, DeviceView(dim, axes, Dilation(places), near.windows, near.count, ends)),
        ]
    return views


def select_and_scatter(site: NodeSite) -> tuple[Piece, ...]:
    """Each device computes all windows that overlap its shard, and keeps its own elements."""
    op = site.node.op
    assert isinstance(op, SelectAndScatter)
    if empty(site):
        return site.zeros()
    splits = tuple(p.split for p in site.operands)
    views = pool_views(site.node, splits, site.splits, site.mesh)
    if not views:
        return site.plain()
    values = [p.value for p in site.operands]
    fills = _fills(site)
    padding = [*op.window.padding]
    for n, view in views:
        # Windows at the edge of a shard are computed by both neighbours, each of which keeps the
        # elements that it owns: the selected element may be in either shard.
        values[n] = dilated_view(site.builder, values[n], view, fills[n]).value
        padding[view.dim] = (0, 0)
    made = tensor(values[0].type).with_dtype(op.out.dtype)
    local = op.replace(out=made, padding=tuple(padding))
    (value,) = site.add(local, tuple(values), site.context.regions(site.node))
    for n, view in views:
        if n == 0:
            piece = -(-view.spread.size // len(view.starts))
            begins = tuple(t * piece - s for t, s in enumerate(view.starts))
            value = slice_from(site.builder, value, view.dim, view.axes, begins, piece)
    return site.result_pieces(value)


def _fills(site: NodeSite) -> tuple[PaddingScalar, PaddingScalar]:
    """The fill values: one that is never selected, and the identity of the scatter."""
    taken, source = tensor(site.node.operand_types[0]), tensor(site.node.operand_types[1])
    selects, combine = outside(site.node.regions[0]), combine_of(site.node.bodies[1])
    assert selects is not None and combine is not None
    least = site.builder.splat(identity(selects, taken.dtype), taken.with_shape(()))
    nothing = identity(combine, source.dtype)
    if combine == "add":
        # Elements beyond the dim arrive as zeros: the identity of add needs no mask.
        return PaddingScalar(least, False), PaddingScalar(None, True)
    return PaddingScalar(least, False), PaddingScalar(
        site.builder.splat(nothing, source.with_shape(())), False
    )
