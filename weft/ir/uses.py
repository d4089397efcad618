"""Uses of values: by nodes, by their regions, and the last use (the end of a live range)."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from weft.ir.module import Node, Region, Value

Deaths: TypeAlias = tuple[tuple[Value, ...], ...]
_DEATHS: weakref.WeakKeyDictionary[Region, Deaths] = weakref.WeakKeyDictionary()


def reads(node: Node) -> Iterable[Value]:
    """The values that a node or its regions read."""
    return (*node.operands, *read_inside(node)) if node.regions else node.operands


def read_inside(node: Node) -> Iterator[Value]:
    """Every value that a node's regions read, including those that they define."""
    for region in node.regions:
        for inner in region.nodes:
            yield from inner.operands
            if inner.regions:
                yield from read_inside(inner)
        yield from region.results


def free_variables(node: Node) -> tuple[Value, ...]:
    """The free variables of a node's regions: outer values that they read."""
    captured: dict[Value, None] = {}
    inside: set[Value] = set()
    for region in node.regions:
        _captured(region, inside, captured)
    return tuple(captured)


def _captured(region: Region, inside: set[Value], captured: dict[Value, None]) -> None:
    inside.update(region.args)
    for node in region.nodes:
        captured.update(dict.fromkeys(v for v in node.operands if v not in inside))
        for inner in node.regions:
            _captured(inner, inside, captured)
        inside.update(node.results)
    captured.update(dict.fromkeys(v for v in region.results if v not in inside))


def last_reads(region: Region) -> dict[Value, int]:
    """The position of the last node that reads each value, itself or in its regions."""
    last: dict[Value, int] = {}
    for position, node in enumerate(region.nodes):
        for value in node.operands:
            last[value] = position
        if node.regions:
            last.update(dict.fromkeys(read_inside(node), position))
    return last


def last_uses(region: Region) -> Deaths:
    """For each node, the values of this region whose live range ends at it."""
    found = _DEATHS.get(region)
    if found is None:
        found = _DEATHS[region] = _deaths(region)
    return found


def _deaths(region: Region) -> Deaths:
    last, results = last_reads(region), set(region.results)
    dead: list[list[Value]] = [[] for _ in region.nodes]
    for value in region.args:
        if value in last and value not in results:
            dead[last[value]].append(value)
    for position, node in enumerate(region.nodes):
        for value in node.results:
            if value not in results:
                # A result that nothing reads dies where it is computed.
                dead[last.get(value, position)].append(value)
    return tuple([tuple(values) for values in dead])
