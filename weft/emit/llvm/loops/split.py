"""Split reductions: threads compute partial results of a loop, which are combined later."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from weft.emit.llvm.loops.cost import steps_cost
from weft.emit.llvm.loops.order import loop_order
from weft.emit.llvm.loops.plan import LANES, TASK, lanes_factor
from weft.kernels.interpret import compute_dtype
from weft.kernels.kernel import (
    Affine,
    Factor,
    Kernel,
    Load,
    Operand,
    Pick,
    Reduce,
    Schedule,
    Step,
    Store,
    args_of,
    value_dtype,
)
from weft.kernels.rewriting import map_affines, renumbered
from weft.records import dataclass

PARTS = 64  # most parts of a loop
LONG = 4  # a loop is split if one result costs more than a task divided by this


@dataclass(frozen=True, slots=True)
class TaskSplit:
    """A factor split over tasks: each part has `block` points."""

    part: str  # name of the factor that counts parts
    factor: str
    block: int


@dataclass(frozen=True, slots=True)
class Stage:
    """A kernel of one stage; operands beyond the first ones lie in the workspace."""

    kernel: Kernel
    cut: TaskSplit | None


@dataclass(frozen=True, slots=True)
class SharedReduction:
    """A reduction with partial results in the workspace: its operands there, and its parts."""

    operands: tuple[int, ...]
    part: int | None  # the factor that counts parts
    at: dict[int, int]  # strides


def split(kernel: Kernel) -> list[Stage]:
    """A kernel as stages, each with a loop order and work for many tasks."""
    # Stages find factors by name: simplification renumbers them.
    names = [replace(f, name=f"f{n}") for n, f in enumerate(kernel.factors)]
    splitter = _Splitter(replace(kernel, factors=tuple(names)))
    made = splitter.stages()
    return [replace(s, kernel=splitter.finished(s.kernel)) for s in made]


class _Splitter:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.factors = list(kernel.factors)
        self.operands = list(kernel.operands)
        self.shared_reductions: dict[int, SharedReduction] = {}
        self.lanes = lanes_factor(kernel)
        self.task = dict(kernel.schedule.options).get("task", TASK)
        self.shared = {n for n in range(len(kernel.steps)) if self.is_long(n)}

    def stages(self) -> list[Stage]:
        """The stages, each depending only on results of earlier ones."""
        stages_so_far: list[Stage] = []
        stores = [n for n, s in enumerate(self.kernel.steps) if isinstance(s, Store)]
        left = set(stores) | self.shared
        while left:
            free = [n for n in sorted(left) if self.awaited(n) <= self.shared_reductions.keys()]
            group = self.group(free)
            if not group:  # no loop order: inner reductions have to come first
                # Their results go through the workspace then, and the outer ones can run in any
                # order of loops.
                self.shared |= self.inner_reductions(free[0])
                left |= self.shared - self.shared_reductions.keys()
                continue
            stages_so_far.append(self.stage(group))
            left -= set(group)
        return stages_so_far

    def is_long(self, n: int) -> bool:
        """Whether one result of a reduction is too much work for a task."""
        step = self.kernel.steps[n]
        if not isinstance(step, Reduce | Pick):
            return False
        span = self.kernel.spans[n]
        points = math.prod([self.kernel.factors[f].size for f in span])
        # The lanes of a vector are results of their own, so that a task computes LANES of them at a
        # time.
        if self.lanes in span:  # many results are computed together
            points = -(-points // LANES)
        return steps_cost(self.kernel, self.cone([n])) / points > self.task / LONG

    def cone(self, roots: Sequence[int]) -> set[int]:
        """The transitive inputs of roots, up to values in the workspace."""
        reached: set[int] = set()
        todo = list(roots)
        while todo:
            n = todo.pop()
            if n not in reached:
                reached.add(n)
                step, reduction = self.kernel.steps[n], self.shared_reductions.get(n)
                if reduction is None:
                    todo += args_of(step)
                # Where parts are combined, the initial value is, too.
                elif reduction.part is not None and isinstance(step, Reduce):
                    todo += [] if step.init is None else [step.init]
        return reached

    def awaited(self, n: int) -> set[int]:
        return self.cone(args_of(self.kernel.steps[n])) & self.shared

    def inner_reductions(self, n: int) -> set[int]:
        inside = self.cone(args_of(self.kernel.steps[n])) - self.shared_reductions.keys()
        found = {m for m in inside if isinstance(self.kernel.steps[m], Reduce | Pick)}
        assert found, "a sink without reductions inside has an order of loops"
        return found

    def group(self, free: Sequence[int]) -> list[int]:
        """The sinks of one stage: they have a common loop order and, if split, a common factor."""
        members: list[int] = []
        for n in free:
            trial = [*members, n]
            computed = self.cone(trial) - self.shared_reductions.keys()
            sharing = self.common_factors(trial) or not self.common_factors(members)
            if sharing and loop_order(self.kernel, computed) is not None:
                members = trial
        return members

    def common_factors(self, sinks: Sequence[int]) -> set[int]:
        """The factors along which all sinks may be split; none if no sink is."""
        sets: list[set[int]] = []
        for n in sinks:
            match self.kernel.steps[n]:
                case Reduce(over=over):
                    sets.append(set(over))
                case Pick(over=over):  # ties go to the first position: parts are in its order
                    sets.append(set(over[:1]))
                case _:
                    sets.append(set(self.kernel.spans[n]))
        if not any(n in self.shared for n in sinks):
            return set()
        whole: set[int] = set()  # a reduction inside of a stage sees all of its factors
        for n in self.cone(sinks) - self.shared_reductions.keys() - set(sinks):
            step = self.kernel.steps[n]
            if isinstance(step, Reduce | Pick):
                whole |= set(step.over)
        return set.intersection(*sets) - whole

    # Kernels

    def stage(self, group: list[int]) -> Stage:
        cut = self.cut(group)
        part = None
        if cut is not None:
            part = len(self.factors)
            size = self.factors[int(cut.factor[1:])].size
            self.factors.append(Factor(cut.part, -(-size // cut.block)))
        steps: list[Step] = []
        numbers: dict[int, int] = {}
        for n in sorted(self.cone(group)):
            numbers[n] = self.add(steps, n, numbers, part, n in group)
        parts = dict.fromkeys([part, *(m.part for m in self.shared_reductions.values())])
        first = [] if part is None else [part]
        rest = [p for p in parts if p is not None and p != part]
        # The part is outermost, as it is what tasks divide; parts of earlier stages are innermost,
        # where they are combined.
        order = (*first, *self.kernel.schedule.order, *rest)
        schedule = Schedule("rows", order, 0, self.kernel.schedule.options)
        made = replace(self.kernel, steps=tuple(steps), schedule=schedule)
        return Stage(made, cut)

    def cut(self, group: list[int]) -> TaskSplit | None:
        """The split of the longest loop of split reductions."""
        common = self.common_factors(group)
        if not common:
            return None
        # The longest, and of equal ones the outermost: parts are runs of memory as long as
        # possible.
        factor = max(common, key=lambda n: (self.factors[n].size, -n))
        size = self.factors[factor].size
        cost = steps_cost(self.kernel, self.cone(group) - self.shared_reductions.keys())
        parts = min(PARTS, math.ceil(cost / self.task))
        block = -(-size // parts)
        # Whole cache lines and vectors, so that parts neither share lines nor begin unaligned.
        if block > 64:
            block = -(-block // 64) * 64
        return None if block >= size else TaskSplit(f"f{len(self.factors)}", f"f{factor}", block)

    def add(
        self, steps: list[Step], n: int, numbers: dict[int, int], part: int | None, sink: bool
    ) -> int:
        """Append a step's form in this stage; returns its number."""
        if n in self.shared_reductions:
            return self.recalled(steps, n, numbers)
        listed = [numbers.get(m, -1) for m in range(n)]
        step = renumbered(self.kernel.steps[n], listed)
        if sink and part is not None and isinstance(step, Reduce):
            # The initial value must count once, not once for each part: it is combined in the last
            # stage.
            step = replace(step, init=None)
        steps.append(step)
        number = len(steps) - 1
        if sink and isinstance(step, Reduce | Pick):
            self.pass_on(steps, n, step, number, part)
        return number

    def pass_on(
        self, steps: list[Step], n: int, step: Reduce | Pick, number: int, part: int | None
    ) -> None:
        """Store the result, or the partial one, to the workspace."""
        strides: dict[int, int] = {}
        count = 1
        for factor in (*sorted(self.kernel.spans[n], reverse=True), part):
            if factor is not None:
                strides[factor] = count
                count *= self.factors[factor].size
        passed = [number]
        if isinstance(step, Pick) and part is not None:
            # Parts are compared by their keys: a part passes on the best key beside the value at
            # it.
            best = replace(step, value=step.key, dtype=value_dtype(steps[step.key]))
            steps.append(best)
            passed = [len(steps) - 1, number]
        operands: list[int] = []
        for one in passed:
            self.operands.append(
                Operand(compute_dtype(value_dtype(steps[one])), (count,), output=True)
            )
            operands.append(len(self.operands) - 1)
            steps.append(Store(operands[-1], self.affine(strides), one))
        self.shared_reductions[n] = SharedReduction(tuple(operands), part, strides)

    def recalled(self, steps: list[Step], n: int, numbers: dict[int, int]) -> int:
        """Load a result from the workspace, and combine its parts."""
        reduction, step = self.shared_reductions[n], self.kernel.steps[n]
        assert isinstance(step, Reduce | Pick)
        loaded: list[int] = []
        for operand in reduction.operands:
            dtype = self.operands[operand].dtype
            steps.append(Load(operand, self.affine(reduction.at), dtype))
            loaded.append(len(steps) - 1)
        if reduction.part is None:
            return loaded[0]
        over = (reduction.part,)
        if isinstance(step, Pick):
            steps.append(replace(step, key=loaded[0], value=loaded[1], over=over))
        else:
            init = None if step.init is None else numbers[step.init]
            steps.append(replace(step, arg=loaded[0], init=init, over=over))
        return len(steps) - 1

    def affine(self, strides: dict[int, int]) -> Affine:
        return Affine(tuple([strides.get(n, 0) for n in range(len(self.factors))]))

    def finished(self, kernel: Kernel) -> Kernel:
        """A stage's kernel padded to all factors and operands."""

        def padded(at: Affine) -> Affine:
            missing = len(self.factors) - len(at.strides)
            return Affine((*at.strides, *[0] * missing), at.offset)

        steps = tuple([map_affines(step, padded) for step in kernel.steps])
        return replace(
            kernel, factors=tuple(self.factors), operands=tuple(self.operands), steps=steps
        )
