"""Export of one function with unreduced values."""

from __future__ import annotations

from typing import ClassVar

from weft.errors import WeftError
from weft.ir.location import Location
from weft.ir.module import Node, Region, Value
from weft.ir.op import Op
from weft.ir.op import rule as rule_of
from weft.ir.types import TensorType
from weft.mesh import Sharding
from weft.ops.control import Call, Case, OptimizationBarrier, While
from weft.ops.distributed.sharding import ManualComputation, NamedComputation
from weft.shard.closing import GivenShardings, closed
from weft.shard.exporting.body import ExportState, Rebuilder
from weft.shard.exporting.calls import FlatCall
from weft.shard.exporting.unreduced import NodesAndValue, Unreduced


class UnreducedRebuilder(Rebuilder):
    """Rebuilds one function, and reduces values before uses that do not accept unreduced ones."""

    puts: ClassVar[bool] = True

    def __init__(
        self, state: ExportState, cells: dict[Value, int], sites: dict[Node, FlatCall]
    ) -> None:
        super().__init__(state, cells, sites)
        self.unreduced = Unreduced(state.meshes, state.table)
        self.out: list[Node] = []

    def nodes(self, region: Region, out: list[Node]) -> None:
        for node in region.nodes:
            self.out = out
            self.handlers.get(type(node.op), self.plain)(node, out)

    def settled(self, value: Value, target: Sharding | None, loc: Location) -> NodesAndValue:
        nodes, value = self.unreduced.settle(value, target, loc)
        more, value = self.unreduced.unreduce(value, target, loc)
        return [*nodes, *more], value

    def read(self, node: Node) -> tuple[Value, ...]:
        operands = super().read(node)
        targets: GivenShardings | None = None
        match node.op:
            case Case() | Call() | NamedComputation():
                return operands
            case ManualComputation(in_shardings=given):
                targets = given
            case While() | OptimizationBarrier():
                targets = self.ended(node)
        if targets is not None:
            pairs = zip(operands, targets, strict=True)
            return tuple([self.source(v, t, node.loc) for v, t in pairs])
        over = dict.fromkeys(s.unreduced if s else () for s in self.ended(node))
        if len(over) > 1:
            raise WeftError(
                f"{node.op.name}: its results are unreduced over different axes",
                help="let all results be unreduced over the same axes",
                loc=node.loc,
            )
        target = next(iter(self.ended(node)), None)
        read = []
        for operand in operands:
            nodes, value = self.unreduced.settle(operand, target, node.loc)
            self.out.extend(nodes)
            read.append(value)
        return tuple(read)

    def source(self, value: Value, target: Sharding | None, loc: Location) -> Value:
        """A carried value with the unreduced axes of its target."""
        nodes, made = self.settled(value, target, loc)
        if nodes:
            self.put_after(value, nodes)
        return made

    def plain(self, node: Node, out: list[Node], op: Op | None = None) -> Node:
        rewritten = super().plain(node, out, op)
        first = self.table.get(rewritten.results[0]) if rewritten.results else None
        if first is None or not first.unreduced or isinstance(rewritten.op, While | Case):
            return rewritten
        types = (*rewritten.operand_types, *rewritten.types)
        if not any(isinstance(t, TensorType) and t.shape for t in types):
            return rewritten
        rule = rule_of(rewritten.op, rewritten.operand_types, rewritten.bodies)
        axes = self.unreduced.reduction_axes(
            rule, [self.table.get(v) for v in rewritten.operands], first
        )
        if axes:
            for before, value in zip(node.results, rewritten.results, strict=True):
                nodes, after = self.unreduced.all_reduce(value, axes, self.table[value])
                out.extend(nodes)
                self.became[before] = after
        return rewritten

    def constraint(self, node: Node, out: list[Node]) -> None:
        (sharding,) = self.raw(node.results)
        (operand,) = Rebuilder.read(self, node)
        target = None if sharding is None else closed(sharding)
        nodes, value = self.unreduced.unreduce(operand, target, node.loc)
        if not nodes:
            super().constraint(node, out)
            return
        out.extend(nodes)
        self.became[node.results[0]] = value

    def toward(self, value: Value, sharding: Sharding, loc: Location) -> list[Node]:
        nodes, value = self.unreduced.settle(value, sharding, loc)
        more, _ = self.unreduced.unreduce(value, sharding, loc)
        return [*nodes, *(more or super().toward(value, sharding, loc))]

    def carried(self, node: Node, out: list[Node]) -> None:
        super().carried(node, out)
        made = out[-1]
        targets = [self.table.get(v) for v in made.results]
        for region in made.regions[1:] if isinstance(node.op, While) else made.regions:
            self.returned(region, targets, node.loc)

    def returned(self, region: Region, targets: list[Sharding | None], loc: Location) -> None:
        """Reduce the values that a region returns, right after their definitions."""
        results = []
        start = self.starts[region.args[0]] if region.args else []
        placed = len(start)  # already in the region
        for value, target in zip(region.results, targets, strict=True):
            results.append(self.source(value, target, loc))
        if self.after:
            region.nodes = self.place(region.nodes)
        region.nodes = [*start[: len(start) - placed], *region.nodes]
        region.results = tuple(results)

    def finish(self, region: Region, targets: list[Sharding | None]) -> None:
        """Reduce the values that a function returns, at its end."""
        results = []
        for value, target in zip(region.results, targets, strict=True):
            nodes, made = self.settled(value, target, region.loc)
            region.nodes.extend(nodes)
            results.append(made)
        region.results = tuple(results)
