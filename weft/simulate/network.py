"""Transfers in flight: streams run theirs in order, and those that share a link share its rate."""

from __future__ import annotations

from weft.records import dataclass

_EPSILON = 1e-15


@dataclass(slots=True, eq=False)
class Transfer:
    """A transfer: its stream and link, when it may begin, and its seconds on an idle link."""

    stream: str
    link: str
    ready: float
    left: float
    begin: float = -1.0
    end: float = -1.0

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        return self.end >= 0.0


class Network:
    """The transfers of one device, simulated up to a point in time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.queues: dict[str, list[Transfer]] = {}

    def add(self, transfer: Transfer) -> Transfer:
        """Append a transfer to its stream."""
        self.queues.setdefault(transfer.stream, []).append(transfer)
        return transfer

    def wait(self, transfer: Transfer) -> float:
        """Simulate until a transfer has ended; returns when that was."""
        while not transfer.is_done:
            self._step()
        return transfer.end

    def drain(self) -> float:
        """Simulate until all transfers have ended; returns when the last one did."""
        while any(self.queues.values()):
            self._step()
        return self.now

    def _step(self) -> None:
        """Go to the next beginning or end of a transfer."""
        heads = [queue[0] for queue in self.queues.values() if queue]
        # Only heads of queues: a stream runs its transfers in order, as NCCL does.
        active = [head for head in heads if head.ready <= self.now + _EPSILON]
        coming = [head.ready for head in heads if head.ready > self.now + _EPSILON]
        if not active:
            self.now = min(coming)
            return
        sharing: dict[str, int] = {}
        for head in active:
            if head.begin < 0:
                head.begin = self.now
            sharing[head.link] = sharing.get(head.link, 0) + 1
        # Processor sharing: k transfers on a link each have 1/k of its rate, so the times stretch
        # by k until the next one begins or ends.
        ends = [head.left * sharing[head.link] for head in active]
        step = min(ends)
        if coming:
            step = min(step, min(coming) - self.now)
        self.now += step
        for head, needed in zip(active, ends, strict=True):
            head.left -= step / sharing[head.link]
            if needed <= step + _EPSILON or head.left <= _EPSILON:
                head.end = self.now
                self.queues[head.stream].pop(0)
