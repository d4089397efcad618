"""Collective matmul: a product of a gathered operand, or with a scattered result, as a ring.

dot(all_gather(x), w)        step t: the shard of the device t places on, while the next is sent
reduce_scatter(dot(x, w))    step t: the partial sum for the device t places on
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.cost import Costs
from weft.ir.gc_pause import without_gc
from weft.ir.module import Function, Module, Node, Region, Value, uses, walk
from weft.ir.rebuild import Rebuild
from weft.machine import HOST, Machine
from weft.mesh import MeshAxes
from weft.ops.contract import DotGeneral
from weft.ops.distributed.collective import AllGather, ReduceScatter
from weft.ops.distributed.local import INDEX
from weft.ops.elementwise.convert import Convert
from weft.ops.elementwise.pointwise import Add
from weft.optimize.collectives.ring import Ring, gathered_product, scattered_product
from weft.records import dataclass

# The ops of a ring's step that take time beside its product and its transfer; slices are read in
# place.
_BESIDE = (Add, Convert)
_MOST = 64  # the most steps, if the machine has no limit
_GAIN = 0.95  # the ring's time must be below this share of the original's


def collective_matmul(module: Module, machine: Machine = HOST) -> Module:
    """Turn products with gathered operands or scattered results into rings, where that is faster.

    Only inside a domain of the fast interconnect, and on machines that overlap communication with
    computation.
    """
    if not machine.overlaps:
        return module
    if not any(isinstance(node.op, AllGather | ReduceScatter) for node in module.nodes()):
        return module
    with without_gc():
        choosing = _Choosing(Costs(module, machine))
        for function in module.functions.values():
            choosing.function(function)
        if not choosing.chosen:
            return module
        return _Rewriting(module, choosing).module()


@dataclass(frozen=True, slots=True)
class RingProduct:
    """A product that becomes a ring: the dot, its collective, and its gathered operand."""

    dot: Node
    collective: Node
    side: int | None  # None if the result is scattered
    ring: Ring

    def nodes(self, lhs: Value, rhs: Value) -> list[Node]:
        """The nodes of the ring, the result last; a gathered operand is passed as its shard."""
        builder = self.ring.started()
        if self.side is None:
            scattered_product(builder, self.dot, self.collective, lhs, rhs)
        else:
            gathered_product(builder, self.dot, self.collective, self.side, lhs, rhs)
        return builder.nodes


class _Choosing:
    """Finds the products for which a ring is profitable."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.chosen: dict[Node, RingProduct] = {}  # by the node that the ring replaces
        self.dropped: set[Node] = set()
        self.users: dict[Value, list[tuple[Node, int]]] = {}
        self.returned: set[Value] = set()  # values returned by regions

    def function(self, function: Function) -> None:
        """Look at every region of a function."""
        self.users = uses(function.body)
        self.returned = {v for region in regions_of(function.body) for v in region.results}
        for region in regions_of(function.body):
            self.region(region)

    def region(self, region: Region) -> None:
        """Look at every node of a region."""
        here = set(region.nodes)
        for node in region.nodes:
            match node.op:
                case AllGather() if len(node.operands) == 1:
                    self.gather(node, here)
                case ReduceScatter() if len(node.operands) == 1:
                    dot = node.operands[0].node
                    if dot is not None and dot in here:
                        self.scatter(node, dot)

    def ring(self, axes: object, node: Node) -> Ring | None:
        """The ring along the axes of a collective, if it is inside a fast domain."""
        if not isinstance(axes, MeshAxes):
            return None
        extent = self.costs.group_extent(node.op)
        limit = self.costs.machine.fast_devices or _MOST
        if extent.domains > 1 or not 1 < extent.devices <= limit:
            return None
        return Ring(axes, extent.devices, node.loc)

    def gather(self, gather: Node, here: set[Node]) -> None:
        """dot(all_gather(x), w) -> a ring, when only such products read the gathered value."""
        op = gather.op
        assert isinstance(op, AllGather)
        ring = self.ring(op.replica_groups, gather)
        readers = self.users.get(gather.results[0], [])
        if ring is None or not readers or gather.results[0] in self.returned:
            return
        parts = []
        for node, side in readers:
            dot = node.op
            # x @ x of one gathered value would need two different shards in the same step.
            if not isinstance(dot, DotGeneral) or node.operands[0] is node.operands[1]:
                return
            if (
                node not in here
                or node in self.chosen
                or not _summable(dot, op.all_gather_dim, side)
            ):
                return
            parts.append(RingProduct(node, gather, side, ring.at(node.loc)))
        before = self.costs.seconds(gather) + sum(self.costs.seconds(c.dot) for c in parts)
        after = sum(self.seconds(chosen) for chosen in parts)
        # A margin, since both times are predictions and a ring is harder to schedule around.
        if after < _GAIN * before:
            self.chosen.update({chosen.dot: chosen for chosen in parts})
            self.dropped.add(gather)

    def scatter(self, scatter: Node, dot: Node) -> None:
        """reduce_scatter(dot(x, w)) -> a ring, when nothing else reads the product."""
        op = scatter.op
        assert isinstance(op, ReduceScatter)
        ring = self.ring(op.replica_groups, scatter)
        if ring is None or not isinstance(dot.op, DotGeneral) or dot in self.chosen:
            return
        if len(self.users[dot.results[0]]) != 1 or dot.results[0] in self.returned:
            return
        if scatter.regions[0].body.combiners != ("stablehlo.add",):
            return
        chosen = RingProduct(dot, scatter, None, ring.at(dot.loc))
        before = self.costs.seconds(scatter) + self.costs.seconds(dot)
        if self.seconds(chosen) < _GAIN * before:
            self.chosen[scatter] = chosen
            self.dropped.add(dot)

    def seconds(self, ring: RingProduct) -> float:
        """Seconds of a ring: in every step the slower of the product and the transfer."""
        lhs, rhs = (Value(v.type) for v in ring.dot.operands)
        if ring.side is not None:
            piece = Value(ring.collective.operands[0].type)
            lhs, rhs = (piece, rhs) if ring.side == 0 else (lhs, piece)
        nodes = ring.nodes(lhs, rhs)
        travel = [self.costs.seconds(n) for n in nodes if n.op.collective]
        products = [self.costs.seconds(n) for n in nodes if isinstance(n.op, DotGeneral)]
        # Index arithmetic is negligible.
        rest = [
            self.costs.seconds(n)
            for n in nodes
            if isinstance(n.op, _BESIDE) and n.results[0].type is not INDEX
        ]
        # A step's transfer is issued before its product, and runs beside it; the last step has
        # none.
        hidden = sum(max(a, b) for a, b in zip(travel, products, strict=False))
        return hidden + sum(products[len(travel) :]) + sum(rest)


def regions_of(region: Region) -> Iterator[Region]:
    """A region and all regions inside it."""
    yield region
    for node in walk(region):
        yield from node.regions


def _summable(dot: DotGeneral, dim: int, side: int) -> bool:
    """Whether the products of shards can be concatenated, or added, as booleans are not."""
    dims = dot.dot_dimension_numbers
    summed = (dims.lhs_contracting_dimensions, dims.rhs_contracting_dimensions)[side]
    return dim not in summed or dot.out.dtype.kind != "bool"


class _Rewriting(Rebuild):
    """Replaces the chosen products by rings."""

    def __init__(self, module: Module, choosing: _Choosing) -> None:
        super().__init__(module, (), choosing.dropped - choosing.chosen.keys())
        self.chosen = choosing.chosen

    def node(self, node: Node, out: list[Node]) -> None:
        if node in self.chosen:
            self.ring(self.chosen[node], node, out)
        else:
            super().node(node, out)

    def ring(self, product: RingProduct, node: Node, out: list[Node]) -> None:
        """Emit the ring in place of a node."""
        operands = list(product.dot.operands)
        if product.side is not None:
            operands[product.side] = product.collective.operands[0]
        lhs, rhs = (self.became.get(v, v) for v in operands)
        out += product.nodes(lhs, rhs)
        self.became[node.results[0]] = out[-1].results[0]
