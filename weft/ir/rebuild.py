"""Rewriting: passes rebuild a module forward, sharing what does not change."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TypeAlias

from weft.ir.location import fuse
from weft.ir.module import Function, Module, Node, Region, Value
from weft.ir.op import Op

Rewritten: TypeAlias = Node | tuple[Value, ...] | None
NodeRule: TypeAlias = Callable[[Node], Rewritten]
_ROUNDS = 64  # a rule that keeps changing its own result for longer is wrong


def rewrite(module: Module, *rules: NodeRule, kinds: Collection[type[Op]] | None = None) -> Module:
    """Offer every node to the rules, operands first, until none of them changes it.

    With `kinds`, only nodes of these ops are offered.

    A rule returns None ("not mine"), a node to stand in its place (the new nodes that it reads are
    put before it), or the values that replace its results (new nodes that make them are put in its
    place). Side tables follow their values.
    """
    return Rebuild(module, rules, kinds=kinds).module()


def without(module: Module, dropped: set[Node]) -> Module:
    """The module without these nodes, whose results nothing else reads."""
    return Rebuild(module, (), dropped).module() if dropped else module


class Rebuild:
    """One forward rebuild of a module: what every old value has become."""

    def __init__(
        self,
        module: Module,
        rules: tuple[NodeRule, ...],
        dropped: Collection[Node] = (),
        kinds: Collection[type[Op]] | None = None,
    ) -> None:
        self.old = module
        self.rules = rules
        self.dropped = dropped
        self.kinds = kinds
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
        if not self.rules or (self.kinds is not None and type(node.op) not in self.kinds):
            self.renew(node, out)
            return
        current = self.renewed(node)
        values: tuple[Value, ...] = current.results
        for _ in range(_ROUNDS):
            changed = self.offer(current)
            if changed is None:
                self.emit(current, out)
                break
            if isinstance(changed, tuple):
                values = changed
                self.emit_new(values, out)
                break
            current = changed
            values = current.results
        else:
            raise AssertionError(f"rules never come to rest on {node!r}")
        for before, after in zip(node.results, values, strict=True):
            assert before.type is after.type, f"a rule changed {before!r} into {after!r}"
            if before is not after:
                self.became[before] = after

    def renew(self, node: Node, out: list[Node]) -> None:
        """Emit a node on what its operands have become."""
        current = self.renewed(node)
        if current is not node:
            if len(node.results) == 1:
                self.became[node.results[0]] = current.results[0]
            else:
                self.became.update(zip(node.results, current.results, strict=True))
            if self.rules:
                self.placed.add(current)
        out.append(current)

    def renewed(self, node: Node) -> Node:
        """The node on the values that its operands have become."""
        became = self.became
        operands = node.operands
        for value in operands:
            if value in became:
                operands = tuple([became.get(v, v) for v in operands])
                break
        if not node.regions:
            return node if operands is node.operands else node.rebuilt(operands, ())
        regions = tuple([self.region(r) for r in node.regions])
        if operands is node.operands and regions == node.regions:
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
            self.emit_new(node.operands, out)
        out.append(node)

    def emit_new(self, values: tuple[Value, ...], out: list[Node]) -> None:
        """Append the new nodes that make these values."""
        for value in values:
            if value.node is not None and value.node not in self.placed:
                self.emit(value.node, out)


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
