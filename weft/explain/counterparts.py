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

    def link(self, given: Value, made: Value) -> None:
        """Record that `made` is a copy of `given`."""
        if made not in self.came_from:
            self.came_from[made] = given
            self.became.setdefault(given, []).append(made)


def counterparts(given: Module, prepared: Module) -> Counterparts:
    """Walk both modules side by side.

    Nodes that are never copied have the same order in both. Constants are copied per use, so they
    are matched through their users.
    """
    found = Counterparts()
    for name, function in given.functions.items():
        if made := prepared.functions.get(name):
            _regions(function.body, made.body, found)
    return found


def _regions(given: Region, made: Region, found: Counterparts) -> None:
    for before, after in zip(given.args, made.args, strict=False):
        found.link(before, after)
    for node, copy in _pairs(_uncopied(given), _uncopied(made)):
        _nodes(node, copy, found)
        for inner, renewed in zip(node.regions, copy.regions, strict=False):
            _regions(inner, renewed, found)
    for before, after in zip(given.results, made.results, strict=False):
        _values(before, after, found)


def _uncopied(region: Region) -> list[Node]:
    constants: set[Node] = set()
    kept = []
    for node in region.nodes:
        if is_constant_expression(node, constants):
            constants.add(node)
        elif not is_scalar_expansion(node):
            kept.append(node)
    return kept


def _pairs(given: list[Node], made: list[Node]) -> Iterator[tuple[Node, Node]]:
    """Pairs of nodes with equal op, types and location, in order; unmatched nodes are skipped."""
    waiting: dict[object, deque[Node]] = {}
    for node in made:
        waiting.setdefault((node.op.name, node.types, node.loc), deque()).append(node)
    for node in given:
        if alike := waiting.get((node.op.name, node.types, node.loc)):
            yield node, alike.popleft()


def _nodes(node: Node, copy: Node, found: Counterparts) -> None:
    for before, after in zip(node.results, copy.results, strict=True):
        found.link(before, after)
    for before, after in zip(node.operands, copy.operands, strict=False):
        _values(before, after, found)


def _values(before: Value, after: Value, found: Counterparts) -> None:
    """Link the operands of two nodes, and the constant expressions that compute them."""
    waiting = [(before, after)]
    while waiting:
        before, after = waiting.pop()
        node, copy = before.node, after.node
        if node is None or copy is None or after in found.came_from:
            continue
        if _constant(node.op.name) == _constant(copy.op.name) and before.type is after.type:
            found.link(before, after)
            waiting.extend(zip(node.operands, copy.operands, strict=False))


def _constant(name: str) -> str:
    return "sdy.constant" if name == "stablehlo.constant" else name
