"""Lines for what JAX's own functions do: those of the calls that led to them.

JAX writes each of its functions once, and gives the ops inside only names such as `"max"`.
"""

from __future__ import annotations

from graphlib import TopologicalSorter

from weft.ir.location import UNKNOWN, Location, fuse
from weft.ir.module import Function, Module, walk
from weft.ir.purity import called

_MOST = 8  # calls of one function whose lines are kept


def give_lines_of_calls(module: Module) -> Module:
    """Let every node that knows no line have those of the calls of its function.

    The module has just been read and nobody else holds it, so its nodes are changed in place.
    """
    sites: dict[str, dict[Location, None]] = {name: {} for name in module.functions}
    callees = {name: _callees(f) for name, f in module.functions.items()}
    for name in reversed([*TopologicalSorter(callees).static_order()]):
        place = fuse(*list(sites[name])[:_MOST])
        known: dict[Location, Location] = {}
        for node in walk(module.functions[name].body):
            if node.loc not in known:
                known[node.loc] = _placed(node.loc, place)
            node.loc = known[node.loc]
            callee = called(node.op)
            if callee in sites:
                sites[callee][node.loc] = None
    return module


def _callees(function: Function) -> list[str]:
    return [name for node in walk(function.body) if (name := called(node.op)) is not None]


def _placed(loc: Location, place: Location) -> Location:
    """A location that has a line, by the lines of the calls if it has none of its own."""
    if loc.frames or place is UNKNOWN:
        return loc
    name = loc.name
    return place if name is None else Location(f'"{name}"({place.text})')
