"""Propagation: shardings spread from where they are given until nothing changes."""

from __future__ import annotations

from array import array
from collections.abc import Container
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Literal, NamedTuple

import numpy as np

from weft.ir.rule import Rule
from weft.mesh import Mesh, Sharding
from weft.mesh.algebra import in_mesh_order
from weft.mesh.sharding import DimSharding
from weft.shard.closing import unsplit
from weft.shard.meshes import common_mesh
from weft.shard.propagation.directions import ROUNDS
from weft.shard.propagation.doomed import Doomed
from weft.shard.propagation.factors import Strategy, spread
from weft.shard.propagation.flow import Flow
from weft.shard.propagation.graph import Graph, Visit

PropagationLevel = Literal["basic", "aggressive", "op", "user"]
# What is known of a visit: its cells hold nothing; it may change something; it changes nothing.
ASLEEP, DIRTY, CLEAN = 0, 1, 2


class Change(NamedTuple):
    """What a visit changed (none where a priority comes in): a cell, from a sharding to another."""

    cell: int
    old: int  # numbers of shardings
    new: int
    visit: Visit | None
    round: int | None
    priority: int


class VisitOutcome(NamedTuple):
    """What a visit changes: which of its cells, to the sharding of which number."""

    changes: tuple[tuple[int, int], ...]
    restless: bool  # whether it would change its own result again: it is visited in the next round


Memo = dict[tuple[int, ...], VisitOutcome | None]  # by the numbers that the cells of a visit hold


@dataclass
class Propagation:
    """One propagation over a graph: what every cell holds, by number of its sharding."""

    graph: Graph
    level: PropagationLevel = "user"
    known: list[Sharding | None] = field(default_factory=lambda: [None])
    numbers: dict[Sharding, int] = field(default_factory=dict)
    held: list[int] = field(default_factory=list)
    history: list[Change] | None = None  # every change in order, where somebody wants to know
    now: tuple[int | None, int] = (None, 0)  # round and priority

    def run(self) -> list[Sharding | None]:
        """Propagate, and return what every cell holds in the end."""
        self.start()
        waiting = self.hide_lower_priorities() if self.level == "user" else []
        self.wake()
        self.run_rounds()
        for priority, revealed in waiting:
            self.now = (None, priority)
            for cell, original in revealed:
                current = self.known[self.held[cell]]
                assert current is not None
                self.set(cell, self.number(_with_priority(current, original, priority)))
            self.run_rounds()
        return [self.known[n] for n in self.held]

    def start(self) -> None:
        """Number what cells hold and what visits do."""
        graph = self.graph
        self.held = [0 if s is None else self.number(s) for s in graph.initial]
        self.groups = {m.cell: group for group in graph.groups.values() for m in group if m.leads}
        # Cells of whose changes more has to be done: all of them where a history is kept.
        self.unusual: Container[int] = {*self.groups, *graph.untold, *graph.siblings}
        if self.history is not None:
            self.unusual = range(len(self.held))
        self.unsettled: list[int] = []  # visits that are restless
        self.doomed = {index: d for d in map(Doomed.start, graph.doomed) for index in d.nodes}
        self.erased: set[int] = set()
        # A visit of one cell has nowhere to spread to: it need not even look.
        self.reads = [itemgetter(*c) if len(c := v.cells) > 1 else _nothing for v in graph.visits]
        self.memos: dict[object, Memo] = {}
        self.flows = list(dict.fromkeys([v.flow for v in graph.visits]))
        for doomed in graph.doomed:
            self.flows.extend(flow for _, _, flow in doomed.waiting.values())
        self.flow_numbers = {flow: n for n, flow in enumerate(self.flows)}
        self.flow_of = array("q", [self.flow_numbers[v.flow] for v in graph.visits])
        self.rules: dict[Rule, int] = {}  # equal ones of several ops have one number
        self.rule_numbers: dict[int, int] = {}  # the same, by identity
        self.rows: list[tuple[int, ...]] = []  # the directions that are allowed now, by flow
        self.allowed: list[Memo] = []  # what is known of them, by flow

    def wake(self) -> None:
        """Let those look first whose cells hold something."""
        self.state = bytearray(len(self.graph.visits))
        for cell, number in enumerate(self.held):
            if number:
                for index in (*self.graph.told[cell], *self.graph.untold.get(cell, ())):
                    self.state[index] = DIRTY

    def number(self, sharding: Sharding | None) -> int:
        """The number that stands for a sharding; 0 for none."""
        if sharding is None:
            return 0
        found = self.numbers.get(sharding)
        if found is None:
            found = self.numbers[sharding] = len(self.known)
            self.known.append(sharding)
        return found

    def mesh(self, sharding: Sharding) -> Mesh:
        return sharding.resolve(self.graph.module.meshes)

    # User priorities

    def hide_lower_priorities(self) -> list[tuple[int, list[tuple[int, Sharding]]]]:
        """Leave only priority 0 visible; what is to be revealed later, priority by priority."""
        later: dict[int, list[tuple[int, Sharding]]] = {}
        first = [0] * len(self.known)  # what is left of each sharding
        for number, sharding in enumerate(list(self.known)):
            if sharding is not None:
                first[number] = self.number(_first_priority(sharding, self.mesh(sharding)))
        for cell, number in enumerate(self.held):
            sharding = self.known[number]
            if sharding is None:
                continue
            for priority in dict.fromkeys(d.priority or 0 for d in sharding.dims):
                if priority:
                    later.setdefault(priority, []).append((cell, sharding))
            self.held[cell] = first[number]
        return sorted(later.items())

    # Rounds

    def run_rounds(self) -> None:
        """All rounds of op priority, or the one round of the simpler levels."""
        if self.level in ("basic", "aggressive"):
            self.round(None)
            return
        for n in range(ROUNDS):
            self.round(n)

    def round(self, n: int | None) -> None:
        """Visit until nothing changes, with what this round allows.

        As in MLIR's greedy driver, visits are taken in program order, and one that is told of a
        change after its turn is taken again at once, the last told first. Visits that could not
        change anything are passed over.
        """
        self.results()
        self.allow(ROUNDS - 1 if n is None else n)
        self.now = (n, self.now[1])
        self.sweep()
        for index in (*self.unsettled, *self.doomed):
            self.state[index] = DIRTY
        self.unsettled.clear()
        self.results()

    def allow(self, n: int) -> None:
        """Let visits spread as the n-th round allows it, and wake those that may do it otherwise.

        Those whose cells hold nothing stay asleep, and where nothing may spread none is awake.
        """
        rows = [flow.directions[n] for flow in self.flows]
        changed = np.array([a != b for a, b in zip(rows, self.rows or rows, strict=True)], bool)
        active = np.array([any(row) for row in rows], bool)
        state, flow_of = np.frombuffer(self.state, np.uint8), np.frombuffer(self.flow_of, np.int64)
        state[(state == CLEAN) & changed[flow_of]] = DIRTY
        state[(state == DIRTY) & ~active[flow_of]] = CLEAN
        state[list(self.doomed)] = DIRTY
        self.rows = rows
        self.allowed = [self.memo(flow, row) for flow, row in zip(self.flows, rows, strict=True)]

    def sweep(self) -> None:
        """Take every visit in turn that may change something.

        Most of the time goes by here: what has to be done for most visits is written out in place.
        """
        graph, state, held, unusual = self.graph, self.state, self.held, self.unusual
        reads, memos, flow_of = self.reads, self.allowed, self.flow_of
        visits, told, doomed, erased = graph.visits, graph.told, self.doomed, self.erased
        again: list[int] = []
        queued = bytearray(len(state))
        turn = index = state.find(DIRTY)
        while turn >= 0:
            state[index] = CLEAN
            if (doomed or erased) and self.is_gone(index, turn, queued, again):
                outcome = None
            else:
                now = reads[index](held)
                try:
                    outcome = memos[flow_of[index]][now]
                except KeyError:
                    flow = flow_of[index]
                    outcome = self.outcome(self.flows[flow], self.rows[flow], memos[flow], now)
            if outcome is not None:
                changes, restless = outcome
                if restless or index in graph.twice:
                    self.unsettled.append(index)
                visit = visits[index]
                for position, number in changes:
                    cell = visit.cells[position]
                    if cell in unusual:
                        heard = self.put(cell, number, visit)
                    else:
                        held[cell] = number
                        heard = told[cell]
                    for other in reversed(heard):
                        if other != index:
                            state[other] = DIRTY
                            if other <= turn and not queued[other]:
                                queued[other] = 1
                                again.append(other)
            while again:
                index = again.pop()
                queued[index] = 0
                if state[index] == DIRTY:
                    break
            else:
                turn = index = state.find(DIRTY, turn + 1)

    def is_gone(self, index: int, turn: int, queued: bytearray, again: list[int]) -> bool:
        """Whether a node is erased; one that nobody reads any more is erased now."""
        if index in self.erased:
            return True
        doomed = self.doomed.get(index)
        if doomed is None or not doomed.is_dead(index):
            return False

        def push(other: int) -> None:
            if other <= turn and not queued[other]:
                queued[other] = 1
                again.append(other)
                if other in self.doomed:
                    self.state[other] = DIRTY

        del self.doomed[index]
        self.erased.update((index, *doomed.inside.get(index, ())))
        for other, flow in doomed.erase(index, push):
            self.flow_of[other] = self.flow_numbers[flow]
            self.state[other] = DIRTY
        return True

    # Changes

    def put(self, cell: int, number: int, visit: Visit | None) -> list[int]:
        """Let a cell and its group hold another sharding; who is to be told of it, last first."""
        told = self.graph.told
        self.hold(cell, number, visit)
        if cell not in self.groups:
            return told[cell]
        heard = told[cell][::-1]
        for member in self.groups[cell]:
            if member.leads and member.cell == cell:
                continue
            self.hold(member.cell, number, visit)
            heard.extend(reversed(told[member.cell]) if member.leads else member.told)
            for other in told[member.cell]:
                self.state[other] = self.state[other] or CLEAN
        return heard[::-1]

    def hold(self, cell: int, number: int, visit: Visit | None) -> None:
        """Let a cell hold another sharding; the other results of its node are then open ones."""
        if self.history is not None and number != self.held[cell]:
            self.history.append(Change(cell, self.held[cell], number, visit, *self.now))
        self.held[cell] = number
        for other in self.graph.untold.get(cell, ()):
            self.state[other] = DIRTY
        if cell in self.graph.siblings:
            self.open_siblings(cell, number)

    def open_siblings(self, cell: int, number: int) -> None:
        """The results of a node have shardings together: the others are open at first."""
        made = self.known[number]
        assert made is not None
        for other in self.graph.siblings[cell]:
            if not self.held[other]:
                opened = unsplit(self.graph.types[other], made.mesh, is_open=True)
                self.set(other, self.number(opened))

    def results(self) -> None:
        """Between returned values and the result attributes; tells nobody."""
        held = self.held
        for visit in self.graph.results:
            now = tuple([held[cell] for cell in visit.cells])
            if now[0] == now[1]:  # nothing can be added to what is the same
                continue
            row = visit.directions[-1]
            outcome = self.outcome(visit.flow, row, self.memo(visit.flow, row), now)
            for position, number in outcome.changes if outcome else ():
                cell = visit.cells[position]
                self.set(cell, number, visit)
                for member in self.groups.get(cell, ()):
                    self.set(member.cell, number, visit)

    def set(self, cell: int, number: int, visit: Visit | None = None) -> None:
        """Let a cell hold another sharding, and let all who see it look again in their turn."""
        self.hold(cell, number, visit)
        for other in self.graph.told[cell]:
            self.state[other] = DIRTY

    # One visit

    def memo(self, flow: Flow, row: tuple[int, ...]) -> Memo:
        """What is known of a flow where these directions are allowed."""
        rule = self.rule_numbers.get(id(flow.rule))
        if rule is None:
            rule = self.rules.setdefault(flow.rule, len(self.rules))
            self.rule_numbers[id(flow.rule)] = rule
        key = (rule, row, flow.elementwise, flow.frame)
        return self.memos.setdefault(key, {(): None})

    def outcome(
        self, flow: Flow, row: tuple[int, ...], memo: Memo, now: tuple[int, ...]
    ) -> VisitOutcome | None:
        """What a visit makes of these numbers, worked out once."""
        if now in memo:
            return memo[now]
        made = self.spread(flow, row, now)
        changes = tuple([(n, number) for n, number in enumerate(made) if number])
        if not changes:
            memo[now] = None
            return None
        memo[now] = VisitOutcome(changes, False)
        after = tuple([new or old for new, old in zip(made, now, strict=True)])
        if self.outcome(flow, row, memo, after) is not None:
            memo[now] = VisitOutcome(changes, True)
        return memo[now]

    def spread(self, flow: Flow, row: tuple[int, ...], now: tuple[int, ...]) -> tuple[int, ...]:
        """The new numbers of a visit's cells, 0 where nothing changes."""
        shardings = [self.known[number] for number in now]
        frame = flow.frame
        if frame is not None and (last := shardings[-1]) is not None:
            shardings[-1] = frame.before(last)
        name = common_mesh(shardings, self.graph.module.meshes)
        if name is None or not any(row):
            return ()
        mesh = name if isinstance(name, Mesh) else self.graph.module.meshes[name]
        if not mesh.axes:  # everything is on one device
            return ()
        strategy: Strategy = "basic" if self.level == "basic" else "aggressive"
        made = spread(flow.rule, shardings, row, strategy, flow.elementwise, name, mesh)
        if frame is not None and (new := made[-1]) is not None:
            made = (*made[:-1], frame.after(new))
        return tuple([self.number(s) for s in made])


def _nothing(_: object) -> tuple[int, ...]:
    return ()


def _first_priority(sharding: Sharding, mesh: Mesh) -> Sharding:
    """Dims of a later priority are closed and empty, and their axes kept from use."""
    replicated = list(sharding.replicated)
    dims = []
    for dim in sharding.dims:
        if dim.priority:
            replicated.extend(dim.axes)
            dims.append(DimSharding())
        else:
            dims.append(replace(dim, priority=None))
    return replace(sharding, dims=tuple(dims), replicated=in_mesh_order(replicated, mesh))


def _with_priority(current: Sharding, original: Sharding, priority: int) -> Sharding:
    """Reveal the dims of this priority."""
    dims = tuple(
        replace(given, priority=None) if (given.priority or 0) == priority else now
        for now, given in zip(current.dims, original.dims, strict=True)
    )
    shown = {a for d in original.dims if (d.priority or 0) == priority for a in d.axes}
    replicated = tuple(a for a in current.replicated if a not in shown)
    return replace(current, dims=dims, replicated=replicated)
