"""The propagation path of an axis: from an annotation, op by op, along one factor of each."""

from __future__ import annotations

from bisect import bisect_left

from weft.ir.module import Node
from weft.mesh import Axis, Mesh, Sharding
from weft.mesh.algebra import contains, overlaps
from weft.records import dataclass
from weft.shard.propagation.graph import Graph, Visit
from weft.shard.propagation.projection import factor_sizes, project
from weft.shard.propagation.propagate import Change, Propagation, PropagationLevel


@dataclass(frozen=True, slots=True)
class AxisStep:
    """One step of an axis between dims of two cells: through an op, or within a sharding group."""

    source: int
    source_dim: int
    target: int
    target_dim: int
    visit: Visit | None  # None within a sharding group


@dataclass(frozen=True, slots=True)
class AxisPath:
    """The annotation that an axis comes from, and the steps from there."""

    axis: Axis
    origin: int  # the cell that is annotated
    dim: int
    priority: int
    steps: tuple[AxisStep, ...]
    by: Node | None = None  # the manual computation that splits the dim


class History:
    """The log of all changes of one propagation, in order."""

    def __init__(self, graph: Graph, level: PropagationLevel) -> None:
        self.graph = graph
        self.changes: list[Change] = []
        propagation = Propagation(graph, level, history=self.changes)
        self.final = propagation.run()
        self.known = propagation.known
        self.groups: dict[int, tuple[int, ...]] = {}  # the cells of a cell's sharding group
        for group in graph.groups.values():
            cells = tuple(member.cell for member in group)
            self.groups.update(dict.fromkeys(cells, cells))
        self.times: dict[int, list[int]] = {}  # the times of each cell's changes
        for time, change in enumerate(self.changes):
            self.times.setdefault(change.cell, []).append(time)

    def mesh(self, sharding: Sharding) -> Mesh:
        """The mesh of a sharding."""
        return sharding.resolve(self.graph.module.meshes)

    def at(self, cell: int, time: int) -> Sharding | None:
        """The sharding of a cell before the change at that time."""
        times = self.times.get(cell, [])
        n = bisect_left(times, time)
        if n:
            return self.known[self.changes[times[n - 1]].new]
        return self.initial(cell)

    def initial(self, cell: int) -> Sharding | None:
        """The initial sharding of a cell, without lower priorities."""
        times = self.times.get(cell)
        return self.known[self.changes[times[0]].old] if times else self.final[cell]

    def path(self, cell: int, dim: int, axis: Axis) -> AxisPath:
        """The propagation path of an axis to a dim of a cell."""
        steps: list[AxisStep] = []
        before = len(self.changes)
        while True:
            time = self.arrival(cell, dim, axis, before)
            change = None if time is None else self.changes[time]
            if time is None or change is None or change.visit is None:
                break
            found = self.source(change, time, dim, axis)
            if found is None:
                break
            step, axis, before = found
            if step.target != cell:
                steps.append(AxisStep(step.target, dim, cell, dim, None))
            frame = step.visit.frame if step.visit else None
            if step.visit and frame and frame.is_manual(axis):
                return AxisPath(axis, step.target, dim, 0, tuple(reversed(steps)), step.visit.node)
            steps.append(step)
            cell, dim = step.source, step.source_dim
        priority = change.priority if change is not None else 0
        return AxisPath(axis, cell, dim, priority, tuple(reversed(steps)))

    def arrival(self, cell: int, dim: int, axis: Axis, before: int) -> int | None:
        """The time at which an axis reached a dim of a cell; None if it was there initially."""
        # An annotation wins over later visits that confirm it.
        if _splits(self.initial(cell), dim, axis):
            return None
        for time in self.times.get(cell, ()):
            if time < before and _splits(self.known[self.changes[time].new], dim, axis):
                return time
        return None

    def source(
        self, change: Change, time: int, dim: int, axis: Axis
    ) -> tuple[AxisStep, Axis, int] | None:
        """The cell that a visit took an axis from, and the time of that visit."""
        visit = change.visit
        assert visit is not None
        begin = self.begin(time)
        group = (change.cell, *self.groups.get(change.cell, ()))
        targets = [n for n, cell in enumerate(visit.cells) if cell in group]
        sharding = self.known[change.new]
        assert sharding is not None
        # Before the visit, as its tensors were; then after its changes so far, for an axis that
        # one of its own tensors has just received.
        for moment in (begin, time):
            for target in targets:
                for factor in self.factors_with(visit, target, dim, axis, sharding):
                    if found := self.holder(visit, target, factor, axis, moment, change):
                        cell, where, held = found
                        return AxisStep(cell, where, visit.cells[target], dim, visit), held, moment
        return None

    def begin(self, time: int) -> int:
        """The start time of a change's visit: a visit applies all its changes at once."""
        _, _, _, visit, turn, priority = self.changes[time]
        while time:
            before = self.changes[time - 1]
            if before.visit not in (visit, None) or before[4:] != (turn, priority):
                break
            time -= 1
        return time

    def sharding_inside(self, visit: Visit, tensor: int, held: Sharding) -> Sharding:
        """A tensor's sharding as seen by its visit: a manual computation hides some axes."""
        if visit.frame is None or tensor < len(visit.cells) - 1:
            return held
        return visit.frame.before(held)

    def factors_with(
        self, visit: Visit, tensor: int, dim: int, axis: Axis, sharding: Sharding
    ) -> list[int]:
        """The factors of a tensor's dim that an axis splits."""
        dims = (visit.rule.operands + visit.rule.results)[tensor]
        sharding = self.sharding_inside(visit, tensor, sharding)
        shown = project(sharding, dims, factor_sizes(visit.rule), self.mesh(sharding))
        return [
            factor
            for factor in dims[dim]
            if factor in shown.factors
            and any(overlaps(a, axis) for a in shown.factors[factor].axes)
        ]

    def holder(
        self, visit: Visit, target: int, factor: int, axis: Axis, moment: int, change: Change
    ) -> tuple[int, int, Axis] | None:
        """The tensor of a visit that had an axis along a factor: its cell, dim and axis."""
        sizes = factor_sizes(visit.rule)
        partly = None
        for n, dims in enumerate(visit.rule.operands + visit.rule.results):
            cell = visit.cells[n]
            sharding = self.at(cell, moment)
            if n == target or cell == change.cell or sharding is None:
                continue
            sharding = self.sharding_inside(visit, n, sharding)
            shown = project(sharding, dims, sizes, self.mesh(sharding))
            entry = shown.factors.get(factor)
            for held in entry.axes if entry else ():
                dim = next(d for d, factors in enumerate(dims) if factor in factors)
                if contains(held, axis):
                    return cell, dim, axis
                if overlaps(held, axis):
                    partly = partly or (cell, dim, held)
        return partly


def _splits(sharding: Sharding | None, dim: int, axis: Axis) -> bool:
    return sharding is not None and any(overlaps(a, axis) for a in sharding.dims[dim].axes)
