"""Scopes: masks and slots of the values of a function during lowering."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from weft.errors import Unsupported
from weft.executable.stack_dims import StackDims, collective_dims
from weft.ir.module import Module, Node, Value
from weft.ir.purity import callee_of
from weft.records import dataclass
from weft.varying.analysis import FunctionFacts
from weft.varying.masks import Mask, Masks, union
from weft.varying.world import World


@dataclass
class Scope:
    """A function, or a divergent part of one with other stack dims."""

    module: Module
    world: World
    stack_dims: StackDims
    body: FunctionFacts  # analysis results of the function
    # Masks of values: from the analysis, or as stored.
    masks: dict[Value, Mask] = field(default_factory=dict)
    slots: dict[Value, int] = field(default_factory=dict)
    # Leading dims that a value was already summed over, ahead of its collective.
    summed: dict[Value, int] = field(default_factory=dict)
    # Broadcasts deferred to their readers: dims are in place, but not repeated.
    placed: set[Value] = field(default_factory=set)
    calls: tuple[str, ...] = ()  # call stack of functions, outermost first

    def parted(self, stack_dims: StackDims) -> Scope:
        """A scope for a divergent part: without slots of values yet."""
        return Scope(self.module, self.world, stack_dims, self.body, calls=self.calls)

    def called(self, node: Node) -> Scope:
        """A scope for the callee of a node."""
        name = callee_of(node.op)
        assert name is not None
        self.module.function(name)  # raises for an unknown name
        # Calls are inlined, and StableHLO has no recursion that could end.
        if name in self.calls:
            raise Unsupported(f"{name} calls itself", help="write a loop: stablehlo.while")
        body, calls = self.body.calls[node], (*self.calls, name)
        return Scope(self.module, self.world, self.stack_dims, body, calls=calls)

    def of(self, values: Sequence[Value]) -> Masks:
        """The masks of values."""
        known, masks = self.masks, []
        for value in values:
            mask = known.get(value)
            if mask is None:
                mask = known[value] = self.stack_dims.shown(self.body.masks[value])
            masks.append(mask)
        return tuple(masks)

    def let(self, values: Sequence[Value], masks: Sequence[Mask]) -> None:
        """Override the masks of values that are stored differently."""
        self.masks.update(zip(values, masks, strict=True))

    def leaves(self, node: Node) -> bool:
        """Whether a node's results depend on other processes' devices, or on this one's position.

        Every process runs the same program, so such results are never folded.
        """
        absent = self.stack_dims.mask(self.stack_dims.absent)
        if not absent:
            return False
        if any(union(self.body.masks[v]) & absent for v in node.results):
            return True
        return self.sends(node)

    def sends(self, node: Node) -> bool:
        """Whether a node communicates with other processes, or its groups follow no sub-axes."""
        if not node.op.collective or not self.stack_dims.absent:
            return False
        return collective_dims(node.op, self.stack_dims, self.world) is None

    def loop(self, node: Node) -> tuple[Masks, int]:
        """The masks of a loop's carried values, and of its predicate."""
        condition, body = node.regions
        return self.of(body.args), union(*self.of(condition.results))
