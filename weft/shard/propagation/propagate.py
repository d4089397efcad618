"""The propagation loop: visits until a fixed point, as in MLIR's greedy driver."""

from __future__ import annotations

from array import array
from collections.abc import Container
from dataclasses import field, replace
from operator import itemgetter
from typing import Literal, NamedTuple

import numpy as np

from weft.ir.rule import Rule
from weft.mesh import Mesh, Sharding
from weft.mesh.algebra import in_mesh_order
from weft.mesh.sharding import DimSharding
from weft.records import dataclass
from weft.shard.closing import unsplit
from weft.shard.meshes import common_mesh
from weft.shard.propagation.dead_nodes import DeadNodes
from weft.shard.propagation.directions import ROUNDS
from weft.shard.propagation.factors import Strategy, spread
from weft.shard.propagation.flow import Flow
from weft.shard.propagation.graph import Graph, Visit

PropagationLevel = Literal["basic", "aggressive", "op", "user"]
# States of a visit: no cell has a sharding; it may change something; it changes nothing.
ASLEEP, DIRTY, CLEAN = 0, 1, 2


class Change(NamedTuple):
    """A change of a cell from one sharding to another, by a visit (None: by a priority)."""

    cell: int
    old: int  # numbers of shardings
    new: int
    visit: Visit | None
    round: int | None
    priority: int


class VisitOutcome(NamedTuple):
    """The changes of a visit: cells, and the numbers of their new shardings."""

    changes: tuple[tuple[int, int], ...]
    restless: bool  # not idempotent: it would change its own result again, in the next sweep


Memo = dict[tuple[int, ...], VisitOutcome | None]  # by the sharding numbers of a visit's cells


@dataclass
class Propagation:
    """One propagation over a graph; cells hold shardings by interned number."""

    graph: Graph
    level: PropagationLevel = "user"
    known: list[Sharding | None] = field(default_factory=lambda: [None])
    numbers: dict[Sharding, int] = field(default_factory=dict)
    held: list[int] = field(default_factory=list)
    history: list[Change] | None = None  # the log of all changes, if requested
    now: tuple[int | None, int] = (None, 0)  # round and priority

    def run(self) -> list[Sharding | None]:
        """Propagate, and return the final sharding of every cell."""
        self.start()
        # Shardy's levels are nested: the user's priorities are outermost, each of them runs all
        # rounds of op priorities, and each of those propagates to a fixed point.
        waiting = self.hide_lower_priorities() if self.level == "user" else []
        self.wake()
        self.run_rounds()
        for priority, revealed in waiting:
            self.now = (None, priority)
            for cell, original in revealed:
                current = self.known[self.held[cell]]
                assert current is not None
                # Into the current sharding, not the original: what propagated to the other dims
                # meanwhile stays.
                self.set(cell, self.number(_with_priority(current, original, priority)))
            self.run_rounds()
        return [self.known[n] for n in self.held]

    def start(self) -> None:
        """Intern the shardings of cells and the flows of visits."""
        graph = self.graph
        self.held = [0 if s is None else self.number(s) for s in graph.initial]
        self.groups = {m.cell: group for group in graph.groups.values() for m in group if m.leads}
        # Cells whose changes need the slow path: all of them if a log is kept.
        self.unusual: Container[int] = {*self.groups, *graph.deferred, *graph.siblings}
        if self.history is not None:
            self.unusual = range(len(self.held))
        self.unsettled: list[int] = []  # visits that are not idempotent
        self.dead_nodes = {
            index: d for d in map(DeadNodes.start, graph.dead_nodes) for index in d.nodes
        }
        self.erased: set[int] = set()
        # A visit of one cell cannot propagate: it is skipped.
        self.reads = [itemgetter(*c) if len(c := v.cells) > 1 else _nothing for v in graph.visits]
        self.memos: dict[object, Memo] = {}
        self.flows = list(dict.fromkeys([v.flow for v in graph.visits]))
        for dead_nodes in graph.dead_nodes:
            self.flows.extend(flow for _, _, flow in dead_nodes.waiting.values())
        self.flow_numbers = {flow: n for n, flow in enumerate(self.flows)}
        self.flow_of = array("q", [self.flow_numbers[v.flow] for v in graph.visits])
        self.rules: dict[Rule, int] = {}  # interned by equality
        self.rule_numbers: dict[int, int] = {}  # the same by identity, a faster look-up
        self.rows: list[tuple[int, ...]] = []  # the directions of the current round, by flow
        self.allowed: list[Memo] = []  # memoized outcomes, by flow

    def wake(self) -> None:
        """Wake the visits whose cells have a sharding."""
        self.state = bytearray(len(self.graph.visits))
        for cell, number in enumerate(self.held):
            if number:
                for index in (*self.graph.listeners[cell], *self.graph.deferred.get(cell, ())):
                    self.state[index] = DIRTY

    def number(self, sharding: Sharding | None) -> int:
        """The interned number of a sharding; 0 for none."""
        if sharding is None:
            return 0
        number = self.numbers.get(sharding)
        if number is None:
            number = self.numbers[sharding] = len(self.known)
            self.known.append(sharding)
        return number

    def mesh(self, sharding: Sharding) -> Mesh:
        return sharding.resolve(self.graph.module.meshes)

    # User priorities

    def hide_lower_priorities(self) -> list[tuple[int, list[tuple[int, Sharding]]]]:
        """Hide all but priority 0; returns the hidden shardings, by priority."""
        later: dict[int, list[tuple[int, Sharding]]] = {}
        first = [0] * len(self.known)  # the visible part of each sharding
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
        # Rounds differ in the directions that ops allow, and later ones allow more: see
        # `directions`.
        for n in range(ROUNDS):
            self.round(n)

    def round(self, n: int | None) -> None:
        """Visit until a fixed point, with the directions of this round.

        As in MLIR's greedy driver, visits run in program order, and one that is notified of a
        change after it has run goes onto a stack and runs again at once. Visits that cannot change
        anything are skipped.
        """
        # Before and after a round, as Shardy does: result attributes take no part in the worklist.
        self.results()
        self.allow(ROUNDS - 1 if n is None else n)
        self.now = (n, self.now[1])
        self.sweep()
        # Left dirty for the next round: visits that would change their own result again, and nodes
        # that may be dead by then.
        for index in (*self.unsettled, *self.dead_nodes):
            self.state[index] = DIRTY
        self.unsettled.clear()
        self.results()

    def allow(self, n: int) -> None:
        """Set the directions of the n-th round, and wake the visits whose directions changed.

        Visits without shardings, or without allowed directions, stay asleep.
        """
        rows = [flow.directions[n] for flow in self.flows]
        changed = np.array([a != b for a, b in zip(rows, self.rows or rows, strict=True)], bool)
        active = np.array([any(row) for row in rows], bool)
        state, flow_of = np.frombuffer(self.state, np.uint8), np.frombuffer(self.flow_of, np.int64)
        # A visit that found nothing to do in the last round may find something with more
        # directions.
        state[(state == CLEAN) & changed[flow_of]] = DIRTY
        state[(state == DIRTY) & ~active[flow_of]] = CLEAN
        state[list(self.dead_nodes)] = DIRTY
        self.rows = rows
        self.allowed = [self.memo(flow, row) for flow, row in zip(self.flows, rows, strict=True)]

    def sweep(self) -> None:
        """Run every awake visit, in program order.

        The hot loop of propagation: the common path is inlined.
        """
        graph, state, held, unusual = self.graph, self.state, self.held, self.unusual
        reads, memos, flow_of = self.reads, self.allowed, self.flow_of
        visits, listeners, dead_nodes, erased = (
            graph.visits,
            graph.listeners,
            self.dead_nodes,
            self.erased,
        )
        again: list[int] = []
        queued = bytearray(len(state))
        # `find` on a bytearray scans for the next dirty visit without a Python loop.
        turn = index = state.find(DIRTY)
        while turn >= 0:
            # Before it runs: a visit that changes its own cells is not notified by itself, but
            # others may wake it again.
            state[index] = CLEAN
            if (dead_nodes or erased) and self.is_gone(index, turn, queued, again):
                outcome = None
            else:
                # A tuple of interned numbers: equal shardings have one number, so that the memo's
                # key is cheap, and equal layers of a model share outcomes.
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
                        notified = self.put(cell, number, visit)
                    else:
                        held[cell] = number
                        notified = listeners[cell]
                    # Reversed, since the worklist is a stack: the first user in the list of uses is
                    # popped first, as by MLIR.
                    for other in reversed(notified):
                        if other != index:
                            state[other] = DIRTY
                            # Those after `turn` are reached by the scan; earlier ones are
                            # stacked, as MLIR's worklist would.
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
        """Whether a node is erased; one without uses is erased now."""
        if index in self.erased:
            return True
        dead_nodes = self.dead_nodes.get(index)
        if dead_nodes is None or not dead_nodes.is_dead(index):
            return False

        def push(other: int) -> None:
            if other <= turn and not queued[other]:
                queued[other] = 1
                again.append(other)
                if other in self.dead_nodes:
                    self.state[other] = DIRTY

        del self.dead_nodes[index]
        self.erased.update((index, *dead_nodes.inside.get(index, ())))
        for other, flow in dead_nodes.erase(index, push):
            self.flow_of[other] = self.flow_numbers[flow]
            self.state[other] = DIRTY
        return True

    # Changes

    def put(self, cell: int, number: int, visit: Visit | None) -> list[int]:
        """Set the sharding of a cell and its group; returns the visits to notify, last first."""
        listeners = self.graph.listeners
        self.hold(cell, number, visit)
        if cell not in self.groups:
            return listeners[cell]
        notified = listeners[cell][::-1]
        for member in self.groups[cell]:
            # The cell itself is in its group, and was set above.
            if member.leads and member.cell == cell:
                continue
            self.hold(member.cell, number, visit)
            notified.extend(reversed(listeners[member.cell]) if member.leads else member.listeners)
            for other in listeners[member.cell]:
                self.state[other] = self.state[other] or CLEAN
        return notified[::-1]

    def hold(self, cell: int, number: int, visit: Visit | None) -> None:
        """Set the sharding of a cell; the other results of its node get open ones."""
        if self.history is not None and number != self.held[cell]:
            self.history.append(Change(cell, self.held[cell], number, visit, *self.now))
        self.held[cell] = number
        for other in self.graph.deferred.get(cell, ()):
            self.state[other] = DIRTY
        if cell in self.graph.siblings:
            self.open_siblings(cell, number)

    def open_siblings(self, cell: int, number: int) -> None:
        """Give the other results of a node open shardings: results have shardings together."""
        sharding = self.known[number]
        assert sharding is not None
        for other in self.graph.siblings[cell]:
            if not self.held[other]:
                opened = unsplit(self.graph.types[other], sharding.mesh, is_open=True)
                self.set(other, self.number(opened))

    def results(self) -> None:
        """Propagate between returned values and result attributes, without notification."""
        held = self.held
        for visit in self.graph.results:
            now = tuple([held[cell] for cell in visit.cells])
            if now[0] == now[1]:  # equal shardings add nothing
                continue
            row = visit.directions[-1]
            outcome = self.outcome(visit.flow, row, self.memo(visit.flow, row), now)
            for position, number in outcome.changes if outcome else ():
                cell = visit.cells[position]
                self.set(cell, number, visit)
                for member in self.groups.get(cell, ()):
                    self.set(member.cell, number, visit)

    def set(self, cell: int, number: int, visit: Visit | None = None) -> None:
        """Set the sharding of a cell, and wake its users, to run in program order."""
        self.hold(cell, number, visit)
        for other in self.graph.listeners[cell]:
            self.state[other] = DIRTY

    # One visit

    def memo(self, flow: Flow, row: tuple[int, ...]) -> Memo:
        """The memoized outcomes of a flow with these directions."""
        rule = self.rule_numbers.get(id(flow.rule))
        if rule is None:
            rule = self.rules.setdefault(flow.rule, len(self.rules))
            self.rule_numbers[id(flow.rule)] = rule
        key = (rule, row, flow.elementwise, flow.frame)
        return self.memos.setdefault(key, {(): None})

    def outcome(
        self, flow: Flow, row: tuple[int, ...], memo: Memo, now: tuple[int, ...]
    ) -> VisitOutcome | None:
        """The outcome of a visit for these sharding numbers, memoized."""
        if now in memo:
            return memo[now]
        updates = self.spread(flow, row, now)
        changes = tuple([(n, number) for n, number in enumerate(updates) if number])
        if not changes:
            memo[now] = None
            return None
        # Written before the recursion: a visit that goes back and forth between two states ends
        # there.
        memo[now] = VisitOutcome(changes, False)
        after = tuple([new or old for new, old in zip(updates, now, strict=True)])
        if self.outcome(flow, row, memo, after) is not None:
            memo[now] = VisitOutcome(changes, True)
        return memo[now]

    def spread(self, flow: Flow, row: tuple[int, ...], now: tuple[int, ...]) -> tuple[int, ...]:
        """The new sharding numbers of a visit's cells, 0 for no change."""
        shardings = [self.known[number] for number in now]
        frame = flow.frame
        if frame is not None and (last := shardings[-1]) is not None:
            shardings[-1] = frame.before(last)
        name = common_mesh(shardings, self.graph.module.meshes)
        if name is None or not any(row):
            return ()
        mesh = name if isinstance(name, Mesh) else self.graph.module.meshes[name]
        if not mesh.axes:  # maximal shardings: one device
            return ()
        strategy: Strategy = "basic" if self.level == "basic" else "aggressive"
        made = spread(flow.rule, shardings, row, strategy, flow.elementwise, name, mesh)
        if frame is not None and (new := made[-1]) is not None:
            made = (*made[:-1], frame.after(new))
        return tuple([self.number(s) for s in made])


def _nothing(_: object) -> tuple[int, ...]:
    return ()


def _first_priority(sharding: Sharding, mesh: Mesh) -> Sharding:
    """The sharding with dims of later priorities closed and empty, and their axes replicated."""
    replicated = list(sharding.replicated)
    dims = []
    for dim in sharding.dims:
        if dim.priority:
            # Explicitly replicated: until its priority comes, nothing may use these axes elsewhere
            # in the tensor.
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
