"""In-flight operations between an asynchronous start and its done, and their durations."""

from __future__ import annotations

from weft.array.place_buffers import aligned
from weft.cost import Costs
from weft.ir.module import Node
from weft.ir.types import Type
from weft.ops.control import AsyncDone, AsyncStart, stream_of
from weft.optimize.scheduling.lifetimes import leaves, stored_bytes
from weft.records import dataclass

_MARGIN = 1.1  # safety factor on the predicted transfer time, for an earlier start


@dataclass(slots=True)
class Flights:
    """The starts and dones of a region by node number, and the cost of each node."""

    done_of: dict[int, int]
    start_of: dict[int, int]
    seconds: list[float]  # of every node; of a start or done, to issue it
    travel: dict[int, float]  # of every start
    stream: dict[int, str]  # of every start

    @classmethod
    def of(cls, nodes: list[Node], costs: Costs) -> Flights | None:
        """The flights of a list of nodes; None if there are none, or if a future escapes."""
        starts = {n.results[0]: i for i, n in enumerate(nodes) if isinstance(n.op, AsyncStart)}
        if not starts:
            return None
        done_of: dict[int, int] = {}
        for index, node in enumerate(nodes):
            for value in node.operands:
                start = starts.get(value)
                if start is None:
                    continue
                # A future that something else reads, or with two dones, has no single end: leave
                # the region alone.
                if not isinstance(node.op, AsyncDone) or start in done_of:
                    return None
                done_of[start] = index
        if len(done_of) != len(starts):
            return None
        return cls(
            done_of,
            {done: start for start, done in done_of.items()},
            [costs.seconds(node) for node in nodes],
            {start: costs.in_flight(nodes[start]) for start in done_of},
            {start: stream_of(nodes[start].attrs) or "" for start in done_of},
        )

    def due(self, clock: list[float], first_use: dict[int, int]) -> dict[int, float]:
        """The latest issue time of each start before its first use, transfers being serial."""
        latest: dict[int, float] = {}
        free: dict[str, float] = {}
        for start in sorted(self.done_of, key=lambda s: (-first_use[s], -s)):
            stream = self.stream[start]
            # Backwards from the last use: transfers of a stream are serial, so an earlier one must
            # be over before a later one can begin.
            needed = min(clock[first_use[start]], free.get(stream, float("inf")))
            latest[start] = free[stream] = needed - _MARGIN * self.travel[start]
        return latest


def bytes_of(types: tuple[Type, ...]) -> int:
    """The bytes of values of these types."""
    return sum(aligned(stored_bytes(leaf)) for type in types for leaf in leaves(type))
