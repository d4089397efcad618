"""Programs so short that their caller's thread runs them, rather than that of a stream."""

from __future__ import annotations

from weft.executable.items import Block, Launch

# A program below both limits runs in less time than waking a thread takes.
BRIEF = 1 << 25  # bytes that are streamed
QUICK = 1 << 22  # arithmetic operations of flows, in one thread


def is_brief(block: Block, nbytes: int) -> bool:
    """Whether a program is a short sequence of kernels over little memory."""
    if nbytes > BRIEF:
        return False
    launches = [item for item in block.items if isinstance(item, Launch)]
    return len(launches) == len(block.items) and sum(map(_arithmetic, launches)) <= QUICK


def _arithmetic(launch: Launch) -> int:
    """The estimated operations of a flow; other kernels are bounded by their memory."""
    arithmetic: int = getattr(launch.kernel, "arithmetic", 0)
    return arithmetic
