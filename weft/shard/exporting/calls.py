"""Specialized functions: one for each distinct sharding of a function's arguments and results,
named and ordered as in Shardy.

Shardy flattens all calls, propagates, and outlines a function per call again, inner calls first;
then calls of one function with equal shardings share the first of these.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from weft.ir.attrs import Attrs
from weft.ir.location import Location
from weft.ir.module import Node, Region, Value
from weft.mesh import Sharding
from weft.ops.control import Call, OptimizationBarrier
from weft.ops.distributed.sharding import NamedComputation
from weft.records import dataclass
from weft.shard.closing import GivenShardings, filled
from weft.shard.propagation.graph import Graph, Instance

CallKey = tuple[object, ...]


@dataclass(eq=False, slots=True)
class FlatCall:
    """One call of the flattened program."""

    origin: str  # the callee's original name
    instance: Instance  # the instance with the cells of the body
    body: Region
    args: GivenShardings
    results: GivenShardings
    attrs: Attrs
    loc: Location
    inner: dict[Node, FlatCall]  # the calls in the body
    name: str = ""


@dataclass(slots=True)
class CallPlan:
    """The calls of every root, and their specialized functions."""

    roots: list[dict[Node, FlatCall]] = field(default_factory=list)
    functions: list[FlatCall] = field(default_factory=list)
    chosen: dict[FlatCall, FlatCall] = field(
        default_factory=dict
    )  # from a call to the one whose function it shares


def plan_calls(graph: Graph, shardings: list[Sharding | None], names: Iterable[str]) -> CallPlan:
    """Name every call of the flattened program; calls with equal shardings share a function."""
    collector = _Collector(shardings, set(names))
    plan = CallPlan([collector.sites(r, r.function.body) for r in graph.roots])
    known: dict[CallKey, FlatCall] = {}
    for sites in (*plan.roots, *[site.inner for site in collector.named]):
        for site in sites.values():
            plan.chosen[site] = known.setdefault(_key(site), site)
    # Of equal calls the first one names the function; functions that no such call reaches are left
    # out.
    used: dict[FlatCall, None] = {}
    waiting = [site for sites in plan.roots for site in sites.values()]
    while waiting:
        chosen = plan.chosen[waiting.pop()]
        if chosen not in used:
            used[chosen] = None
            waiting.extend(chosen.inner.values())
    plan.functions = [site for site in collector.named if site in used]
    return plan


def _key(site: FlatCall) -> CallKey:
    args = filled(site.args, [v.type for v in site.body.args])
    results = filled(site.results, [v.type for v in site.body.results])
    return (site.origin, tuple(args), tuple(results))


class _Collector:
    """Walks the flattened program, inner calls first, and names the calls."""

    def __init__(self, shardings: list[Sharding | None], names: set[str]) -> None:
        self.shardings = shardings
        self.taken = names
        self.counter = 0
        self.named: list[FlatCall] = []
        self.calls: dict[Region, list[Node]] = {}

    def sites(self, instance: Instance, body: Region) -> dict[Node, FlatCall]:
        """The calls in a body, named, with their own calls."""
        return {node: self.site(instance, node) for node in self.calls_in(body)}

    def site(self, instance: Instance, node: Node) -> FlatCall:
        if isinstance(node.op, NamedComputation):
            origin, body, loc = node.op.name_, node.regions[0], node.loc
            attrs: Attrs = ()
        else:
            assert isinstance(node.op, Call)
            instance = instance.calls[node]
            called = instance.function
            origin, body, loc = called.name, called.body, called.loc
            attrs = called.attrs
        args = [self.shardings[instance.cells[v]] for v in body.args]
        site = FlatCall(
            origin,
            instance,
            body,
            filled(args, [v.type for v in body.args]),
            [],
            attrs,
            loc,
            self.sites(instance, body),
        )
        site.results = [self.returned(site, v) for v in body.results]
        site.name = self.unique(origin)
        self.named.append(site)
        return site

    def returned(self, site: FlatCall, value: Value) -> Sharding | None:
        """The sharding of a returned value, as one of several results."""
        found = self.shardings[site.instance.cells[value]]
        if found is not None:
            return found
        if value.node is None:
            return site.args[value.index] if value in site.body.args else None
        if len(value.node.results) == 1 or value.node.regions:
            return None
        if isinstance(value.node.op, OptimizationBarrier):  # each result has its own edge
            return None
        given = [self.shardings[site.instance.cells[v]] for v in value.node.results]
        return filled(given, value.node.types)[value.index]

    def unique(self, name: str) -> str:
        """The name, with a number appended if it is taken."""
        candidate = name
        while candidate in self.taken:
            candidate = f"{name}_{self.counter}"
            self.counter += 1
        self.taken.add(candidate)
        return candidate

    def calls_in(self, body: Region) -> list[Node]:
        """The calls in a body, in program order; without those inside a named computation."""
        calls = self.calls.get(body)
        if calls is None:
            calls = self.calls[body] = []
            _collect(body, calls)
        return calls


def _collect(region: Region, nodes: list[Node]) -> None:
    for node in region.nodes:
        kind = type(node.op)
        if kind is Call or kind is NamedComputation:
            nodes.append(node)
        elif node.regions:
            for inner in node.regions:
                _collect(inner, nodes)
