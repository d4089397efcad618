"""Propagation: shardings spread from where they are given until nothing changes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from weft.mesh import Mesh, Sharding
from weft.mesh.algebra import in_mesh_order
from weft.mesh.sharding import DimSharding
from weft.shard.closing import unsplit
from weft.shard.directions import ROUNDS, Table
from weft.shard.doomed import Doomed
from weft.shard.factors import Strategy, spread
from weft.shard.graph import Graph, Visit
from weft.shard.meshes import common_mesh

Level = Literal["basic", "aggressive", "op", "user"]


class Change(NamedTuple):
    """What a visit changed (none where a priority comes in): a cell, from a sharding to another."""

    cell: int
    old: int  # numbers of shardings
    new: int
    visit: Visit | None
    round: int | None
    priority: int


@dataclass
class Propagation:
    """One propagation over a graph: what every cell holds, by number of its sharding."""

    graph: Graph
    level: Level = "user"
    known: list[Sharding | None] = field(default_factory=lambda: [None])
    numbers: dict[Sharding, int] = field(default_factory=dict)
    held: list[int] = field(default_factory=list)
    memo: dict[object, tuple[int, ...] | None] = field(default_factory=dict)
    rules: dict[object, int] = field(default_factory=dict)
    history: list[Change] | None = None  # every change in order, where somebody wants to know
    now: tuple[int | None, int] = (None, 0)  # round and priority

    def run(self) -> list[Sharding | None]:
        """Propagate, and return what every cell holds in the end."""
        graph = self.graph
        self.held = [self.number(s) for s in graph.initial]
        self.groups = {m.cell: group for group in graph.groups.values() for m in group if m.leads}
        self.rule_of = [self.rule_number(v) for v in graph.visits]
        self.restless: set[int] = set()  # changes, by identity, that lead to further ones
        self.unsettled: list[int] = []  # visits that made such changes
        self.allowed: list[tuple[int, ...]] = [()] * len(graph.visits)
        self.row: int | None = None  # of the directions that are allowed now
        self.tables: dict[int, tuple[Table, list[int]]] = {}  # the visits of each, by identity
        for index, visit in enumerate(graph.visits):
            table = visit.directions
            self.tables.setdefault(id(table), (table, []))[1].append(index)
        self.dirty = bytearray(b"\1" * len(graph.visits))
        self.doomed = {index: d for d in map(Doomed.start, graph.doomed) for index in d.nodes}
        self.erased: set[int] = set()
        waiting = self.hide_lower_priorities() if self.level == "user" else []
        self.run_rounds()
        for priority, revealed in waiting:
            self.now = (None, priority)
            for cell, original in revealed:
                current = self.known[self.held[cell]]
                assert current is not None
                self.set(cell, _with_priority(current, original, priority))
            self.run_rounds()
        return [self.known[n] for n in self.held]

    def number(self, sharding: Sharding | None) -> int:
        """The number that stands for a sharding; 0 for none."""
        if sharding is None:
            return 0
        found = self.numbers.get(sharding)
        if found is None:
            found = self.numbers[sharding] = len(self.known)
            self.known.append(sharding)
        return found

    def rule_number(self, visit: Visit) -> int:
        """The number that stands for what a visit does."""
        by_identity = (id(visit.rule), visit.frame)
        found = self.rules.get(by_identity)
        if found is None:
            found = self.rules.setdefault((visit.rule, visit.frame), len(self.rules))
            self.rules[by_identity] = found
        return found

    def mesh(self, sharding: Sharding) -> Mesh:
        return sharding.resolve(self.graph.module.meshes)

    # User priorities

    def hide_lower_priorities(self) -> list[tuple[int, list[tuple[int, Sharding]]]]:
        """Leave only priority 0 visible; what is to be revealed later, priority by priority."""
        later: dict[int, list[tuple[int, Sharding]]] = {}
        for cell, number in enumerate(self.held):
            sharding = self.known[number]
            if sharding is None:
                continue
            for priority in dict.fromkeys(d.priority or 0 for d in sharding.dims):
                if priority:
                    later.setdefault(priority, []).append((cell, sharding))
            self.held[cell] = self.number(_first_priority(sharding, self.mesh(sharding)))
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
            self.dirty[index] = 1
        self.unsettled.clear()
        self.results()

    def allow(self, n: int) -> None:
        """Let visits spread as the n-th round allows it."""
        before, self.row = self.row, n
        for table, indices in self.tables.values():
            row = table[n]
            if before is None or row != table[before]:
                active = any(row)  # where nothing may spread, there is nothing to visit
                for index in indices:
                    self.allowed[index] = row
                    self.dirty[index] = active or index in self.doomed

    def sweep(self) -> None:
        """Take every visit in turn that could change something."""
        dirty = self.dirty
        again: list[int] = []
        queued = bytearray(len(dirty))
        turn = dirty.find(1)
        while turn >= 0:
            self.visit(turn, turn, queued, again)
            while again:
                index = again.pop()
                queued[index] = 0
                if dirty[index]:
                    self.visit(index, turn, queued, again)
            turn = dirty.find(1, turn + 1)

    def visit(self, index: int, turn: int, queued: bytearray, again: list[int]) -> None:
        """Spread through one visit, and tell the others of what changed."""
        dirty = self.dirty
        dirty[index] = 0
        if index in self.erased or (self.doomed and self.erase(index, turn, queued, again)):
            return
        visit = self.graph.visits[index]
        changes = self.changes(visit, self.rule_of[index], self.allowed[index])
        if changes is None:
            return
        if id(changes) in self.restless or index in self.graph.twice:
            self.unsettled.append(index)
        groups, told = self.groups, self.graph.told
        for cell, number in zip(visit.cells, changes, strict=True):
            if not number:
                continue
            self.put(cell, number, visit)
            for other in self.follow(cell, number, visit) if cell in groups else told[cell]:
                if other == index:
                    continue
                dirty[other] = 1
                if other <= turn and not queued[other]:
                    queued[other] = 1
                    again.append(other)

    def erase(self, index: int, turn: int, queued: bytearray, again: list[int]) -> bool:
        """Erase a node that nobody reads any more; whether that was one."""
        doomed = self.doomed.get(index)
        if doomed is None or not doomed.is_dead(index):
            return False

        def push(other: int) -> None:
            if other <= turn and not queued[other]:
                queued[other] = 1
                again.append(other)
                self.dirty[other] |= other in self.doomed

        del self.doomed[index]
        self.erased.update((index, *doomed.inside.get(index, ())))
        for other, table in doomed.erase(index, push):
            self.tables[id(self.graph.visits[other].directions)][1].remove(other)
            self.tables.setdefault(id(table), (table, []))[1].append(other)
            self.allowed[other] = table[self.row or 0]
            self.dirty[other] = 1
        return True

    def put(self, cell: int, number: int, visit: Visit | None) -> None:
        """Let a cell hold another sharding; the other results of its node are then open ones."""
        if self.history is not None:
            self.note(cell, number, visit)
        self.held[cell] = number
        graph = self.graph
        if cell in graph.untold:
            for other in graph.untold[cell]:
                self.dirty[other] = 1
        if cell in graph.siblings:
            self.open_siblings(cell, number)

    def open_siblings(self, cell: int, number: int) -> None:
        """The results of a node have shardings together: the others are open at first."""
        made = self.known[number]
        assert made is not None
        for other in self.graph.siblings[cell]:
            if not self.held[other]:
                opened = unsplit(self.graph.types[other], made.mesh, is_open=True)
                self.set_number(other, self.number(opened))

    def follow(self, cell: int, number: int, visit: Visit) -> list[int]:
        """Let the other members of a cell's group hold the same; all visits to be told of it."""
        heard = list(self.graph.told[cell])
        for member in self.groups[cell]:
            if member.cell != cell or not member.leads:
                self.put(member.cell, number, visit)
                heard.extend(member.told)
        return heard

    def results(self) -> None:
        """Between returned values and the result attributes; tells nobody."""
        for visit in self.graph.results:
            changes = self.changes(visit, self.rule_number(visit), visit.directions[-1])
            for cell, number in zip(visit.cells, changes or (), strict=False):
                if number:
                    self.set_number(cell, number, visit)
                    for member in self.groups.get(cell, ()):
                        self.set_number(member.cell, number, visit)

    def set(self, cell: int, sharding: Sharding) -> None:
        self.set_number(cell, self.number(sharding))

    def set_number(self, cell: int, number: int, visit: Visit | None = None) -> None:
        self.put(cell, number, visit)
        for told in self.graph.told[cell]:
            self.dirty[told] = 1

    def note(self, cell: int, number: int, visit: Visit | None) -> None:
        """Remember a change that is about to be made."""
        if self.history is not None and number != self.held[cell]:
            self.history.append(Change(cell, self.held[cell], number, visit, *self.now))

    # One visit

    def changes(
        self, visit: Visit, rule: int, directions: tuple[int, ...]
    ) -> tuple[int, ...] | None:
        """The new numbers of a visit's cells, 0 where nothing changes; None if nothing does."""
        now = tuple(map(self.held.__getitem__, visit.cells))
        key = (rule, id(directions), visit.elementwise, now)
        try:
            return self.memo[key]
        except KeyError:
            return self.transfer(visit, rule, directions, now)

    def transfer(
        self, visit: Visit, rule: int, directions: tuple[int, ...], held: tuple[int, ...]
    ) -> tuple[int, ...] | None:
        """What a visit makes of these numbers, worked out once.

        One that would change its own result again is restless: it is visited in the next round.
        """
        # The graph keeps its rows of directions, so one is known by its identity.
        key = (rule, id(directions), visit.elementwise, held)
        try:
            return self.memo[key]
        except KeyError:
            found = self.memo[key] = self.spread(visit, held, directions)
        if found is not None:
            after = tuple([new or old for new, old in zip(found, held, strict=True)])
            if self.transfer(visit, rule, directions, after) is not None:
                self.restless.add(id(found))
        return found

    def spread(
        self, visit: Visit, held: tuple[int, ...], directions: tuple[int, ...]
    ) -> tuple[int, ...] | None:
        shardings = [self.known[number] for number in held]
        frame = visit.frame
        if frame is not None and (last := shardings[-1]) is not None:
            shardings[-1] = frame.before(last)
        name = common_mesh(shardings, self.graph.module.meshes)
        if name is None or not any(directions):
            return None
        mesh = name if isinstance(name, Mesh) else self.graph.module.meshes[name]
        if not mesh.axes:  # everything is on one device
            return None
        strategy: Strategy = "basic" if self.level == "basic" else "aggressive"
        made = spread(visit.rule, shardings, directions, strategy, visit.elementwise, name, mesh)
        if frame is not None and (new := made[-1]) is not None:
            made = (*made[:-1], frame.after(new))
        numbers = tuple(self.number(s) for s in made)
        return numbers if any(numbers) else None


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
