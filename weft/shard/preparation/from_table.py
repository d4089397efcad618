"""From the side table of shardings back to annotations, for a second propagation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.ir.attrs import Attrs
from weft.ir.module import Function, Module, Node, Region, Value
from weft.ir.names import SHARDING
from weft.ir.write import SHARDINGS, holds_shardings
from weft.mesh import Sharding
from weft.ops.distributed.annotations import per_value
from weft.shard.closing import filled


def annotate_from_table(module: Module) -> Module:
    """Write the side table of shardings, if any, as attributes."""
    table = module.tables.get(SHARDINGS)
    if not table:
        return module
    known = {v: s for v, s in table.items() if isinstance(s, Sharding)}
    functions = {name: _Annotator(known).function(f) for name, f in module.functions.items()}
    tables = {name: other for name, other in module.tables.items() if name != SHARDINGS}
    return replace(module, functions=functions, tables=tables)


class _Annotator:
    """Rebuilds one function."""

    def __init__(self, table: Mapping[Value, Sharding]) -> None:
        self.table = table
        self.became: dict[Value, Value] = {}

    def function(self, function: Function) -> Function:
        """The function with attributes on its arguments and nodes."""
        attrs: list[Attrs] = []
        old = function.arg_attrs or ((),) * len(function.body.args)
        for value, given in zip(function.body.args, old, strict=True):
            sharding = self.table.get(value)
            more = () if sharding is None else ((SHARDING, str(sharding)),)
            attrs.append(tuple(sorted((*given, *more))))
        arg_attrs = tuple(attrs) if any(attrs) else ()
        return replace(function, body=self.region(function.body), arg_attrs=arg_attrs)

    def region(self, region: Region) -> Region:
        nodes = [self.node(node) for node in region.nodes]
        results = tuple([self.became.get(v, v) for v in region.results])
        return Region(region.args, nodes, results, region.loc, region.arg_locs)

    def node(self, node: Node) -> Node:
        operands = tuple([self.became.get(v, v) for v in node.operands])
        regions = tuple([self.region(r) for r in node.regions])
        attrs = node.attrs
        given = filled([self.table.get(v) for v in node.results], node.types)
        if any(given) and not holds_shardings(type(node.op)):
            text = per_value([s for s in given if s is not None])
            attrs = tuple(sorted((*attrs, (SHARDING, text))))
        made = Node(node.op, operands, node.types, regions, attrs, node.loc)
        self.became.update(zip(node.results, made.results, strict=True))
        return made
