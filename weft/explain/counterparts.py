"""The map between the values of the user's module and those of the prepared module."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import field

from weft.ir.module import Module, Node, Region, Value
from weft.records import dataclass
from weft.shard.kinds import is_constant_expression, is_scalar_expansion


@dataclass(frozen=True)
class Counterparts:
    """For each original value its copies in the prepared module, and the reverse."""

    became: dict[Value, list[Value]] = field(default_factory=dict)
    came_from: dict[Value, Value] = field(default_factory=dict)

    def link(self, original: Value, copy: Value) -> None:
        """Record the copy of a value in the prepared module."""
        if copy not in self.came_from:
            self.came_from[copy] = original
            self.became.setdefault(original, []).append(copy)


def counterparts(original: Module, prepared: Module) -> Counterparts:
    """Walk both modules side by side.

    Nodes that are never copied have the same order in both. Constants are copied per use, so they
    are matched through their users.
    """
    links = Counterparts()
    for name, function in original.functions.items():
        if twin := prepared.functions.get(name):
            _regions(function.body, twin.body, links)
    return links


def _regions(original: Region, prepared: Region, links: Counterparts) -> None:
    for before, after in zip(original.args, prepared.args, strict=False):
        links.link(before, after)
    for node, copy in _pairs(_uncopied(original), _uncopied(prepared)):
        _nodes(node, copy, links)
        for inner, renewed in zip(node.regions, copy.regions, strict=False):
            _regions(inner, renewed, links)
    for before, after in zip(original.results, prepared.results, strict=False):
        _values(before, after, links)


def _uncopied(region: Region) -> list[Node]:
    constants: set[Node] = set()
    nodes = []
    for node in region.nodes:
        if is_constant_expression(node, constants):
            constants.add(node)
        elif not is_scalar_expansion(node):
            nodes.append(node)
    return nodes


def _pairs(originals: list[Node], copies: list[Node]) -> Iterator[tuple[Node, Node]]:
    """Pairs of nodes with equal op, types and location, in order; unmatched nodes are skipped."""
    # By op, types and location, in order: preparation drops and adds nodes, but reorders none.
    waiting: dict[object, deque[Node]] = {}
    for node in copies:
        waiting.setdefault((node.op.name, node.types, node.loc), deque()).append(node)
    for node in originals:
        if alike := waiting.get((node.op.name, node.types, node.loc)):
            yield node, alike.popleft()


def _nodes(node: Node, copy: Node, links: Counterparts) -> None:
    for before, after in zip(node.results, copy.results, strict=True):
        links.link(before, after)
    for before, after in zip(node.operands, copy.operands, strict=False):
        _values(before, after, links)


def _values(before: Value, after: Value, links: Counterparts) -> None:
    """Link the operands of two nodes, and the constant expressions that compute them."""
    waiting = [(before, after)]
    while waiting:
        before, after = waiting.pop()
        node, copy = before.node, after.node
        if node is None or copy is None or after in links.came_from:
            continue
        if _constant(node.op.name) == _constant(copy.op.name) and before.type is after.type:
            links.link(before, after)
            waiting.extend(zip(node.operands, copy.operands, strict=False))


def _constant(name: str) -> str:
    return "sdy.constant" if name == "stablehlo.constant" else name
