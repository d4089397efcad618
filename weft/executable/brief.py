"""Programs so short that their caller's thread runs them, rather than that of a stream."""

from __future__ import annotations

from weft.executable.items import Block, Launch

# A program below both limits takes about as long as handing it to a thread and waiting for it does.
BRIEF = 1 << 25  # bytes that are streamed
QUICK = 1 << 24  # arithmetic operations of flows and loops, in one thread


def is_brief(block: Block, nbytes: int) -> bool:
    """Whether a program is a short sequence of kernels and loops over little memory."""
    if nbytes > BRIEF:
        return False
    launches = [item for item in block.items if isinstance(item, Launch)]
    if len(launches) == len(block.items):
        return sum(map(_arithmetic, launches)) <= QUICK
    # A precompiled program starts without what reads kernels.
    from weft.executable.loop_operations import operations

    return operations(block) <= QUICK


def _arithmetic(launch: Launch) -> int:
    """The estimated operations of a flow, precompiled or not; the memory of others bounds them."""
    arithmetic: int = getattr(launch.kernel, "arithmetic", 0)
    return arithmetic
