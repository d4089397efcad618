"""Exchanges with other processes that are under way, and what the schedule does meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.kernels.stacked_node import StackedNode
from weft.ops.control import AsyncDone


@dataclass(frozen=True, slots=True)
class KernelFlights:
    """The positions of starts that leave the process, and of their dones."""

    spans: tuple[tuple[int, int], ...]

    def land(self, early: int, late: int) -> bool:
        """Whether one is under way at a position, and waited for before a later one.

        What stands at the first would no longer run meanwhile if it joined what is at the other.
        """
        return any(start < early < done < late for start, done in self.spans)


def flights_of(placed: Sequence[StackedNode]) -> KernelFlights:
    """The exchanges of a region; in lockstep there are none."""
    starts = {p.node.results[0]: n for n, p in enumerate(placed) if p.sends}
    if not starts:
        return KernelFlights(())
    ends = [
        (p.node.operands[0], n) for n, p in enumerate(placed) if isinstance(p.node.op, AsyncDone)
    ]
    return KernelFlights(tuple([(starts[future], n) for future, n in ends if future in starts]))
