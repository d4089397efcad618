"""Passes: the order of sinks at one loop level, and the values they keep for each other."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from weft.emit.llvm.loops.cost import step_cost
from weft.emit.llvm.loops.simplify import reachable_steps
from weft.emit.llvm.writer.storage import is_narrow, register_kind
from weft.kernels.kernel import Fill, Kernel, Load, Pick, Position, Reduce, Store, args_of
from weft.records import dataclass

KEEP = 6.0  # cost of a step from which its value is kept instead of recomputed
BUSY = 20.0  # cost of a pass from which it hides memory latency
NEAR = 1 / 16  # the share of L2 up to which narrow floats are kept widened
ROOM = 1 / 4  # the share of L2 that all values kept at one level take


@dataclass(frozen=True, slots=True)
class SinkGroup:
    """Sinks that run in the same loops.

    `sinks` are stores, and reductions that started outside; `starts` are reductions that start and
    finish in this pass. The values of `keeps` are read by later passes.
    """

    sinks: tuple[int, ...]
    starts: tuple[int, ...]
    keeps: tuple[int, ...] = ()


def arrange(
    kernel: Kernel,
    sinks: Sequence[int],
    ready: Collection[int],
    opened: Collection[int],
    l2_bytes: int,
) -> list[SinkGroup]:
    """The passes of some sinks, given the open factors and the available values."""
    cone = reachable_steps(kernel.steps, sinks, ready)
    steps = kernel.steps
    here = {n for n in cone if n not in sinks and begins(kernel, n, opened)}
    levels: dict[int, int] = {}
    for n in sorted(cone):
        base = max((levels.get(a, 0) for a in args_of(steps[n])), default=0)
        # A reduction that starts here is known after its pass only: what reads it belongs to the
        # next one.
        levels[n] = base + 1 if n in here else base
    passes = [
        SinkGroup(
            tuple([n for n in sinks if levels[n] == k]),
            tuple([n for n in sorted(here) if levels[n] == k + 1]),
        )
        for k in range(max([levels[n] for n in sinks], default=0) + 1)
    ]
    # One pass: every value is in registers when it is read, and nothing is kept.
    if len(passes) == 1:
        return passes
    return _Keeping(kernel, set(opened), set(ready), levels, l2_bytes).keep(passes)


def busiest(
    kernel: Kernel, passes: Sequence[SinkGroup], ready: Collection[int], opened: Collection[int]
) -> SinkGroup | None:
    """The pass with most of the work, if it is substantial."""
    done = set(ready)
    costs: list[float] = []
    for one in passes:
        computed = reachable_steps(kernel.steps, (*one.sinks, *one.starts), done)
        inside = [n for n in computed if not kernel.spans[n] <= set(opened)]
        costs.append(sum([step_cost(kernel.steps[n]) for n in inside]))
        done |= {*one.starts, *one.keeps}
    most = max(costs)
    return passes[costs.index(most)] if most >= BUSY else None


def begins(kernel: Kernel, n: int, opened: Collection[int]) -> bool:
    """Whether a step is a reduction that starts where these factors are open.

    If a kept factor lies inside of a reduced one, it starts outside of both.
    """
    step = kernel.steps[n]
    if not isinstance(step, Reduce | Pick):
        return False
    outside = {f for f in kernel.spans[n] if f < min(step.over)}
    return outside <= set(opened) and not any(f in opened for f in step.over)


@dataclass(frozen=True, slots=True)
class _Keeping:
    """Finds values that are worth keeping from one pass for a later one."""

    kernel: Kernel
    opened: set[int]
    ready: set[int]
    levels: Mapping[int, int]
    l2_bytes: int

    def keep(self, passes: list[SinkGroup]) -> list[SinkGroup]:
        computed = [
            self.inner(reachable_steps(self.kernel.steps, self.roots(p), self.ready))
            for p in passes
        ]
        keeps: list[list[int]] = [[] for _ in passes]
        room = int(ROOM * self.l2_bytes)
        for k in range(1, len(passes)):
            for step in self.frontier(k, passes[k], computed):
                # Kept where it is computed first; all later passes read it.
                first = next(j for j in range(k) if step in computed[j])
                taken = self.nbytes(step)
                if step not in keeps[first] and taken <= room:
                    keeps[first].append(step)
                    room -= taken
        return [
            SinkGroup(p.sinks, p.starts, tuple(kept)) for p, kept in zip(passes, keeps, strict=True)
        ]

    def roots(self, one: SinkGroup) -> list[int]:
        return [a for n in (*one.sinks, *one.starts) for a in args_of(self.kernel.steps[n])]

    def inner(self, steps: set[int]) -> set[int]:
        return {n for n in steps if not self.kernel.spans[n] <= self.opened}

    def frontier(self, k: int, one: SinkGroup, computed: list[set[int]]) -> list[int]:
        """Costly steps that a pass needs and an earlier one computes."""
        nodes: list[int] = []
        seen: set[int] = set()
        todo = self.roots(one)
        while todo:
            n = todo.pop()
            if n in seen or n in self.ready or self.kernel.spans[n] <= self.opened:
                continue
            seen.add(n)
            if self.levels[n] < k and any(n in computed[j] for j in range(k)):
                if self.worth(n):
                    nodes.append(n)
            else:
                todo += args_of(self.kernel.steps[n])
        return sorted(nodes)

    def worth(self, n: int) -> bool:
        step = self.kernel.steps[n]
        if isinstance(step, Store | Fill | Position) or step.dtype.is_complex:
            return False
        if isinstance(step, Load) and is_narrow(step.dtype):
            return self.nbytes(n) <= NEAR * self.l2_bytes
        # Cheap steps are computed again: a store and a load cost as much.
        return register_kind(step.dtype) != "i1" and self.cost(n) >= KEEP

    def cost(self, n: int) -> float:
        """The cost of recomputing a step at one point."""
        total = 0.0
        for m in self.inner(reachable_steps(self.kernel.steps, [n], self.ready)):
            step = self.kernel.steps[m]
            times = 1
            if isinstance(step, Reduce | Pick):
                times = math.prod([self.kernel.factors[f].size for f in step.over])
            total += step_cost(step) * times
        return total

    def nbytes(self, n: int) -> int:
        sizes = [self.kernel.factors[f].size for f in self.kernel.spans[n] - self.opened]
        # The widest element, for an estimate that is never too small.
        return 8 * math.prod(sizes)
