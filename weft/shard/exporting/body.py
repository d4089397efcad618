"""Export of one function: nodes are rebuilt, with closed shardings in a side table.

Along the way equal constants and broadcasts of scalars are merged again, constraints become
reshards, sharding groups are dropped, calls get the specialized function of their shardings, and
values are resharded where Shardy does it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import ClassVar

from weft.ir.attrs import Attrs
from weft.ir.location import Location
from weft.ir.module import Node, Region, Value
from weft.ir.names import SHARDING
from weft.ir.op import Op
from weft.ir.op import rule as rule_of
from weft.ir.types import Type
from weft.mesh import Mesh, Sharding
from weft.ops.contract import Dot, DotGeneral
from weft.ops.control import Call, Case, OptimizationBarrier, While
from weft.ops.distributed.sharding import (
    ManualComputation,
    NamedComputation,
    PropagationBarrier,
    Reshard,
    ShardingConstraint,
    ShardingGroup,
    ShardyConstant,
)
from weft.ops.shape import BroadcastInDim, Constant
from weft.ops.slicing import Concatenate
from weft.records import dataclass
from weft.shard.closing import closed, evenly, filled, splits_alike, unsplit, without_sub_axes
from weft.shard.exporting.calls import CallPlan, FlatCall
from weft.shard.exporting.reshards import consistent_shardings, dot_result
from weft.shard.exporting.unreduced import NodesAndValue
from weft.shard.kinds import is_scalar
from weft.shard.manual import ManualFrame, erased, manual_names
from weft.shard.regions import are_shared, is_shared

NodeHandler = Callable[[Node, list[Node]], object]


@dataclass(slots=True)
class ExportState:
    """The state shared by the export of all functions."""

    meshes: Mapping[str, Mesh]
    plan: CallPlan
    raw: list[Sharding | None]  # the final sharding of each cell
    closed: list[Sharding | None]  # the closed form
    same: dict[int, int]  # from a sharding's id to that of the first equal one
    arguments: dict[FlatCall, list[Sharding | None]] = field(default_factory=dict)
    table: dict[Value, Sharding] = field(default_factory=dict)
    memo: dict[object, Sharding | None] = field(default_factory=dict)  # of dots
    constants: dict[Constant, ShardyConstant] = field(default_factory=dict)
    ends: dict[tuple[int, Type, bool], tuple[Sharding, Sharding]] = field(default_factory=dict)
    may_be_dead: bool = False  # whether dead nodes may be left
    pad_calls: bool = False  # whether calls may have uneven shardings

    def mesh(self, sharding: Sharding) -> Mesh:
        """The mesh of a sharding."""
        return sharding.resolve(self.meshes)

    def constant(self, op: Constant) -> ShardyConstant:
        """An sdy.constant, which passes do not merge."""
        found = self.constants.get(op)
        if found is None:
            found = self.constants[op] = ShardyConstant(op.value)
        return found

    def divided(self, sharding: Sharding, type: Type, *, whole: bool = False) -> Sharding:
        """The closed and even sharding; with `whole`, open dims have whole axes only."""
        key = (id(sharding), type, whole)
        held = self.ends.get(key)
        if held is None:
            made = evenly(sharding, type, self.mesh(sharding))
            made = closed(without_sub_axes(made) if whole else made)
            held = self.ends[key] = (sharding, made)  # kept alive, since its id is the key
        return held[1]

    def passed(self, sharding: Sharding, type: Type) -> Sharding:
        """The sharding of a call's argument or result: closed, and even unless padded."""
        return closed(sharding) if self.pad_calls else self.divided(sharding, type)


class Rebuilder:
    """Rebuilds one function."""

    puts: ClassVar[bool] = False  # whether other nodes than calls insert nodes after values

    def __init__(
        self, state: ExportState, cells: dict[Value, int], sites: dict[Node, FlatCall]
    ) -> None:
        self.state = state
        self.cells = cells
        self.sites = sites
        self.table = state.table
        self.closed = state.closed
        self.became: dict[Value, Value] = {}
        self.merged: dict[object, Value] = {}  # constants of the current region
        self.after: dict[Node, list[Node]] = {}  # nodes to insert right after another
        self.starts: dict[Value, list[Node]] = {}  # the same, for the arguments of a region
        self.handlers: dict[type[Op], NodeHandler] = {
            ShardingGroup: self.drop,
            Constant: self.constant,
            ShardyConstant: self.constant,
            BroadcastInDim: self.broadcast,
            ShardingConstraint: self.constraint,
            Reshard: self.constraint,
            While: self.carried,
            Case: self.carried,
            OptimizationBarrier: self.carried,
            ManualComputation: self.manual,
            Call: self.call,
            NamedComputation: self.call,
            Dot: self.dot,
            DotGeneral: self.dot,
            Concatenate: self.concatenate,
        }

    # Regions

    def finish(self, region: Region, targets: list[Sharding | None]) -> None:
        """A hook for the results of the function; nothing here."""

    def region(self, region: Region, given: list[Sharding | None] | None = None) -> Region:
        """The region with new arguments, which have these shardings, and new nodes."""
        args = tuple([Value(v.type, None, v.index) for v in region.args])
        for value, sharding in zip(args, given or (), strict=False):
            if sharding is not None:
                self.table[value] = sharding
        self.became.update(zip(region.args, args, strict=True))
        first: list[Node] = []
        if self.sites or self.puts:
            self.starts.update(dict.fromkeys(args, first))
        outer, self.merged = self.merged, {}
        out: list[Node] = []
        self.nodes(region, out)
        self.merged = outer
        if self.after:
            out = self.place(out)
        became = self.became
        results = tuple([became.get(v, v) for v in region.results])
        return Region(args, [*first, *out] if first else out, results, region.loc, region.arg_locs)

    def nodes(self, region: Region, out: list[Node]) -> None:
        """Rebuild every node of a region."""
        became, cells, closed, table = self.became, self.cells, self.closed, self.table
        handlers, add = self.handlers, out.append
        for node in region.nodes:
            op, results, regions = node.op, node.results, node.regions
            handle = handlers.get(type(op))
            if handle is not None:
                handle(node, out)
                continue
            if len(results) != 1 or node.attrs or (regions and not are_shared(op, regions)):
                self.plain(node, out)
                continue
            # The fast path of `plain`, inlined for the many ordinary nodes.
            value = results[0]
            operands = tuple([became.get(v, v) for v in node.operands])
            made = Node(op, operands, (value.type,), regions, (), node.loc)
            add(made)
            new = became[value] = made.results[0]
            cell = cells.get(value)
            if cell is not None and (sharding := closed[cell]) is not None:
                table[new] = sharding

    def place(self, out: list[Node]) -> list[Node]:
        """The nodes of a region with the inserted ones."""
        nodes: list[Node] = []
        for node in out:
            nodes.append(node)
            if node in self.after:
                nodes.extend(reversed(self.after.pop(node)))
        return nodes

    def put_after(self, value: Value, nodes: list[Node]) -> None:
        """Insert nodes right after a value, before those inserted earlier."""
        # MLIR inserts right after the definition, so later insertions come first. `after` is kept
        # in reverse, since appending is cheaper.
        held = self.starts[value] if value.node is None else self.after.setdefault(value.node, [])
        if value.node is None:
            held[:0] = nodes
        else:
            held.extend(reversed(nodes))

    # Nodes

    def read(self, node: Node) -> tuple[Value, ...]:
        became = self.became
        return tuple([became.get(v, v) for v in node.operands])

    def raw(self, values: tuple[Value, ...]) -> list[Sharding | None]:
        """The propagated shardings of values; None inside the body of a reduction."""
        raw, cells = self.state.raw, self.cells
        return [raw[cells[v]] if v in cells else None for v in values]

    def emit(self, node: Node, op: Op, operands: tuple[Value, ...], out: list[Node]) -> Node:
        """Append a node in place of another."""
        regions = node.regions
        if regions:
            args = self.ended(node) if isinstance(op, While) else None
            regions = tuple([r if is_shared(op, r) else self.region(r, args) for r in regions])
        made = Node(op, operands, node.types, regions, unsharded(node.attrs), node.loc)
        out.append(made)
        self.became.update(zip(node.results, made.results, strict=True))
        return made

    def ended(self, node: Node) -> list[Sharding | None]:
        """The closed shardings of a node's results: for all of them, or none."""
        if len(node.results) == 1:
            cell = self.cells.get(node.results[0])
            return [None if cell is None else self.closed[cell]]
        given = filled(self.raw(node.results), node.types)
        return [closed(s) if s is not None else None for s in given]

    def plain(self, node: Node, out: list[Node], op: Op | None = None) -> Node:
        """A node on its new operands, optionally as another op."""
        if len(node.results) == 1 and not node.regions:
            return self.single(node, op or node.op, out)
        new = self.emit(node, op or node.op, self.read(node), out)
        for value, sharding in zip(new.results, self.ended(node), strict=True):
            if sharding is not None:
                self.table[value] = sharding
        return new

    def single(self, node: Node, op: Op, out: list[Node]) -> Node:
        """`plain` for one result and no regions."""
        value = node.results[0]
        attrs = unsharded(node.attrs)
        copy = Node(op, self.read(node), (value.type,), (), attrs, node.loc)
        out.append(copy)
        new = self.became[value] = copy.results[0]
        cell = self.cells.get(value)
        if cell is not None and (sharding := self.closed[cell]) is not None:
            self.table[new] = sharding
        return copy

    def drop(self, _: Node, __: list[Node]) -> None:
        """Drop a sharding group."""
        self.state.may_be_dead = True

    def constant(self, node: Node, out: list[Node]) -> None:
        """A constant, merged with an equal one of the same sharding in the region."""
        op = node.op
        self.merge(self.state.constant(op) if isinstance(op, Constant) else op, None, node, out)

    def broadcast(self, node: Node, out: list[Node]) -> None:
        """The broadcast of a scalar, merged like a constant; other broadcasts are plain."""
        if not is_scalar(node.operands[0]):
            self.plain(node, out)
            return
        scalar = node.operands[0]
        self.merge(node.op, self.became.get(scalar, scalar), node, out)

    def merge(self, op: Op, scalar: Value | None, node: Node, out: list[Node]) -> None:
        value = node.results[0]
        state = self.state
        cell = self.cells.get(value)
        sharding = None if cell is None else state.same[id(state.raw[cell])]
        # Import split each constant for its uses; those that got the same sharding are one again.
        key = (op, scalar, sharding, node.attrs)
        first = self.merged.get(key)
        if first is None:
            first = self.merged[key] = self.plain(node, out, op).results[0]
        self.became[value] = first

    def constraint(self, node: Node, out: list[Node]) -> None:
        """Turn a constraint into a reshard to its propagated sharding.

        In the body of a reduction, where nothing is split, it is dropped.
        """
        (sharding,) = self.raw(node.results)
        if sharding is None:
            self.became[node.results[0]] = self.read(node)[0]
            return
        self.reshard(self.emit(node, Reshard(closed(sharding)), self.read(node), out))

    def reshard(self, made: Node) -> Value:
        assert isinstance(made.op, Reshard)
        self.table[made.results[0]] = made.op.sharding
        return made.results[0]

    def resharded(self, value: Value, sharding: Sharding, loc: Location) -> Node:
        """A new reshard of a value."""
        made = Node(Reshard(sharding), (value,), (value.type,), loc=loc)
        self.reshard(made)
        return made

    def toward(self, value: Value, sharding: Sharding, loc: Location) -> list[Node]:
        """The nodes that reshard a value."""
        return [self.resharded(value, sharding, loc)]

    def carried(self, node: Node, out: list[Node]) -> None:
        """Control flow, which may be dead once its edges are gone."""
        self.state.may_be_dead = True
        self.plain(node, out)

    def manual(self, node: Node, out: list[Node]) -> None:
        """A manual computation: its manual axes are visible only outside."""
        op = node.op
        assert isinstance(op, ManualComputation)
        self.state.may_be_dead = True
        (body,) = node.regions
        names = manual_names(op)
        inside = self.raw(body.args)
        ins = [
            self.state.divided(ManualFrame(given, names, False).extended(inner or given), v.type)
            for given, inner, v in zip(op.in_shardings, inside, node.operands, strict=True)
        ]
        outs = [
            self.state.divided(held or given, v.type)
            for given, held, v in zip(
                op.out_shardings, self.raw(node.results), node.results, strict=True
            )
        ]
        operands = self.read(node)
        inner = self.region(body, [erased(s, names) for s in ins])
        computation = Node(
            op.replace(in_shardings=tuple(ins), out_shardings=tuple(outs)),
            operands,
            node.types,
            (inner,),
            unsharded(node.attrs),
            node.loc,
        )
        out.append(computation)
        self.became.update(zip(node.results, computation.results, strict=True))
        self.table.update(zip(computation.results, outs, strict=True))

    # Calls

    def call(self, node: Node, out: list[Node]) -> None:
        """A call of the specialized function; operands and results are resharded if needed."""
        state = self.state
        policy = state.plan.chosen[self.sites[node]]
        operands = self.arguments(node, policy)
        calling = Node(
            Call(policy.name, node.types),
            operands,
            node.types,
            (),
            unsharded(node.attrs),
            node.loc,
        )
        out.append(calling)
        self.became.update(zip(node.results, calling.results, strict=True))
        # In Shardy's text a node has shardings for all of its results or for none.
        wanted = filled(self.raw(node.results), node.types)
        callee = filled(policy.results, node.types)
        known = next((s for s in (*callee, *wanted) if s is not None), None)
        if known is None:
            return
        reshards: list[Node] = []
        for before, value, has, wants in zip(
            node.results, calling.results, callee, wanted, strict=True
        ):
            has = has or unsplit(value.type, known.mesh)
            # The callee's own sharding first; what the caller wants is a reshard behind the call,
            # as in Shardy's export.
            self.table[value] = state.passed(has, value.type)
            if not splits_alike(has, wants):
                target = closed(wants) if wants else unsplit(value.type, known.mesh)
                nodes = self.toward(value, target, node.loc)
                self.became[before] = nodes[-1].results[0]
                # In front of earlier ones: MLIR inserts each right behind the call.
                reshards[:0] = nodes
                state.may_be_dead = True
        out.extend(reshards)

    def arguments(self, node: Node, flat_call: FlatCall) -> tuple[Value, ...]:
        """The operands of a call, in the shardings of the arguments."""
        operands = self.read(node)
        given = [self.table.get(v) for v in operands]
        targets = self.state.arguments[flat_call]
        if None in targets:  # no argument has a sharding
            known = next((s for s in given if s is not None), None)
            if known is None:
                return operands
            targets = [unsplit(v.type, known.mesh) for v in operands]
        read: list[Value] = []
        for value, target in zip(operands, targets, strict=True):
            nodes, value = self.settled(value, target, node.loc)
            if not splits_alike(self.table.get(value), target):
                assert target is not None
                nodes = [*nodes, self.resharded(value, target, node.loc)]
            if nodes:
                self.put_after(operands[len(read)], nodes)
                value = nodes[-1].results[0]
            read.append(value)
        return tuple(read)

    # Dots and concatenations

    def dot(self, node: Node, out: list[Node]) -> None:
        """A dot, resharded if its result is split by the axes that it reduces over."""
        product = self.plain(node, out)
        (value,) = product.results
        own = self.table.get(value)
        # An unsplit result cannot conflict with the axes that are summed over.
        if own is None or not any(d.axes for d in own.dims):
            return
        lhs, rhs = [self.table.get(v) for v in product.operands]
        if lhs is None or rhs is None:
            return
        # By id: the table keeps shardings alive, and hashing one walks all its axes.
        key = (product.op, product.operand_types, id(lhs), id(rhs), id(own))
        memo = self.state.memo
        if key not in memo:
            memo[key] = self.dot_result(product, [lhs, rhs, own])
        if (result := memo[key]) is not None:
            self.table[value] = result
            out.append(self.resharded(value, own, node.loc))
            # Readers get the reshard's result; the dot itself keeps a sharding that its operands
            # allow.
            self.became[node.results[0]] = out[-1].results[0]

    def dot_result(self, node: Node, shardings: list[Sharding | None]) -> Sharding | None:
        found = self.common_mesh(shardings)
        if found is None:
            return None
        name, mesh = found
        types = (*node.operand_types, *node.types)
        return dot_result(rule_of(node.op, node.operand_types), shardings, types, name, mesh)

    def common_mesh(self, shardings: list[Sharding | None]) -> tuple[str | Mesh, Mesh] | None:
        """The common mesh of some shardings, if it has axes."""
        names = dict.fromkeys(s.mesh for s in shardings if s is not None)
        if len(names) != 1:
            return None
        known = next(s for s in shardings if s is not None)
        mesh = self.state.mesh(known)
        return (known.mesh, mesh) if mesh.axes else None

    def behind_barrier(self, value: Value) -> Sharding | None:
        """The sharding of a value, looking through propagation barriers."""
        while value.node is not None and isinstance(value.node.op, PropagationBarrier):
            (value,) = value.node.operands
        return self.table.get(value)

    def concatenate(self, node: Node, out: list[Node]) -> None:
        """A concatenation with its operands and result resharded to a common sharding."""
        own = self.closed[self.cells[node.results[0]]] if node.results[0] in self.cells else None
        shardings = [*[self.table.get(self.became.get(v, v)) for v in node.operands], own]
        common = self.common_mesh(shardings)
        if common is None or all(s == own for s in shardings):
            self.plain(node, out)
            return
        # Only now: reading may insert reductions of unreduced operands.
        operands = self.read(node)
        shardings = [*[self.table.get(v) for v in operands], own]
        held = [*[self.behind_barrier(v) for v in operands], own]
        name, mesh = common
        rule = rule_of(node.op, node.operand_types)
        types = (*node.operand_types, *node.types)
        wanted = consistent_shardings(rule, shardings, held, types, name, mesh)
        read = []
        for value, target in zip(operands, wanted, strict=False):
            if target is not None:
                out.append(self.resharded(value, target, node.loc))
                value = out[-1].results[0]
            read.append(value)
        joined = self.emit(node, node.op, tuple(read), out)
        (value,) = joined.results
        if own is not None:
            self.table[value] = own
        if (target := wanted[-1]) is not None:
            self.table[value] = target
            reshard = self.resharded(value, own or unsplit(value.type, name), node.loc)
            out.append(reshard)
            self.became[node.results[0]] = reshard.results[0]

    # Unreduced values

    def settled(self, value: Value, target: Sharding | None, loc: Location) -> NodesAndValue:
        """A hook for values read with a target sharding; nothing here."""
        return [], value


def unsharded(attrs: Attrs) -> Attrs:
    """The attributes without the sharding, which is in the side table."""
    return tuple([a for a in attrs if a[0] != SHARDING]) if attrs else attrs
