"""Rewriting: passes rebuild a module in program order and share unchanged functions and nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cached_property
from typing import TypeAlias

from weft.ir.location import fuse
from weft.ir.module import Function, Module, Node, Region, Value
from weft.ir.op import Op

Rewritten: TypeAlias = Node | tuple[Value, ...] | None
NodeRule: TypeAlias = Callable[[Node], Rewritten]
_ROUNDS = 64  # more rewrites of one node than this are a cycle of rules


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
    """One rebuild of a module in program order, with the map from old to new values."""

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
        self.emitted: set[Node] = set()  # nodes that are not in the old module

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
        # Unchanged regions and functions are the same objects: passes, and tests of "nothing
        # changed", compare by identity.
        if results == region.results and out == region.nodes:
            return region
        return Region(region.args, out, results, region.loc, region.arg_locs)

    def node(self, node: Node, out: list[Node]) -> None:
        """Rebuild one node, offer it to the rules, and append the outcome."""
        current = self.renewed(node)
        changed = self.offer(current) if self.rules and self.is_offered(current) else None
        if changed is not None:
            self.becomes(node, self.settled(node, changed, out))
            return
        if current is not node:
            self.emitted.add(current)
            self.became.update(zip(node.results, current.results))  # noqa: B905  # it was rebuilt
        out.append(current)

    def is_offered(self, node: Node) -> bool:
        """Whether a rule may apply to a node, by its op."""
        return self.kinds is None or type(node.op) in self.kinds

    def becomes(self, node: Node, values: tuple[Value, ...]) -> None:
        """Map the results of a node to new values."""
        for before, after in zip(node.results, values, strict=True):
            # Types are interned.
            assert before.type is after.type, f"a rule changed {before!r} into {after!r}"
            if before is not after:
                self.became[before] = after

    def renewed(self, node: Node) -> Node:
        """The node on the new values of its operands."""
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

    # The outcome of rules

    def offer(self, node: Node) -> Rewritten:
        """The outcome of the first rule that applies, with the node's location if it has none."""
        for rule in self.rules:
            changed = rule(node)
            if changed is not None:
                if isinstance(changed, Node) and not changed.loc.known:
                    changed.loc = fuse(node.loc)
                return changed
        return None

    def settled(self, node: Node, changed: Rewritten, out: list[Node]) -> tuple[Value, ...]:
        """The values that replace a node's results, at the fixed point of the rules."""
        for _ in range(_ROUNDS):
            if isinstance(changed, tuple):
                self.emit_producers(changed, out)
                return changed
            assert changed is not None
            current, changed = changed, self.offer(changed)
            if changed is None:
                self.emit_new(current, out)
                return current.results
        raise AssertionError(f"rules reach no fixed point on {node!r}")

    def emit_new(self, node: Node, out: list[Node]) -> None:
        """Append a node created by a rule, after the new nodes that it reads."""
        self.emitted.add(node)
        self.emit_producers(node.operands, out)
        out.append(node)

    def emit_producers(self, values: tuple[Value, ...], out: list[Node]) -> None:
        """Append the new nodes that produce these values."""
        for value in values:
            node = value.node
            # Nodes of the old module stand before this one already.
            if node is not None and node not in self.emitted and node not in self.old_nodes:
                self.emit_new(node, out)

    @cached_property
    def old_nodes(self) -> set[Node]:
        """The nodes of the old module."""
        return set(self.old.nodes())


def carry_tables(module: Module, became: dict[Value, Value]) -> Module:
    """The module with its side tables moved from old to new values."""
    if not module.tables:
        return module
    tables: dict[str, dict[Value, object]] = {}
    for name, table in module.tables.items():
        carried = tables[name] = {}
        for value, fact in table.items():
            # Two values may have become one: the fact of the first is kept.
            carried.setdefault(became.get(value, value), fact)
    return replace(module, tables=tables)
