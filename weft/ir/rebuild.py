"""Rewriting: passes rebuild a module forward, sharing what does not change."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TypeAlias

from weft.ir.location import fuse
from weft.ir.module import Function, Module, Node, Region, Value

Rewritten: TypeAlias = Node | tuple[Value, ...] | None
NodeRule: TypeAlias = Callable[[Node], Rewritten]
_ROUNDS = 64  # a rule that keeps changing its own result for longer is wrong


def rewrite(module: Module, *rules: NodeRule) -> Module:
    """Offer every node to the rules, operands first, until none of them changes it.

    A rule returns None ("not mine"), a node to stand in its place (the new nodes that it reads are
    put before it), or the values that replace its results. Side tables follow their values.
    """
    return Rebuild(module, rules).module()


def without(module: Module, dropped: set[Node]) -> Module:
    """The module without these nodes, whose results nothing else reads."""
    return Rebuild(module, (), dropped).module() if dropped else module


class Rebuild:
    """One forward rebuild of a module: what every old value has become."""

    def __init__(
        self, module: Module, rules: tuple[NodeRule, ...], dropped: Collection[Node] = ()
    ) -> None:
        self.old = module
        self.rules = rules
        self.dropped = dropped
        self.became: dict[Value, Value] = {}
        self.placed = set(module.nodes()) if rules else set()  # nodes that stand somewhere

    def module(self) -> Module:
        """The rebuilt module."""
        functions = {n: self.function(f) for n, f in self.old.functions.items()}
        return carry_tables(self.old.with_functions(functions), self.became)

    def function(self, function: Function) -> Function:
        """The rebuilt function; the same one if nothing in it changed."""
        body = self.region(function.body)
        return function if body is function.body else replace(function, body=body)

    def region(self, region: Region) -> Region:
        """The rebuilt region; the same one if nothing in it changed."""
        out: list[Node] = []
        for node in region.nodes:
            if node not in self.dropped:
                self.node(node, out)
        results = tuple([self.became.get(v, v) for v in region.results])
        if results == region.results and out == region.nodes:
            return region
        return Region(region.args, out, results, region.loc, region.arg_locs)

    def node(self, node: Node, out: list[Node]) -> None:
        """Rebuild one node, offer it to the rules, and emit what comes of it."""
        current = self.renewed(node)
        values: tuple[Value, ...] = current.results
        for _ in range(_ROUNDS):
            changed = self.offer(current)
            if changed is None:
                self.emit(current, out)
                break
            if isinstance(changed, tuple):
                values = changed
                break
            current = changed
            values = current.results
        else:
            raise AssertionError(f"rules never come to rest on {node!r}")
        for before, after in zip(node.results, values, strict=True):
            assert before.type is after.type, f"a rule changed {before!r} into {after!r}"
            if before is not after:
                self.became[before] = after

    def renewed(self, node: Node) -> Node:
        """The node on the values that its operands have become."""
        became = self.became
        operands = tuple([became.get(v, v) for v in node.operands])
        regions = tuple([self.region(r) for r in node.regions]) if node.regions else ()
        if operands == node.operands and regions == node.regions:
            return node
        return node.rebuilt(operands, regions)

    def offer(self, node: Node) -> Rewritten:
        """What the first rule that wants the node makes of it; locations are never lost."""
        for rule in self.rules:
            changed = rule(node)
            if changed is not None:
                if isinstance(changed, Node) and not changed.loc.known:
                    changed.loc = fuse(node.loc)
                return changed
        return None

    def emit(self, node: Node, out: list[Node]) -> None:
        """Append a node, the new nodes that it reads first."""
        if self.rules:
            self.placed.add(node)
            for value in node.operands:
                if value.node is not None and value.node not in self.placed:
                    self.emit(value.node, out)
        out.append(node)


def carry_tables(module: Module, became: dict[Value, Value]) -> Module:
    """The module with its side tables about what its values have become."""
    if not module.tables:
        return module
    tables: dict[str, dict[Value, object]] = {}
    for name, table in module.tables.items():
        carried = tables[name] = {}
        for value, fact in table.items():
            carried.setdefault(became.get(value, value), fact)
    return replace(module, tables=tables)
