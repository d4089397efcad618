"""Drop nodes whose results nothing reads."""

from __future__ import annotations

from weft.ir.module import Module, Node, Region, Value
from weft.ir.purity import is_pure, pure_functions
from weft.ir.rebuild import without


def drop_dead(module: Module) -> Module:
    """Remove every node without effect whose results are not read, last ones first."""
    pure = pure_functions(module)
    dead: set[Node] = set()
    for function in module.functions.values():
        _mark(function.body, set(), pure, dead)
    return without(module, dead)


def _mark(region: Region, live: set[Value], pure: set[str], dead: set[Node]) -> None:
    """Collect the dead nodes of a region, walking backward; what it reads becomes live."""
    live.update(region.results)
    for node in reversed(region.nodes):
        if live.isdisjoint(node.results) and is_pure(node, pure):
            dead.add(node)
            continue
        live.update(node.operands)
        for inner in node.regions:
            _mark(inner, live, pure, dead)
