"""In-flight exchanges with other processes, and the work that overlaps them."""

from __future__ import annotations

from collections.abc import Sequence

from weft.kernels.stacked_node import StackedNode
from weft.ops.control import AsyncDone
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class KernelFlights:
    """The positions of exchanges' starts and dones."""

    spans: tuple[tuple[int, int], ...]

    def land(self, early: int, late: int) -> bool:
        """Whether an exchange is in flight at a position and completes before a later one.

        A node at the first position would no longer overlap it if it were fused into the later one.
        """
        return any(start < early < done < late for start, done in self.spans)


def flights_of(nodes: Sequence[StackedNode]) -> KernelFlights:
    """The exchanges of a region; none in lockstep."""
    starts = {p.node.results[0]: n for n, p in enumerate(nodes) if p.sends}
    if not starts:
        return KernelFlights(())
    ends = [
        (p.node.operands[0], n) for n, p in enumerate(nodes) if isinstance(p.node.op, AsyncDone)
    ]
    return KernelFlights(tuple([(starts[future], n) for future, n in ends if future in starts]))
