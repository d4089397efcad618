"""Which values of a prepared module stand for which values of the module as it was given."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from weft.ir.module import Module, Node, Region, Value
from weft.shard.kinds import is_constant_expression, is_scalar_expansion


@dataclass(frozen=True)
class Counterparts:
    """What each given value became, perhaps several copies, and where each copy comes from."""

    became: dict[Value, list[Value]] = field(default_factory=dict)
    came_from: dict[Value, Value] = field(default_factory=dict)

    def link(self, given: Value, made: Value) -> None:
        """Say that one stands for the other."""
        if made not in self.came_from:
            self.came_from[made] = given
            self.became.setdefault(given, []).append(made)


def counterparts(given: Module, prepared: Module) -> Counterparts:
    """Walk both modules side by side.

    Nodes that are never copied come in one order in both. Constants are copied for each of their
    readers, so they are found from these.
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
    """Nodes of one op, types and place, in order; what only one side has is passed over."""
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
    """Link what two nodes read, and the expressions behind it."""
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
