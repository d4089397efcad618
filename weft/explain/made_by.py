"""The stage or pass that introduced a value: the first whose output has such a node."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.location import Location
from weft.ir.module import Module, Node, Value
from weft.ir.write import node_text
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Origin:
    """A value of a compiled program, and the stage or pass that introduced it."""

    name: str
    node: Node
    by: str  # the stage or pass
    is_given: bool  # the captured program has the op, perhaps on other types

    def text(self) -> str:
        """The node, the stage or pass that introduced it, and the user's line."""
        by = f"the program's own, as {self.by} left it" if self.is_given else f"made by {self.by}"
        place = self.node.loc.describe() if self.node.loc.known else "an unknown line"
        return f"{self.name} = {node_text(self.node)}\n  {by}, for {place}\n"


def made_by(stages: Sequence[tuple[str, Module]], name: str, value: Value) -> Origin | None:
    """The origin of a value of the last stage; None for an argument."""
    node = value.node
    if node is None:
        return None
    kind = _kind(node)
    is_given = any(_kind(other) == kind for other in stages[0][1].nodes())
    for stage, module in stages:
        if any(other.types == node.types and _kind(other) == kind for other in module.nodes()):
            return Origin(name, node, stage, is_given)
    raise AssertionError("the last stage has the value")


def _kind(node: Node) -> tuple[object, ...]:
    """An equality key for a node across passes, which may change its types."""
    return node.op.name, _place(node.loc)


def _place(loc: Location) -> object:
    return loc.frames[0] if loc.frames else loc.text
