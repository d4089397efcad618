"""Programs so short that their caller's thread runs them, rather than that of a stream."""

from __future__ import annotations

from weft.executable.items import Block, Host, Item, Launch
from weft.ops.shape import BitcastConvert, Reshape

# A program below both limits takes about as long as handing it to a thread and waiting for it does.
BRIEF = 1 << 25  # bytes that are streamed
QUICK = 1 << 24  # arithmetic operations of flows and loops, in one thread


def is_brief(block: Block, nbytes: int) -> bool:
    """Whether a program is a short sequence of kernels and loops over little memory."""
    if nbytes > BRIEF:
        return False
    others = [item for item in block.items if not _is_view(item)]
    launches = [item for item in others if isinstance(item, Launch)]
    if len(launches) == len(others):
        return sum(map(_arithmetic, launches)) <= QUICK
    # A precompiled program starts without what reads kernels.
    from weft.executable.loop_operations import operations

    return operations(block) <= QUICK


def _is_view(item: Item) -> bool:
    """Whether an item shows memory as another shape or type, or copies it at most."""
    return isinstance(item, Host) and isinstance(item.node.op, Reshape | BitcastConvert)


def _arithmetic(launch: Launch) -> int:
    """The estimated operations of a flow, precompiled or not; the memory of others bounds them."""
    arithmetic: int = getattr(launch.kernel, "arithmetic", 0)
    return arithmetic
