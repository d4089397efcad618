"""List scheduling of a region with asynchronous operations."""

from __future__ import annotations

import heapq
from itertools import accumulate

from weft.ir.module import Node, Value
from weft.ir.op import Op
from weft.ir.purity import is_pure
from weft.ir.uses import read_inside
from weft.optimize.scheduling.flights import Flights, bytes_of

_TRIED = 16  # lookahead: nodes considered to fill a wait


def order_region(nodes: list[Node], flights: Flights, spare: int, pure: set[str]) -> list[Node]:
    """The nodes in an order that hides transfers, with at most `spare` more live bytes."""
    ordering = _Ordering(nodes, flights, spare, pure)
    ordering.run()
    assert len(ordering.out) == len(nodes), "every node is scheduled"
    return [nodes[index] for index in ordering.out]


def dependencies(nodes: list[Node], pure: set[str]) -> list[list[int]]:
    """For every node, its predecessors: definitions of its operands, and earlier effects."""
    producer: dict[Value, int] = {}
    before: list[list[int]] = []
    effect: int | None = None
    known: dict[Op, bool] = {}  # purity of ops without regions
    for index, node in enumerate(nodes):
        read = node.operands
        if node.regions:
            read = (*read, *read_inside(node))
            without = is_pure(node, pure, collectives=True)
        elif node.op in known:
            without = known[node.op]
        else:
            without = known[node.op] = is_pure(node, pure, collectives=True)
        preceding = {producer[v] for v in read if v in producer}
        if not without:
            if effect is not None:
                preceding.add(effect)
            effect = index
        before.append(sorted(preceding))
        for value in node.results:
            producer[value] = index
    return before


class _Ordering:
    """One run over a region: a clock, the schedule so far, and the ready nodes.

    `front` is the first node in the old order that is not scheduled yet. Scheduled nodes with
    larger numbers are ahead of it; the bytes that they hold are `extra` to the needs of the old
    order.
    """

    def __init__(self, nodes: list[Node], flights: Flights, spare: int, pure: set[str]) -> None:
        self.nodes = nodes
        self.flights = flights
        self.spare = spare
        self.before = dependencies(nodes, pure)
        self.after: list[list[int]] = [[] for _ in nodes]
        for index, found in enumerate(self.before):
            for other in found:
                self.after[other].append(index)
        self.missing = [len(found) for found in self.before]
        self.placed = [False] * len(nodes)
        self.out: list[int] = []
        self.front = 0
        self.now = 0.0
        self.lands: dict[int, float] = {}  # completion times of issued starts
        self.free: dict[str, float] = {}  # the time at which each stream is idle
        self.ready: list[int] = []  # ready nodes by number, some of them already scheduled
        self.extra = 0
        self.ahead: dict[int, int] = {}  # bytes of nodes ahead of the front
        self.operands: dict[int, int] = {}  # bytes that a start keeps longer than the old order
        # Start times of nodes in the old order without waits.
        work = [0.0 if i in flights.done_of else t for i, t in enumerate(flights.seconds)]
        self.clock = [0.0, *accumulate(work)]
        self.due = flights.due(self.clock, self.first_uses())
        # Ready starts, by stream and due time.
        self.waiting: dict[str, list[tuple[float, int]]] = {}
        # Dones that another start reads, by completion time.
        self.landing: list[tuple[float, int]] = []
        for index, count in enumerate(self.missing):
            if count == 0:
                self.unlock(index)

    def first_uses(self) -> dict[int, int]:
        """For every start, the first use of its done's results; the end if none."""
        end = len(self.nodes)
        return {
            start: min(self.after[done], default=end)
            for start, done in self.flights.done_of.items()
        }

    def run(self) -> None:
        """Schedule every node."""
        for index in range(len(self.nodes)):
            self.front = index
            self.extra -= self.ahead.pop(index, 0)
            if index in self.flights.done_of:
                self.issue_due()
                self.pass_start(index)
            elif index not in self.flights.start_of and not self.placed[index]:
                self.issue_due()
                self.fetch(index)
                if not self.placed[index]:  # it may have been scheduled to fill a wait
                    self.place(index)
        # Dones without a use in the region, such as those of returned values, come last.
        for done in self.flights.done_of.values():
            self.finish(done)

    def place(self, index: int) -> None:
        """Schedule a node that is neither a start nor a done."""
        self.placed[index] = True
        self.out.append(index)
        self.now += self.flights.seconds[index]
        if index > self.front:
            self.ahead[index] = bytes_of(self.nodes[index].types)
            self.extra += self.ahead[index]
        self.release(index)

    def release(self, index: int) -> None:
        """Unlock successors whose predecessors are all scheduled."""
        for other in self.after[index]:
            self.missing[other] -= 1
            if self.missing[other] == 0:
                self.unlock(other)

    def unlock(self, index: int) -> None:
        """Mark a node as ready."""
        if index in self.flights.done_of:
            waiting = self.waiting.setdefault(self.flights.stream[index], [])
            heapq.heappush(waiting, (self.due[index], index))
        elif index not in self.flights.start_of:
            heapq.heappush(self.ready, index)

    # Starts

    def issue_due(self) -> None:
        """Issue the starts that are due, as far as memory allows."""
        while self.landing and self.landing[0][0] <= self.now:
            self.finish(heapq.heappop(self.landing)[1])
        ends = self.clock[min(self.front + 1, len(self.nodes))]  # due while the next node runs
        for stream, waiting in self.waiting.items():
            while waiting and waiting[0][0] < ends:
                start = waiting[0][1]
                if not self.placed[start] and not self.may_issue(start, stream):
                    break
                heapq.heappop(waiting)
                if not self.placed[start]:
                    self.issue(start)

    def may_issue(self, start: int, stream: str) -> bool:
        """Whether memory allows a start ahead of the front, and its stream is free soon."""
        if start <= self.front:
            return True
        # Issued behind a long queue it would only hold its buffer while it waits.
        backlog = self.free.get(stream, 0.0) - self.now
        if backlog > self.flights.seconds[self.front]:  # it can be issued after the next node
            return False
        return self.extra + bytes_of(self.nodes[start].types) <= self.spare

    def issue(self, start: int) -> None:
        """Issue a start."""
        self.placed[start] = True
        self.out.append(start)
        stream = self.flights.stream[start]
        begun = max(self.now, self.free.get(stream, 0.0))
        self.lands[start] = self.free[stream] = begun + self.flights.travel[start]
        self.now += self.flights.seconds[start]
        if start > self.front:
            self.ahead[start] = bytes_of(self.nodes[start].types)
            self.extra += self.ahead[start]
        done = self.flights.done_of[start]
        if any(user in self.flights.done_of for user in self.after[done]):
            heapq.heappush(self.landing, (self.lands[start], done))
        self.release(start)

    def pass_start(self, start: int) -> None:
        """Advance the front past a start, which is issued now unless it can be later."""
        done = self.flights.done_of[start]
        if self.placed[done]:
            return
        operands = bytes_of(self.nodes[start].operand_types)
        room = self.extra + operands <= self.spare
        if not self.placed[start]:
            # A gather's result is larger than its operand: issuing it later keeps less alive.
            later = operands < bytes_of(self.nodes[start].types) and room
            if not later:
                self.fetch(start)
                if not self.placed[start]:
                    self.issue(start)
        if room:  # its operands stay live longer than before
            self.operands[start] = operands
            self.extra += operands
        else:
            self.finish(done)

    # Dones

    def fetch(self, index: int) -> None:
        """Complete the dones that a node depends on; fill the waiting time."""
        missing = [i for i in self.before[index] if not self.placed[i]]
        for done in missing:
            self.begin(done)
        for done in sorted(missing, key=lambda d: self.lands[self.flights.start_of[d]]):
            self.fill(self.lands[self.flights.start_of[done]])
            self.finish(done)
        if missing:
            self.issue_due()

    def begin(self, done: int) -> None:
        """Issue the start of a done, after everything that it depends on."""
        path = [done]
        while path:
            start = self.flights.start_of[path[-1]]
            if self.placed[start]:
                path.pop()
                continue
            inner = [d for d in self.before[start] if not self.placed[d]]
            unbegun = [d for d in inner if not self.placed[self.flights.start_of[d]]]
            if unbegun:
                path.append(unbegun[0])
                continue
            for waited in inner:
                self.finish(waited)
            self.issue(start)

    def fill(self, until: float) -> None:
        """Schedule later ready nodes during a wait."""
        passed: list[int] = []
        while self.now < until and self.ready and len(passed) < _TRIED:
            index = heapq.heappop(self.ready)
            if self.placed[index]:
                continue
            if self.extra + bytes_of(self.nodes[index].types) > self.spare:
                passed.append(index)
                continue
            self.place(index)
            self.issue_due()
        for index in passed:
            heapq.heappush(self.ready, index)

    def finish(self, done: int) -> None:
        """Schedule a done, and wait for its start."""
        if self.placed[done]:
            return
        start = self.flights.start_of[done]
        if not self.placed[start]:
            self.begin(done)
        self.placed[done] = True
        self.out.append(done)
        self.now = max(self.now, self.lands[start])
        self.extra -= self.operands.pop(start, 0)
        self.release(done)
