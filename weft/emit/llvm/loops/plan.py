"""The execution plan of a loop kernel: loop order, vector width, tasks and their sizes."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

from weft.emit.llvm.jit.caches import Caches
from weft.emit.llvm.loops.cost import (
    REGISTER_LANES,
    TRANSCENDENTAL,
    per_point,
    step_cost,
    steps_cost,
)
from weft.emit.llvm.loops.simplify import reachable_steps
from weft.emit.llvm.loops.transposed import TILE, TransposedAccesses, find_transposed
from weft.emit.llvm.writer.access import boundaries
from weft.emit.llvm.writer.storage import register_kind
from weft.emit.llvm.writer.vector import BITS
from weft.kernels.kernel import Apply, Choose, Kernel, Load, Pick, Reduce, Store
from weft.records import dataclass

TASK = 1 << 14  # cost of a task, in vector instructions
SPREAD = 8  # tasks that suffice for a machine's threads
LINE = 64  # bytes of a cache line
LANES = 64  # 32-bit lanes: four registers in flight hide the latency of one
FEW_LANES = 16  # for processors with fewer or shorter registers, or very many live values
FEW_VALUES, FEW_STEPS = 6, 60  # values of that width
FEW_POINTS = 8  # a kernel of so many points may be scalar code without loops
UNROLLED = 64  # most transcendental instructions of such a kernel
SHORT_STEPS = 16  # steps that cost less than what the masks of their vectors do


@dataclass(frozen=True)
class LoopPlan:
    """The plan of a simplified kernel, whose factors are in loop order.

    Tasks are points of some factors, or blocks of points.
    """

    kernel: Kernel
    tasks: tuple[tuple[int, int], ...]  # task factors and their blocks
    chunk: int
    vector: int | None
    width: int
    cut: tuple[int, int] | None = None  # the split factor and its block: factor 0 counts the parts
    streams: frozenset[int] = frozenset()  # non-temporal stores
    transposed: TransposedAccesses | None = None
    caches: Caches = Caches()
    unrolled: bool = False  # every point has scalar code of its own

    @property
    def count(self) -> int:
        """The number of tasks."""
        return math.prod([-(-self.kernel.factors[n].size // block) for n, block in self.tasks])

    def starts(self, factor: int) -> int:
        """A divisor of every index at which a task starts along a factor."""
        if self.cut is not None and self.cut[0] == factor:
            return self.cut[1]
        return dict(self.tasks).get(factor, 0)

    @cached_property
    def spilled(self) -> frozenset[int]:
        """The reductions with sums in scratch: a kept factor lies inside of a reduced one."""
        return spilled(self.kernel)

    @property
    def is_spread(self) -> bool:
        """Whether there are tasks for many threads, or too little work for more than one."""
        if self.count >= SPREAD:
            return True
        task = dict(self.kernel.schedule.options).get("task", TASK)
        cost = steps_cost(self.kernel, range(len(self.kernel.steps)))
        return cost <= 2 * task * max(1, self.count)


def plan(
    kernel: Kernel, lanes: int, caches: Caches, cut: tuple[int, int] | None = None
) -> LoopPlan:
    """Vector width and tasks for a kernel whose factors are in loop order."""
    options = dict(kernel.schedule.options)
    if cut is None and _is_unrolled(kernel):
        return LoopPlan(kernel, (), 1, None, 1, caches=caches, unrolled=True)
    vector = options.get("vector", lanes_factor(kernel, cut is not None))
    width = options.get("width", _width(kernel, vector, lanes)) if vector is not None else 1
    task = options.get("task", TASK)
    tasks, cost = _tasks(kernel, vector, width, task, cut)
    transposed = None if vector is None or cut is not None else find_transposed(kernel, vector)
    if transposed is not None:
        tiles = _tiles(kernel, transposed)
        if tiles is None:
            transposed = None
        else:
            tasks, cost = tiles
    chunk = max(1, int(task / cost)) if tasks and cost < task else 1
    made = LoopPlan(kernel, tasks, chunk, vector, width, cut, transposed=transposed, caches=caches)
    # What exceeds the last cache is written with non-temporal stores: it evicts nothing then.
    return replace(made, streams=_streams(made, options.get("stream", caches.last)))


def _is_unrolled(kernel: Kernel) -> bool:
    """Whether a kernel is so small that scalars are better than a vector with masked lanes.

    In a flow LLVM keeps them in registers from kernel to kernel, which masked accesses prevent.
    """
    points = math.prod([f.size for f in kernel.factors])
    if points > FEW_POINTS or not kernel.factors:
        return False
    costs = [step_cost(s) for s in kernel.steps if isinstance(s, Apply)]
    if points * sum(cost for cost in costs if cost >= TRANSCENDENTAL) > UNROLLED:
        return False
    return all(_is_apart(kernel, n) for n in range(len(kernel.factors)))


def _is_apart(kernel: Kernel, factor: int) -> bool:
    """Whether guards give every point code of its own, or few steps are on three of four lanes."""
    guards = [g for s in kernel.steps if isinstance(s, Load | Store | Choose) for g in s.guards]
    size = kernel.factors[factor].size
    cuts = {cut for guard in guards for cut in boundaries(guard, factor) if 0 < cut < size}
    return len(cuts) + 1 == size or (size == 3 and len(kernel.steps) <= SHORT_STEPS)


def _tasks(
    kernel: Kernel, vector: int | None, width: int, task: float, cut: tuple[int, int] | None
) -> tuple[tuple[tuple[int, int], ...], float]:
    """The fewest task factors that give tasks of the right size, and the cost of a task."""
    sizes = [f.size for f in kernel.factors]
    cost = steps_cost(kernel, range(len(kernel.steps)), min(max(width, 1), REGISTER_LANES))
    tasks: list[tuple[int, int]] = []
    if cut is not None:
        # Factor 0 counts the parts, each of which is a task.
        cost /= sizes[0]
        tasks.append((0, 1))
    for n in range(len(tasks), _parallel(kernel, vector, cut is not None)):
        if cost <= task:
            break
        block = 1
        if n == vector:
            points = max(1, int(sizes[n] * task / cost))
            block = min(sizes[n], -(-points // width) * width)
        tasks.append((n, block))
        cost = cost * block / sizes[n]
    return tuple(tasks), cost


def _tiles(
    kernel: Kernel, transposed: TransposedAccesses
) -> tuple[tuple[tuple[int, int], ...], float] | None:
    """Tiles as tasks, at every point of the enclosing factors; None if these cannot be tasks."""
    blocks = {transposed.lines: TILE, transposed.vector: TILE}
    factors = list(range(len(kernel.factors)))
    if transposed.whole:
        factors = factors[: transposed.vector + 1]
        if (
            _parallel(kernel, transposed.vector, False) <= transposed.vector
            or transposed.lines in factors
        ):
            return None
    tasks = tuple([(n, blocks.get(n, 1)) for n in factors])
    count = math.prod([-(-kernel.factors[n].size // block) for n, block in tasks])
    return tasks, steps_cost(kernel, range(len(kernel.steps))) / count


def _streams(plan: LoopPlan, least: int) -> frozenset[int]:
    """The stores of whole cache lines to operands too large for the caches."""
    kernel, vector = plan.kernel, plan.vector
    streamed: set[int] = set()
    for n, step in enumerate(kernel.steps):
        if not isinstance(step, Store) or vector is None or step.guards:
            continue
        if plan.transposed is not None and n in plan.transposed.stores:
            continue
        operand = kernel.operands[step.operand]
        size = operand.dtype.numpy.itemsize
        apart = [s for f, s in enumerate(step.at.strides) if f != vector]
        starts = [step.at.offset, *apart, plan.width, plan.starts(vector)]
        starts += _cuts(kernel, n, vector)
        lines = all(start * size % LINE == 0 for start in starts)
        # Non-temporal stores bypass the caches: they save reading a line before it is overwritten,
        # but a partial line costs a read-modify-write of memory.
        if operand.nbytes >= least and step.at.strides[vector] == 1 and lines:
            streamed.add(n)
    return frozenset(streamed)


def _cuts(kernel: Kernel, store: int, vector: int) -> list[int]:
    """The cuts of the vectorized loop by guards."""
    return [
        cut
        for n in reachable_steps(kernel.steps, [store])
        if isinstance(step := kernel.steps[n], Load | Choose)
        for guard in step.guards
        for cut in boundaries(guard, vector)
    ]


def _parallel(kernel: Kernel, vector: int | None, parts: bool) -> int:
    """The number of leading factors that may be tasks: all stores span them, no reduction does."""
    stores = [s for n, s in enumerate(kernel.spans) if isinstance(kernel.steps[n], Store)]
    summed = {n for s in kernel.steps if isinstance(s, Reduce | Pick) for n in s.over}
    count = 0
    for n in range(len(kernel.factors)):
        if n == 0 and parts:
            count = 1
            continue
        if n in summed or not all(n in span for span in stores):
            break
        count += 1
        if n == vector:
            break
    return count


def lanes_factor(kernel: Kernel, cut: bool = False) -> int | None:
    """The best factor to vectorize; of a split kernel, the first one counts parts."""
    first = 1 if cut else 0
    summed = {f for n in spilled(kernel) for f in _over(kernel, n)}
    # A row of sums in scratch has its lanes along a kept factor.
    able = [n for n in range(first, len(kernel.factors)) if n not in summed]
    return min(able, key=lambda n: (per_point(kernel, n), -n), default=None)


def spilled(kernel: Kernel) -> frozenset[int]:
    """The reductions of which a kept factor lies inside of a reduced one."""
    return frozenset(
        n
        for n, span in enumerate(kernel.spans)
        if (over := _over(kernel, n)) and span and max(span) > min(over)
    )


def _over(kernel: Kernel, n: int) -> tuple[int, ...]:
    step = kernel.steps[n]
    return step.over if isinstance(step, Reduce | Pick) else ()


def _width(kernel: Kernel, vector: int, lanes: int) -> int:
    """The vector width for a factor: wide with few live values, narrower with many."""
    pairs = zip(kernel.steps, kernel.spans, strict=True)
    values = [s for s, span in pairs if vector in span or isinstance(s, Reduce | Pick)]
    kinds = [register_kind(s.dtype) for s in values if not isinstance(s, Store)]
    widest = max((BITS[kind] for kind in kinds if kind != "i1"), default=32)
    at_once = sum(isinstance(s, Load | Reduce | Pick) for s in values)
    if at_once > FEW_VALUES or len(values) > FEW_STEPS:
        lanes //= 2
    if at_once > 2 * FEW_VALUES:
        lanes //= 2
    most = max(lanes, FEW_LANES) * 32 // max(widest, 32)
    return _fitting(kernel.factors[vector].size, most)


def _fitting(size: int, most: int) -> int:
    """A width that leaves few lanes over at the end of a factor; wider is slightly faster."""
    able = [most >> n for n in range(3) if most >> n >= min(most, REGISTER_LANES)]
    # Lanes computed, with those that are masked off at the end: 40 elements in vectors of 64 waste
    # 24.
    costs = {w: -(-size // w) * w * (1 + 0.25 * n) for n, w in enumerate(able)}
    return min(min(costs, key=costs.__getitem__), 1 << (size - 1).bit_length())
