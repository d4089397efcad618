"""Source lines for ops in JAX's library functions: those of the call sites.

JAX lowers each of its functions once, and the ops inside have only names such as `"max"`.
"""

from __future__ import annotations

from graphlib import TopologicalSorter

from weft.ir.location import UNKNOWN, Location, fuse
from weft.ir.module import Function, Module, walk
from weft.ir.purity import callee_of

_MOST = 8  # call sites of one function that are kept


def give_lines_of_calls(module: Module) -> Module:
    """Give every node without a line those of the call sites of its function.

    The module has just been read and has no other reference, so its nodes are changed in place.
    """
    sites: dict[str, dict[Location, None]] = {name: {} for name in module.functions}
    callees = {name: _callees(f) for name, f in module.functions.items()}
    for name in reversed([*TopologicalSorter(callees).static_order()]):
        place = fuse(*list(sites[name])[:_MOST])
        known: dict[Location, Location] = {}
        for node in walk(module.functions[name].body):
            if node.loc not in known:
                known[node.loc] = _with_line(node.loc, place)
            node.loc = known[node.loc]
            callee = callee_of(node.op)
            if callee in sites:
                sites[callee][node.loc] = None
    return module


def _callees(function: Function) -> list[str]:
    return [name for node in walk(function.body) if (name := callee_of(node.op)) is not None]


def _with_line(loc: Location, place: Location) -> Location:
    """The location itself if it has a line, else with those of the call sites."""
    if loc.frames or place is UNKNOWN:
        return loc
    name = loc.name
    return place if name is None else Location(f'"{name}"({place.text})')
