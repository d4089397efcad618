"""What is known where a node stands: what its values vary along, and the slots that they are in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from weft.errors import Unsupported
from weft.executable.layout import Layout, meeting_dims
from weft.ir.module import Module, Node, Value
from weft.ir.purity import called
from weft.varying.analysis import FunctionFacts
from weft.varying.masks import Mask, Masks, union
from weft.varying.world import World


@dataclass
class Scope:
    """A function, or a part of one that has another layout, while its code is made."""

    module: Module
    world: World
    layout: Layout
    body: FunctionFacts  # the facts of the function
    # The leading dims that values vary along here: from the facts, or as they are stored.
    masks: dict[Value, Mask] = field(default_factory=dict)
    slots: dict[Value, int] = field(default_factory=dict)
    # Leading dims that a value has been summed over already, which a collective is to sum over.
    summed: dict[Value, int] = field(default_factory=dict)
    # Broadcasts that are left to their readers: their dims are in place, but not repeated.
    placed: set[Value] = field(default_factory=set)
    calls: tuple[str, ...] = ()  # the functions that are being called, the outermost first

    def parted(self, layout: Layout) -> Scope:
        """A scope for a part with another layout: it has no slots of values yet."""
        return Scope(self.module, self.world, layout, self.body, calls=self.calls)

    def called(self, node: Node) -> Scope:
        """A scope for the function that a node calls."""
        name = called(node.op)
        assert name is not None
        self.module.function(name)  # which refuses a name that there is not
        if name in self.calls:
            raise Unsupported(f"{name} calls itself", help="write a loop: stablehlo.while")
        body, calls = self.body.calls[node], (*self.calls, name)
        return Scope(self.module, self.world, self.layout, body, calls=calls)

    def of(self, values: Sequence[Value]) -> Masks:
        """The leading dims that values vary along."""
        known, found = self.masks, []
        for value in values:
            mask = known.get(value)
            if mask is None:
                mask = known[value] = self.layout.shown(self.body.masks[value])
            found.append(mask)
        return tuple(found)

    def let(self, values: Sequence[Value], masks: Sequence[Mask]) -> None:
        """Take note of how values are stored, where that is not what is known of them."""
        self.masks.update(zip(values, masks, strict=True))

    def leaves(self, node: Node) -> bool:
        """Whether what a node gives depends on devices of other processes, or on which one it is.

        Every process runs the same program, so nothing of the kind is known before it runs.
        """
        absent = self.layout.mask(self.layout.absent)
        if not absent:
            return False
        if any(union(self.body.masks[v]) & absent for v in node.results):
            return True
        return self.sends(node)

    def sends(self, node: Node) -> bool:
        """Whether devices of other processes, or some that follow no digits, meet in a node."""
        if not node.op.collective or not self.layout.absent:
            return False
        return meeting_dims(node.op, self.layout, self.world) is None

    def loop(self, node: Node) -> tuple[Masks, int]:
        """What the carried values of a loop vary along, and what its predicate does."""
        condition, body = node.regions
        return self.of(body.args), union(*self.of(condition.results))
