"""What a node reads: its operands, and what its regions see of the values around them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from weft.ir.module import Node, Region, Value


def reads(node: Node) -> Iterable[Value]:
    """The values that a node reads, those that are read inside its regions included."""
    if not node.regions:
        return node.operands
    found = list(node.operands)
    for region in node.regions:
        found.extend(_inside(region))
    return found


def _inside(region: Region) -> Iterator[Value]:
    for node in region.nodes:
        yield from node.operands
        for inner in node.regions:
            yield from _inside(inner)
    yield from region.results


def captures(node: Node) -> set[Value]:
    """The values around a node that its regions see."""
    found: set[Value] = set()
    for region in node.regions:
        found |= set(_inside(region)) - set(_defined(region))
    return found


def _defined(region: Region) -> Iterator[Value]:
    yield from region.args
    for node in region.nodes:
        yield from node.results
        for inner in node.regions:
            yield from _defined(inner)
