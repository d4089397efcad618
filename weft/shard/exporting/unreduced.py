"""Unreduced values: reductions before uses, and conversions to unreduced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.ir.location import UNKNOWN, Location
from weft.ir.module import Node, Value
from weft.ir.rule import Rule
from weft.mesh import Axis, DimSharding, Mesh, Sharding, parse_axis
from weft.mesh.algebra import Axes, difference, is_list_prefix, merged_in_order
from weft.ops.distributed.sharding import (
    ReplicatedToUnreduced,
    Reshard,
    ShardedToUnreduced,
    ShardyAllGather,
    ShardyAllReduce,
)
from weft.records import dataclass
from weft.shard.closing import GivenShardings
from weft.shard.propagation.projection import factor_sizes, project

ShardyCollective = ShardyAllReduce | ShardyAllGather | ReplicatedToUnreduced | ShardedToUnreduced

NodesAndValue = tuple[list[Node], Value]  # the nodes to insert before a use, and the new operand


@dataclass(slots=True)
class Unreduced:
    """Builds the collectives that a value needs before a use, and records their shardings."""

    meshes: Mapping[str, Mesh]
    table: dict[Value, Sharding]

    def settle(self, value: Value, target: Sharding | None, loc: Location) -> NodesAndValue:
        """Reduce a value over the unreduced axes that the target lacks."""
        source = self.table.get(value)
        if source is None or not source.unreduced:
            return [], value
        mesh = source.resolve(self.meshes)
        wanted = target.unreduced if target else ()
        axes = difference(source.unreduced, wanted, mesh)
        if not axes:
            return [], value
        kept = difference(source.unreduced, axes, mesh)
        return self.all_reduce(value, axes, replace(source, unreduced=kept))

    def all_reduce(self, value: Value, axes: Axes, out: Sharding) -> NodesAndValue:
        """An all_reduce over axes; it cancels against a conversion to unreduced."""
        loc = value.node.loc if value.node else UNKNOWN
        if value.node is not None:
            before = value.node.operands
            match value.node.op:
                case ReplicatedToUnreduced(axes=text) if text == _list(axes):
                    return [], before[0]
                case ShardedToUnreduced(axes=text) if self._flat(text, out) == axes:
                    return self.collective(ShardyAllGather(text, out), before[0], loc)
        return self.collective(ShardyAllReduce(_list(axes), out), value, loc)

    def collective(self, op: ShardyCollective, value: Value, loc: Location) -> NodesAndValue:
        """One collective, with its sharding recorded."""
        node = Node(op, (value,), (value.type,), loc=loc)
        self.table[node.results[0]] = op.out_sharding
        return [node], node.results[0]

    def _flat(self, text: str, like: Sharding) -> Axes:
        inside = text[text.index("[") + 1 : text.rindex("]")]
        names = inside.replace("{", "").replace("}", "").split(",")
        return merged_in_order(
            [parse_axis(n) for n in names if n.strip()], like.resolve(self.meshes)
        )

    def unreduce(self, value: Value, target: Sharding | None, loc: Location) -> NodesAndValue:
        """Make a value unreduced over the axes of the target."""
        source = self.table.get(value)
        if source is None or target is None or not target.unreduced:
            return [], value
        mesh = source.resolve(self.meshes)
        more = difference(target.unreduced, source.unreduced, mesh)
        if not more:
            return [], value
        nodes: list[Node] = []
        dims = zip(source.dims, target.dims, strict=True)
        kept = tuple(_keep(given, wanted, more, mesh) for given, wanted in dims)
        if kept != source.dims:
            source = Sharding(source.mesh, kept, (), source.unreduced)
            node = Node(Reshard(source), (value,), (value.type,), loc=loc)
            value = node.results[0]
            self.table[value] = source
            nodes.append(node)
        dims = zip(source.dims, target.dims, strict=True)
        moved = [difference(given.axes, wanted.axes, mesh) for given, wanted in dims]
        sharded = tuple(axis for axes in moved for axis in axes)
        if plain := difference(more, sharded, mesh):
            unreduced = merged_in_order((*source.unreduced, *plain), mesh)
            between = Sharding(source.mesh, source.dims, target.replicated, unreduced)
            added, value = self.collective(ReplicatedToUnreduced(_list(plain), between), value, loc)
            nodes += added
        if sharded:
            text = f"#sdy<list_of_axis_ref_lists[{', '.join(_braced(axes) for axes in moved)}]>"
            added, value = self.collective(ShardedToUnreduced(text, target), value, loc)
            nodes += added
        return nodes, value

    def reduction_axes(self, rule: Rule, shardings: GivenShardings, out: Sharding) -> Axes:
        """The axes that an op reduces over, unless its result is unreduced over them."""
        mesh = out.resolve(self.meshes)
        sizes = factor_sizes(rule)
        operands = zip(shardings, rule.operands, strict=True)
        tensors = [project(s, dims, sizes, mesh) for s, dims in operands]
        axes: list[Axis] = []
        for factor, described in enumerate(rule.factors):
            if described.role == "reduction":
                lists = [t.factors[factor].axes for t in tensors if factor in t.factors]
                axes.extend(lists[0] if lists else ())
        return merged_in_order(difference(tuple(axes), out.unreduced, mesh), mesh)


def _keep(dim: DimSharding, wanted: DimSharding, unreduced: Axes, mesh: Mesh) -> DimSharding:
    """The current dim sharding if it loses axes to the unreduced ones, else the wanted one."""
    if is_list_prefix(wanted.axes, dim.axes):
        lost = difference(dim.axes, wanted.axes, mesh)
        if not difference(lost, unreduced, mesh):
            return dim
    return wanted


def _braced(axes: Axes) -> str:
    return f"{{{_listed(axes)}}}"


def _listed(axes: Axes) -> str:
    return ", ".join(map(str, axes))


def _list(axes: Axes) -> str:
    return f"#sdy<axis_ref_list{_braced(axes)}>"
