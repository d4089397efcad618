"""The operations of a program with loops, estimated from its kernels' steps and trip counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from weft.executable.items import Block, Launch, Loop, Move, Slot
from weft.kernels.flow import ControlFlow
from weft.kernels.kernel import Fill, Kernel, Store
from weft.kernels.work import limit_in, operations_of


def operations(
    block: Block, known: Mapping[Slot, int] = MappingProxyType({}), *, in_loop: bool = False
) -> float:
    """The estimated operations of flows and loops, and of all that loops run.

    Other kernels are bounded by their memory. `known` are the integers that slots hold. Infinite
    where a trip count is unknown, as those of precompiled kernels are.
    """
    known, total = dict(known), 0.0
    for item in block.items:
        match item:
            case Launch(kernel=ControlFlow() as flow):
                total += flow.arithmetic
            case Launch(kernel=Kernel(steps=(Fill(value=int() as value), Store()))):
                known[item.outs[0]] = value
            case Launch():
                total += operations_of(item.kernel) if in_loop else 0
            case Loop():
                total += _loop_operations(item, known)
            case Move() if in_loop:
                pass
            case _:
                return math.inf
    return total


def _loop_operations(loop: Loop, known: Mapping[Slot, int]) -> float:
    """The operations of all rounds; infinite if their number is unknown."""
    pairs = zip(loop.carried, loop.ins, strict=False)
    inside = {**known, **{to: known[slot] for to, slot in pairs if slot in known}}
    limits: list[int] = []
    for item in loop.test.items:
        if isinstance(item, Launch) and isinstance(item.kernel, Kernel):
            limit = limit_in(item.kernel, [inside.get(slot, 0) for slot in item.ins])
            limits += [] if limit is None else [limit]
    if not limits:
        return math.inf
    return max(limits) * sum([operations(part, inside, in_loop=True) for part in loop.blocks])
