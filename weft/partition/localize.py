"""The localizer: rebuilds the functions of a global program op by op on local types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from weft.errors import WeftError
from weft.ir.attrs import Attrs
from weft.ir.location import UNKNOWN, Location
from weft.ir.module import Function, Node, Region, Value
from weft.ir.names import GLOBAL, LOCAL_SHARDING, SHARDING
from weft.ir.op import Op, infer
from weft.ir.rule import Rule
from weft.ir.types import TensorType, Types
from weft.ir.write import node_text
from weft.mesh import Sharding
from weft.mesh.algebra import Axes, DimAxes
from weft.ops.control import Composite
from weft.ops.custom_calls.custom import CustomCall
from weft.ops.distributed.sharding import ManualComputation
from weft.partition.builder import Builder
from weft.partition.node_strategies import (
    free_factors,
    make_strategy,
    own_rules,
    sent_bytes,
    summing,
    versions_of,
)
from weft.partition.notes import Note, gather_notes, replication_notes
from weft.partition.partitioners import PARTITIONERS
from weft.partition.partitioners.joins import fusible_slices_of
from weft.partition.piece import (
    Piece,
    free,
    free_part,
    local_type,
    partial_sum,
    replicated,
    sharding_of,
    split_of,
)
from weft.partition.program import GlobalValue, LocalFunction, ModuleState, NodeStrategy
from weft.partition.remake import is_remade, recomputed_in_split
from weft.partition.reshard import ReshardPlan, plan
from weft.partition.site import NodeSite
from weft.partition.strategy.choose import ShardingProblem, cheapest, moved_bytes
from weft.partition.strategy.dim_classes import rank_of
from weft.partition.strategy.factors import FactorAxes
from weft.partition.structural.regions import read_outside, with_values
from weft.partition.structural.structure import STRUCTURE, splits_of
from weft.partition.unreduced import (
    before_unreduced,
    keeps_unreduced,
    made_unreduced,
    still_unreduced,
    unreduced_of,
)


class Localizer:
    """Rebuilds one function."""

    def __init__(self, program: ModuleState, function: Function) -> None:
        self.program = program
        self.mesh, self.mesh_name = program.mesh, program.mesh_name
        self.old = function
        self.entries: dict[Value, GlobalValue] = {}
        self.builder = Builder(self.mesh, self.mesh_name, prices=program.prices)
        self.manual: frozenset[str] = frozenset()  # manual axes of the enclosing computations
        # Slices that may be fused into the concatenations that read them.
        self.fusible_slices: set[Value] = set()
        self.deferred_slices: set[Value] = set()  # fused into the concatenation that reads them

    # Functions and regions

    def function(self) -> Function:
        """The function on local types."""
        old = self.old
        args = [self.argument(v, self.program.sharding(v)) for v in old.body.args]
        self.nodes(old.body)
        shardings = self.program.result_shardings(old)
        places = dict(zip(old.body.args, old.body.arg_locs, strict=True))
        results = []
        for value, sharding in zip(old.body.results, shardings, strict=True):
            self.builder.loc = self.where(value, places)
            results.append(self.fetch_as(value, sharding))
        return self.finished(tuple(args), results)

    def where(self, value: Value, places: Mapping[Value, Location]) -> Location:
        """The location of a result: of its node, its argument, or the function."""
        own = value.node.loc if value.node else places.get(value, UNKNOWN)
        return next((loc for loc in (own, self.old.body.loc, self.old.loc) if loc.known), own)

    def finished(self, args: tuple[Value, ...], results: list[Piece]) -> Function:
        """The function from the emitted nodes."""
        old = self.old
        values = tuple(p.value for p in results)
        body = Region(args, self.builder.nodes, values, old.body.loc, old.body.arg_locs)
        placed = [self.entries[v].versions[0] for v in old.body.args]
        return replace(
            old,
            body=body,
            arg_attrs=self.attributes(old.arg_attrs, placed),
            res_attrs=self.attributes(old.res_attrs, results),
        )

    def inner(self, function: Function) -> Localizer:
        """A new context for another function."""
        return Localizer(self.program, function)

    def called(self, name: str, pieces: list[Piece]) -> LocalFunction:
        """The specialization of a function for these argument splits; cached."""
        known = self.program.called
        # Specialized for each combination of splits: a function that is called with two of them
        # would otherwise reshard in one of the callers.
        key = (name, self.manual, *[(p.split, p.partial) for p in pieces])
        if key not in known:
            function = self.program.module.function(name)
            inner = self.inner(function)
            inner.manual = self.manual
            known[key] = inner.for_call(pieces)
        return known[key]

    def for_call(self, given: list[Piece]) -> LocalFunction:
        """The function for calls: results keep the splits that they are computed in."""
        args = []
        for value, there in zip(self.old.body.args, given, strict=True):
            local = Value(there.value.type, None, value.index)
            self.define(value, there.moved(local, there.split, there.partial), self.wanted(value))
            args.append(local)
        self.nodes(self.old.body)
        results = [self.first(v) for v in self.old.body.results]
        made = self.finished(tuple(args), results)
        return LocalFunction(self.program.keep(made), tuple(results))

    def attributes(self, old: Sequence[Attrs], placed: list[Piece]) -> tuple[Attrs, ...]:
        """Attributes of arguments and results: shardings and global types."""
        rows = []
        for given, one in zip(old or ((),) * len(placed), placed, strict=True):
            attrs = [(name, text) for name, text in given if name != SHARDING]
            if isinstance(one.type, TensorType):
                attrs.append(
                    (LOCAL_SHARDING, str(sharding_of(one.split, self.mesh_name, one.partial)))
                )
                attrs.append((GLOBAL, str(one.type)))
            rows.append(tuple(sorted(attrs)))
        return tuple(rows)

    def argument(self, value: Value, sharding: Sharding | None) -> Value:
        """A local argument for a global one."""
        type = value.type
        if not isinstance(type, TensorType):
            local = Value(type, None, value.index)
            self.define(value, Piece(local, type, ()), None)  # type: ignore[arg-type]
            return local
        split = split_of(sharding, type.rank)
        partial = partial_sum(sharding.unreduced) if sharding else None
        local = Value(local_type(type, split, self.mesh), None, value.index)
        self.define(value, Piece(local, type, split, partial), split)
        return local

    def define(
        self, value: Value, piece: Piece, asked: DimAxes | None, again: Node | None = None
    ) -> None:
        """Set the piece of a global value."""
        self.entries[value] = GlobalValue(self.builder, asked, [piece], again=again)
        # Inside of a manual computation types are local already: pieces of them say nothing about a
        # global value.
        if self.program.places is not None and not self.manual:
            self.program.places.setdefault(value, []).append(piece)

    def nodes(self, region: Region) -> None:
        """Partition the nodes of a region, in order."""
        self.fusible_slices |= fusible_slices_of(region)
        for node in region.nodes:
            self.builder.loc = node.loc
            try:
                self.node(node)
            except WeftError as error:
                raise error.at(node.loc, node_text(node)) from None

    def region(
        self,
        region: Region,
        shardings: Sequence[Sharding | None],
        results: Sequence[DimAxes | None],
        unreduced: Sequence[Axes] = (),
    ) -> Region:
        """A region on local types, with arguments and results of these splits."""
        outer = self.builder
        # Nodes of a region have their own list; values of outside are resharded where they are
        # defined, once, and not in every iteration.
        self.builder = replace(outer, nodes=[], outer=outer)
        args = [self.argument(v, s) for v, s in zip(region.args, shardings, strict=True)]
        self.nodes(region)
        self.builder.loc = outer.loc
        axes = unreduced or ((),) * len(results)
        pieces = [
            self.fetch(v, split, over) if split is not None else self.first(v)
            for v, split, over in zip(region.results, results, axes, strict=True)
        ]
        body = self.builder
        self.builder = outer
        return Region(
            tuple(args), body.nodes, tuple(p.value for p in pieces), region.loc, region.arg_locs
        )

    # Values

    def wanted(self, value: Value) -> DimAxes | None:
        """The split that the policy sets for a value, or else the propagated one; None without."""
        if not isinstance(value.type, TensorType):
            return None
        overrides = self.program.policy.overrides
        if value in overrides:
            return overrides[value]
        sharding = self.program.sharding(value)
        if sharding is None:
            return replicated(value.type.rank) if value in self.program.propagated else None
        if not sharding.dims:  # a maximal sharding has no dims
            return replicated(value.type.rank)
        # Ids are stable: the table keeps shardings alive.
        split = self.program.shardings.get(id(sharding))
        if split is None:
            split = self.program.shardings[id(sharding)] = split_of(sharding, value.type.rank)
        return split

    def first(self, value: Value) -> Piece:
        """The piece of a value as first computed."""
        return self.entries[value].versions[0]

    def requested_split(self, value: Value) -> DimAxes:
        """The requested split of a value, or else its current one."""
        entry = self.entries[value]
        return entry.versions[0].split if entry.asked is None else entry.asked

    def fetch_as(self, value: Value, sharding: Sharding | None) -> Piece:
        """A value in a sharding, unreduced axes included."""
        if not isinstance(value.type, TensorType):
            return self.first(value)
        unreduced = sharding.unreduced if sharding else ()
        return self.fetch(value, split_of(sharding, value.type.rank), unreduced)

    def fetch(self, value: Value, split: DimAxes, unreduced: Axes = ()) -> Piece:
        """A value in that split, resharded from its cheapest version; cached."""
        entry = self.entries[value]
        placed = entry.versions[0]
        # Splits are interned: most operands are found by identity, without comparing axes.
        if placed.split is split and placed.partial is None and not unreduced:
            return placed
        for placed in entry.versions:
            if (
                placed.split == split
                and (placed.partial.axes if placed.partial else ()) == unreduced
            ):
                return placed
        if not isinstance(value.type, TensorType):
            return entry.versions[0]
        # The builder of the value, not of its reader: a reshard outside of a loop serves all
        # iterations, and other readers find it in `versions`.
        builder, loc = entry.builder, entry.builder.loc
        builder.loc = self.builder.loc
        # A value that was gathered before is sliced for free, instead of being sent again.
        plans = [self.plan(p, split, unreduced) for p in entry.versions]
        least = min(range(len(plans)), key=lambda n: plans[n].cost)
        source, sent = entry.versions[least], plans[least].bytes
        # Cheap values of replicated operands (iotas, masks) are recomputed instead of sent.
        version = self.remade(entry, split) if sent and not unreduced else None
        if version is None:
            self.program.planned += sent
            first = before_unreduced(source, split, unreduced, self.mesh)
            moved = builder.reshard(source, first, still_unreduced(source, unreduced))
            version = made_unreduced(builder, moved, split, unreduced)
        builder.loc = loc
        entry.versions.append(version)
        return version

    def remade(self, entry: GlobalValue, split: DimAxes) -> Piece | None:
        """A value recomputed in another split, if that needs no communication."""
        if entry.again is None:
            return None
        outer, self.builder = self.builder, entry.builder
        self.builder.loc = entry.again.loc
        made = recomputed_in_split(self, entry.again, split)
        self.builder = outer
        return made

    def plan(self, piece: Piece, split: DimAxes, unreduced: Axes) -> ReshardPlan:
        """The cheapest reshard of a value."""
        still = still_unreduced(piece, unreduced)
        first = before_unreduced(piece, split, unreduced, self.mesh)
        ends = (piece.split, unreduced_of(piece), first, still)
        return plan(piece.type, *ends, self.mesh, self.program.prices)

    def regions(self, node: Node) -> tuple[Region, ...]:
        """The scalar regions of a node, with free variables replaced by local values."""
        return tuple([self.scalars(region) for region in node.regions])

    def scalars(self, region: Region) -> Region:
        """A scalar region; its free variables are replicated first."""
        outside = read_outside(region)
        return with_values(
            region, {v: self.fetch(v, replicated(rank_of(v))).value for v in outside}
        )

    def inline_manual(self, node: Node, op: ManualComputation) -> None:
        """Inline the body of a manual computation on local shards."""
        (region,) = node.regions
        names = {axis.name for axis in op.manual_axes}
        for arg, operand, sharding in zip(region.args, node.operands, op.in_shardings, strict=True):
            shard = self.fetch_as(operand, sharding)
            # Manual axes vanish from the types inside: the body computes on local shards along
            # them.
            split = free_part(shard.split, names)
            partial = partial_sum(free(sharding.unreduced, names))
            piece = Piece(shard.value, arg.type, split, partial)  # type: ignore[arg-type]
            self.entries[arg] = GlobalValue(self.builder, split, [piece])
        around, self.manual = self.manual, self.manual | names
        self.nodes(region)
        self.manual = around
        self.builder.loc = node.loc
        for result, value, sharding in zip(
            node.results, region.results, op.out_shardings, strict=True
        ):
            split = splits_of(result, sharding)
            inner = self.fetch(value, free_part(split, names), free(sharding.unreduced, names))
            partial = partial_sum(sharding.unreduced)
            piece = Piece(inner.value, result.type, split, partial)  # type: ignore[arg-type]
            self.define(result, piece, self.wanted(result))

    # Nodes

    def node(self, node: Node) -> None:
        """Partition one node."""
        if keeps_unreduced(self, node):
            return
        special = STRUCTURE.get(type(node.op))
        if special is not None:
            special(self, node)
        else:
            self.compute(node)

    def compute(self, node: Node) -> None:
        """Partition a node by its factors."""
        strategy = self.strategy(node)
        if strategy.plain is not None and self.program.notes is None:
            self.plain(node, strategy, *strategy.plain)
            return
        if self.program.notes is not None:
            self.program.notes.extend(self.noted(node, strategy))
        site = NodeSite(
            self, node, strategy.rule, strategy.chosen, strategy.results, strategy.partial
        )
        site.operands = [
            self.fetch(v, split) for v, split in zip(node.operands, strategy.operands, strict=True)
        ]
        for n, dims in strategy.masks:
            site.mask(n, dims)
        way = PARTITIONERS.get(type(node.op))
        made = way.emit(site) if way is not None else site.plain()
        again = node if strategy.is_remade else None
        for value, placed, wanted in zip(node.results, made, strategy.wanted, strict=True):
            self.define(value, placed, wanted, again)

    def plain(self, node: Node, strategy: NodeStrategy, op: Op, types: Types) -> None:
        """The op itself on local shards, the fast path of most nodes."""
        values = tuple(
            [self.fetch(v, s).value for v, s in zip(node.operands, strategy.operands, strict=True)]
        )
        local_node = Node(op, values, types, (), node.attrs, node.loc)
        self.builder.nodes.append(local_node)
        partial, places = strategy.partial, self.program.places
        again = node if strategy.is_remade else None
        for value, local, split, wanted, state in zip(
            *(node.results, local_node.results, strategy.results, strategy.wanted, strategy.states),
            strict=True,
        ):
            placed = Piece(local, value.type, split, partial)  # type: ignore[arg-type]
            self.entries[value] = GlobalValue(self.builder, wanted, [placed], state, 1, again)
            if places is not None and not self.manual:
                places.setdefault(value, []).append(placed)

    def strategy(self, node: Node) -> NodeStrategy:
        """The strategy of a node: its factor axes and local op."""
        known_entries = self.entries
        entries = [known_entries[v] for v in node.operands]
        wanted = tuple([self.wanted(v) for v in node.results])
        rule = self.given_rule(node)
        number = self.program.numbers.id_of
        # An entry's state determines its type, too.
        key = (
            node.op,
            rule,
            node.bodies if node.regions else node.results[0].type if node.results else None,
            *[e.state if e.seen == len(e.versions) else self.state(e) for e in entries],
            *[number(w) for w in wanted],
        )
        memory, weights = self.program.memory, self.program.weights
        strategy = memory.agreed.get(key) or memory.weighed.get((weights, key))
        if strategy is None:
            versions = tuple([versions_of(entry) for entry in entries])
            asked_of = tuple([self.requested_split(v) for v in node.operands])
            rules = (rule,) if rule else own_rules(node, asked_of)
            known = (node.operand_types, node.types, versions, asked_of, wanted)
            # The policy's weight is for ops with split operands; the first version is the one that
            # was computed.
            is_split = any(any(split) for ((split, _), *_) in versions)
            policy = self.program.policy
            how = (policy.result_weight if is_split else 1.0, policy.avoids_full_gathers)
            problems = [
                ShardingProblem(
                    r,
                    *known,
                    free_factors(node, r),
                    self.mesh,
                    sent_bytes(node, r, self.mesh),
                    *how,
                    self.program.prices,
                )
                for r in rules
            ]
            choice = cheapest(problems)
            strategy = self.finished_strategy(node, choice.problem, choice.axes)
            if choice.is_agreed:
                memory.agreed[key] = strategy
            else:
                memory.weighed[weights, key] = strategy
        self.program.moved += strategy.moved
        return strategy

    def state(self, entry: GlobalValue) -> int:
        """An interned number for the versions and the requested split of a value."""
        if entry.seen != len(entry.versions):
            number = self.program.numbers.id_of
            parts = [number(entry.asked), entry.again is not None]
            parts.append(number(entry.versions[0].type))
            for placed in entry.versions:
                parts += (number(placed.split), number(placed.partial))
            states = self.program.states
            entry.state = states.setdefault(tuple(parts), len(states))
            entry.seen = len(entry.versions)
        return entry.state

    def finished_strategy(
        self, node: Node, problem: ShardingProblem, chosen: FactorAxes
    ) -> NodeStrategy:
        """A strategy, with the local op if nothing else is needed."""
        strategy = make_strategy(problem, chosen, self.program.numbers)
        moved = moved_bytes(problem, strategy.operands, strategy.results)
        strategy = replace(strategy, moved=moved, is_remade=is_remade(node, problem))
        # These take more than one node, or free variables: only a plain op is kept ready.
        if strategy.masks or node.regions or type(node.op) in PARTITIONERS:
            return strategy
        operand_types, result_types = (
            tuple(
                local_type(t, s, self.mesh) if isinstance(t, TensorType) else t
                for t, s in zip(types, splits, strict=True)
            )
            for types, splits in (
                (node.operand_types, strategy.operands),
                (node.types, strategy.results),
            )
        )
        op = node.op.local(operand_types, result_types)
        states = []
        for split, wanted, value in zip(
            strategy.results, strategy.wanted, node.results, strict=True
        ):
            placed = Piece(value, value.type, split, strategy.partial)  # type: ignore[arg-type]
            again = node if strategy.is_remade else None
            states.append(self.state(GlobalValue(self.builder, wanted, [placed], again=again)))
        return replace(strategy, plain=(op, infer(op, operand_types)), states=tuple(states))

    def noted(self, node: Node, strategy: NodeStrategy) -> list[Note]:
        """Add notes on the dims that an op gathers or replicates."""
        asked_of = [self.requested_split(v) for v in node.operands]
        wanted = [self.wanted(v) for v in node.results]
        free = free_factors(node, strategy.rule)
        return [
            *gather_notes(node, strategy.rule, asked_of, strategy.operands, self.mesh),
            *replication_notes(node, strategy.rule, wanted, strategy.results, free),
        ]

    def given_rule(self, node: Node) -> Rule | None:
        """The user's rule of a custom call or composite; its reductions are sums."""
        if self.program.rules is None or not isinstance(node.op, CustomCall | Composite):
            return None
        found = self.program.rules.find(node)
        return None if found is None else summing(found)
