"""Common subexpression elimination: equal nodes on equal values become one."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from weft.ir.gc_pause import without_gc
from weft.ir.module import Function, Module, Node, Region, Value
from weft.ir.op import Op
from weft.ir.purity import is_pure, pure_functions
from weft.ir.rebuild import carry_tables

KnownNodes: TypeAlias = dict[object, Node]


def cse(module: Module) -> Module:
    """Merge every node without side effect into an equal, earlier node that dominates it.

    Collectives merge, too: any device that reaches the second has executed the first, together with
    its whole group.
    """
    merging = _Merging(pure_functions(module, collectives=True))
    with without_gc():
        functions = {name: merging.function(f) for name, f in module.functions.items()}
        return carry_tables(module.with_functions(functions), merging.became)


class _Merging:
    """One run: the map from old to new values, and the ops that may be merged."""

    def __init__(self, functions: set[str]) -> None:
        self.functions = functions  # pure functions, whose calls may be merged
        self.became: dict[Value, Value] = {}
        self.known: KnownNodes = {}  # the nodes in scope
        self.pure: dict[Op, bool] = {}

    def function(self, function: Function) -> Function:
        """The function with equal nodes merged; the same one if there are none."""
        body = self.region(function.body)
        return function if body is function.body else replace(function, body=body)

    def becomes(self, before: Node, after: Node) -> None:
        """Map the results of one node to those of another."""
        if len(before.results) == 1:
            self.became[before.results[0]] = after.results[0]
        else:
            self.became.update(zip(before.results, after.results, strict=True))

    def region(self, region: Region) -> Region:
        """The region with equal nodes merged, also into nodes of the regions around it."""
        became, known, pure = self.became, self.known, self.pure
        out: list[Node] = []
        added: list[object] = []
        get = became.get
        for node in region.nodes:
            op, operands, regions = node.op, node.operands, node.regions
            if operands:
                operands = tuple([get(v, v) for v in operands])
            if regions:
                regions = tuple([self.region(r) for r in regions])
                # Attributes are part of the key: nodes of different streams or shardings stay
                # apart. Locations are not.
                key: object = (op, operands, node.attrs, *map(_structure, regions))
                mergeable: bool | None = is_pure(node, self.functions, collectives=True)
            else:
                key = (op, operands, node.attrs)
                # By op: without regions purity does not depend on the node.
                mergeable = pure.get(op)
                if mergeable is None:
                    mergeable = pure[op] = is_pure(node, self.functions, collectives=True)
            twin = known.get(key) if mergeable else None
            if twin is not None:
                self.becomes(node, twin)
                continue
            if operands != node.operands or regions != node.regions:
                made = node.rebuilt(operands, regions)
                self.becomes(node, made)
                node = made
            if mergeable:
                known[key] = node
                added.append(key)
            out.append(node)
        for key in added:  # nodes of this region are not in scope outside it
            del known[key]
        results = tuple([get(v, v) for v in region.results])
        if results == region.results and out == region.nodes:
            return region
        return Region(region.args, out, results, region.loc, region.arg_locs)


def _structure(region: Region) -> tuple[object, ...]:
    """An equality key for a region: its nodes, with its own values numbered."""
    numbers: dict[Value, int] = {v: n for n, v in enumerate(region.args)}
    return _numbered(region, numbers)


def _numbered(region: Region, numbers: dict[Value, int]) -> tuple[object, ...]:
    parts: list[object] = [tuple(v.type for v in region.args)]
    for value in region.args:
        numbers.setdefault(value, len(numbers))
    for node in region.nodes:
        # Own values by number, outer ones by identity: regions are equal up to the names of what
        # they define.
        operands = tuple([numbers.get(v, v) for v in node.operands])
        inner = tuple(_numbered(r, numbers) for r in node.regions)
        parts.append((node.op, operands, node.attrs, inner))
        for value in node.results:
            numbers[value] = len(numbers)
    parts.append(tuple([numbers.get(v, v) for v in region.results]))
    return tuple(parts)
