"""Expansion to plain StableHLO: mesh axes become lists of devices, Weft's ops decompose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.ir.attrs import Attrs
from weft.ir.module import Function, Module, Node, Region, Value
from weft.ir.rebuild import carry_tables
from weft.mesh import MeshAxes

_OURS = "weft."


def expand_groups(module: Module) -> Module:
    """The local program in plain StableHLO, for its mesh size."""
    expander = _Expander(module)
    functions = {name: expander.function(f) for name, f in module.functions.items()}
    made = replace(module, functions=functions, meshes={})
    return carry_tables(made, expander.became)


class _Expander:
    """Rebuilds the functions of a module, with a map from old to new values."""

    def __init__(self, module: Module) -> None:
        self.meshes = module.meshes
        self.became: dict[Value, Value] = {}

    def function(self, function: Function) -> Function:
        """A function without Weft's own attributes."""
        return replace(
            function,
            body=self.region(function.body),
            arg_attrs=_user_attrs(function.arg_attrs),
            res_attrs=_user_attrs(function.res_attrs),
        )

    def region(self, region: Region) -> Region:
        """A region, node by node."""
        out: list[Node] = []
        for node in region.nodes:
            if node.op.composite:
                self.inline(node, out)
            else:
                self.copy(node, out)
        results = tuple([self.became.get(v, v) for v in region.results])
        return Region(region.args, out, results, region.loc, region.arg_locs)

    def copy(self, node: Node, out: list[Node]) -> Node:
        """The node with its groups as lists."""
        op: Any = node.op
        if isinstance(groups := getattr(op, "replica_groups", None), MeshAxes):
            op = op.replace(replica_groups=groups.lists(self.meshes))
        operands = tuple([self.became.get(v, v) for v in node.operands])
        regions = tuple([self.region(r) for r in node.regions])
        made = Node(op, operands, node.types, regions, node.attrs, node.loc)
        self.became.update(zip(node.results, made.results, strict=True))
        out.append(made)
        return made

    def inline(self, node: Node, out: list[Node]) -> None:
        """Inline the decomposition of an op of Weft's, at its location."""
        op: Any = node.op
        extra = {"regions": node.regions} if node.regions else {}
        body = op.decomposition(op.name, node.operand_types, self.meshes, **extra).body
        given = [self.became.get(v, v) for v in node.operands]
        self.became.update(zip(body.args, given, strict=True))
        for inner in body.nodes:
            self.copy(inner, out).loc = node.loc
        for value, result in zip(node.results, body.results, strict=True):
            self.became[value] = self.became.get(result, result)


def _user_attrs(attrs: tuple[Attrs, ...]) -> tuple[Attrs, ...]:
    return tuple(tuple(a for a in each if not a[0].startswith(_OURS)) for each in attrs)
