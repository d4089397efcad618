"""Programs so short that their caller's thread runs them, rather than that of a stream."""

from __future__ import annotations

import math

from weft.executable.items import Block, Item, Launch, Loop, Move
from weft.kernels.flow import ControlFlow
from weft.kernels.kernel import Kernel
from weft.kernels.work import limit_in, operations_of

# A program below both limits takes about as long as handing it to a thread and waiting for it does.
BRIEF = 1 << 25  # bytes that are streamed
QUICK = 1 << 24  # arithmetic operations of flows and loops, in one thread


def is_brief(block: Block, nbytes: int) -> bool:
    """Whether a program is a short sequence of kernels and loops over little memory."""
    if nbytes > BRIEF:
        return False
    return sum([_operations(item) for item in block.items]) <= QUICK


def _operations(item: Item) -> float:
    """The estimated operations of a flow or a loop; other kernels are bounded by their memory."""
    match item:
        case Launch(kernel=ControlFlow() as flow):
            return flow.arithmetic
        case Launch():
            return 0
        case Loop():
            return _loop_operations(item)
    return math.inf


def _loop_operations(loop: Loop) -> float:
    """The operations of all rounds; infinite if their number is unknown."""
    kernels = [item.kernel for item in loop.test.items if isinstance(item, Launch)]
    limits = [limit_in(kernel) for kernel in kernels if isinstance(kernel, Kernel)]
    rounds = max([limit for limit in limits if limit], default=math.inf)
    return rounds * sum([_round(item) for part in loop.blocks for item in part.items])


def _round(item: Item) -> float:
    """The operations of an item of a loop."""
    match item:
        case Launch():
            return operations_of(item.kernel)
        case Move():
            return 0
    return _operations(item)
