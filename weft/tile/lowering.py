"""The interface of the lowering that the rules of control flow use: slots, results and regions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from weft.executable.items import Block, Slots, Stack
    from weft.ir.module import Node, Region, Value
    from weft.target import Target
    from weft.tile.scope import Scope
    from weft.varying.masks import Mask


class RegionLowering(Protocol):
    """Allocates slots and lowers regions to blocks."""

    target: Target
    stacks: list[Stack | None]
    constants: dict[int, Any]

    def new(self, value: Value, mask: Mask, scope: Scope) -> int:
        """A slot for a value."""
        ...

    def bare(self) -> int:
        """A slot for the active rows."""
        ...

    def results(self, node: Node, made: Sequence[Mask], scope: Scope) -> Slots:
        """New slots for a node's results."""
        ...

    def region(self, region: Region, scope: Scope) -> Block:
        """Lower a region whose arguments have slots."""
        ...
