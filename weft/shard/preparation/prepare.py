"""Shardy's import passes, in their order: the outcome of propagation depends on it."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import field

from weft.errors import WeftError
from weft.ir.gc_pause import without_gc
from weft.ir.module import Module, Node, Region, Value
from weft.mesh import Sharding
from weft.ops.control import Call
from weft.ops.distributed.sharding import ManualComputation, ShardingConstraint, ShardingGroup
from weft.ops.function_summaries import NAMING, FunctionSummaries
from weft.records import dataclass
from weft.shard.manual import name_manual_axes
from weft.shard.meshes import drop_size_one_axes, lift_meshes
from weft.shard.preparation.apply_constraints import apply_constraints
from weft.shard.preparation.edits import Edits, Use, edited
from weft.shard.preparation.groups import MergedGroup, start_groups, unite_groups
from weft.shard.preparation.inline_bodies import inline_bodies
from weft.shard.preparation.split_constants import split_constants


@dataclass
class Prepared:
    """A module ready for propagation, with the facts that the graph needs."""

    module: Module
    summaries: FunctionSummaries
    called: frozenset[str] = frozenset()
    given: dict[Value, Sharding] = field(default_factory=dict)  # by constraints and groups
    behind: dict[Value, tuple[Node, ...]] = field(default_factory=dict)
    orders: dict[Value, tuple[Use, ...]] = field(default_factory=dict)
    groups: dict[int, int] = field(default_factory=dict)  # to the one that each is merged into
    conflicts: list[MergedGroup] = field(default_factory=list)  # groups whose members disagree

    @property
    def roots(self) -> int:
        """The number of functions without callers."""
        return sum(name not in self.called for name in self.module.functions)


def prepare(module: Module) -> Prepared:
    """Name the meshes, split constants, apply constraints, and start the sharding groups."""
    with without_gc():
        # The order of Shardy's import pipeline. Bodies are inlined first, since a function that
        # only a reducer calls is unused afterwards; size-1 axes are looked up in lifted meshes;
        # constants are split before constraints are applied, so that a constraint on one use of a
        # constant does not reach its other uses.
        summaries = FunctionSummaries()
        check_calls(module, summaries)
        module = inline_bodies(module, summaries)
        module = lift_meshes(without_unused(module, summaries), summaries)
        module = split_constants(drop_size_one_axes(module, summaries), summaries)
        module = name_manual_axes(without_unused(module, summaries), summaries)
        return _constrained(module, summaries)


def without_unused(module: Module, summaries: FunctionSummaries) -> Module:
    """The module without unused private functions."""
    if all(f.visibility != "private" for f in module.functions.values()):
        return module
    reachable: dict[str, None] = {}
    ahead = [f.name for f in module.functions.values() if f.visibility != "private"]
    while ahead:
        name = ahead.pop()
        if name not in reachable and name in module.functions:
            reachable[name] = None
            ahead.extend(_named(summaries[module.functions[name].body].notable))
    if len(reachable) == len(module.functions):
        return module
    return module.with_functions({n: f for n, f in module.functions.items() if n in reachable})


def _named(nodes: list[Node]) -> list[str]:
    """The functions named by nodes."""
    names: list[str] = []
    for node in nodes:
        if field := NAMING.get(type(node.op)):
            named = getattr(node.op, field)
            names.extend((named,) if isinstance(named, str) else _flat(named or ()))
    return names


def _flat(names: tuple[str | tuple[str, ...], ...]) -> Iterator[str]:
    for name in names:
        yield from (name,) if isinstance(name, str) else name


def check_calls(module: Module, summaries: FunctionSummaries) -> frozenset[str]:
    """The called functions; recursion is an error."""
    calls = {
        name: [n.op.callee for n in summaries[f.body].notable if isinstance(n.op, Call)]
        for name, f in module.functions.items()
    }
    done: set[str] = set()

    def see(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise WeftError(
                f"function {name!r} calls itself",
                help="shardings cannot be propagated through recursion; use a loop",
                loc=module.functions[name].loc,
            )
        if name not in done:
            for callee in calls.get(name, ()):
                see(callee, (*path, name))
            done.add(name)

    for name in calls:
        see(name, ())
    return frozenset(callee for found in calls.values() for callee in found)


_ANNOTATING = (ShardingConstraint, ManualComputation, ShardingGroup)


def _constrained(module: Module, summaries: FunctionSummaries) -> Prepared:
    called = check_calls(module, summaries)
    constraints = {
        name: _annotating(function.body)
        for name, function in module.functions.items()
        if any(isinstance(node.op, _ANNOTATING) for node in summaries[function.body].notable)
    }
    prepared = Prepared(module, summaries, called)
    if not constraints:
        return prepared
    all_edits = {n: _edits(module, n, n in called, nodes) for n, nodes in constraints.items()}
    for name, edits in all_edits.items():
        apply_constraints(edits, constraints[name])
    if any(isinstance(n.op, ShardingGroup) for nodes in constraints.values() for n in nodes):
        groups = unite_groups(_group_ops(module, called, all_edits))
        prepared.groups = {number: group.id for group in groups for number in group.ids}
        prepared.conflicts = start_groups(groups)
    functions = dict(module.functions)
    for name, edits in all_edits.items():
        result = edited(edits)
        functions[name] = result.function
        prepared.given |= result.given
        prepared.behind |= result.behind
        prepared.orders |= result.orders
    prepared.module = module.with_functions(functions)
    return prepared


def _annotating(region: Region) -> list[Node]:
    """The nodes that annotate their operands, inner before outer."""
    nodes: list[Node] = []
    for node in region.nodes:
        for inner in node.regions:
            nodes.extend(_annotating(inner))
        if isinstance(node.op, _ANNOTATING):
            nodes.append(node)
    return nodes


def _edits(module: Module, name: str, called: bool, nodes: list[Node]) -> Edits:
    watched: dict[Value, None] = {}
    for node in nodes:
        watched.update(dict.fromkeys((*node.operands, *node.results)))
    return Edits(module, module.functions[name], called, {value: [] for value in watched})


def _group_ops(
    module: Module, called: Container[str], all_edits: Mapping[str, Edits]
) -> Iterator[tuple[Node, Node | None, Edits]]:
    """Every group op with its enclosing manual computation, calls followed as if inlined."""

    def inside(
        name: str, region: Region, around: Node | None
    ) -> Iterator[tuple[Node, Node | None, Edits]]:
        for node in region.nodes:
            if isinstance(node.op, Call):
                callee = node.op.callee
                yield from inside(callee, module.function(callee).body, around)
            if isinstance(node.op, ShardingGroup):
                yield node, around, all_edits[name]
            for inner in node.regions:
                nested = node if isinstance(node.op, ManualComputation) else around
                yield from inside(name, inner, nested)

    for name, function in module.functions.items():
        if name not in called:
            yield from inside(name, function.body, None)
