"""How a kernel without a product is run: the order of its loops, lanes, tasks, and their sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from weft.emit.llvm.loops.cost import REGISTER_LANES, per_point, steps_cost
from weft.emit.llvm.loops.simplify import needed
from weft.emit.llvm.loops.turned import TILE, Turned, find_turned
from weft.emit.llvm.writer.access import boundaries
from weft.emit.llvm.writer.storage import register_kind
from weft.emit.llvm.writer.vector import BITS
from weft.kernels.kernel import Choose, Kernel, Load, Pick, Reduce, Store

TASK = 1 << 14  # what a thread should have to do at a time, in vector instructions
SPREAD = 8  # tasks that are enough for a machine's threads
LINE = 64  # bytes
STREAM = 1 << 25  # bytes from which on an operand is written past the caches
LANES = 64  # of 32 bits: four registers, so that the latency of one hides behind the others
FEW_LANES = 16  # where there are fewer or shorter registers, or very many values
FEW_VALUES, FEW_STEPS = 6, 60  # that are wide


@dataclass(frozen=True)
class LoopPlan:
    """The loops of a simplified kernel, whose factors are in order.

    Tasks are the points of some factors, or blocks of points where a block is more than 1.
    """

    kernel: Kernel
    tasks: tuple[tuple[int, int], ...]  # factors and their blocks
    chunk: int
    vector: int | None
    width: int
    cut: tuple[int, int] | None = None  # a factor and its block: factor 0 counts its parts
    streams: frozenset[int] = frozenset()  # stores that go past the caches
    turned: Turned | None = None

    @property
    def count(self) -> int:
        """How many tasks there are."""
        return math.prod([-(-self.kernel.factors[n].size // block) for n, block in self.tasks])

    def starts(self, factor: int) -> int:
        """A number that every index is a multiple of from which a task begins with a factor."""
        if self.cut is not None and self.cut[0] == factor:
            return self.cut[1]
        return dict(self.tasks).get(factor, 0)

    @cached_property
    def spilled(self) -> frozenset[int]:
        """The reductions whose sums are in scratch memory: they keep what lies inside of them."""
        return spilled(self.kernel)

    @property
    def is_spread(self) -> bool:
        """Whether there are tasks for many threads, or too little to do for more than one."""
        if self.count >= SPREAD:
            return True
        task = dict(self.kernel.schedule.options).get("task", TASK)
        cost = steps_cost(self.kernel, range(len(self.kernel.steps)))
        return cost <= 2 * task * max(1, self.count)


def plan(kernel: Kernel, lanes: int = LANES, cut: tuple[int, int] | None = None) -> LoopPlan:
    """Lanes and tasks for a kernel whose factors are listed in loop order."""
    options = dict(kernel.schedule.options)
    vector = options.get("vector", lanes_factor(kernel, cut is not None))
    width = options.get("width", _width(kernel, vector, lanes)) if vector is not None else 1
    task = options.get("task", TASK)
    tasks, cost = _tasks(kernel, vector, width, task, cut)
    turned = None if vector is None or cut is not None else find_turned(kernel, vector)
    if turned is not None:
        tiles = _tiles(kernel, turned)
        if tiles is None:
            turned = None
        else:
            tasks, cost = tiles
    chunk = max(1, int(task / cost)) if tasks and cost < task else 1
    made = LoopPlan(kernel, tasks, chunk, vector, width, cut, turned=turned)
    return replace(made, streams=_streams(made, options.get("stream", STREAM)))


def _tasks(
    kernel: Kernel, vector: int | None, width: int, task: float, cut: tuple[int, int] | None
) -> tuple[tuple[tuple[int, int], ...], float]:
    """Task factors, as few as give tasks of the right size, and the cost of a task."""
    sizes = [f.size for f in kernel.factors]
    cost = steps_cost(kernel, range(len(kernel.steps)), min(max(width, 1), REGISTER_LANES))
    tasks: list[tuple[int, int]] = []
    if cut is not None:
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


def _tiles(kernel: Kernel, turned: Turned) -> tuple[tuple[tuple[int, int], ...], float] | None:
    """Tiles as tasks, at every point of the factors around them; None if those are no tasks."""
    blocks = {turned.lines: TILE, turned.vector: TILE}
    factors = list(range(len(kernel.factors)))
    if turned.whole:
        factors = factors[: turned.vector + 1]
        if _parallel(kernel, turned.vector, False) <= turned.vector or turned.lines in factors:
            return None
    tasks = tuple([(n, blocks.get(n, 1)) for n in factors])
    count = math.prod([-(-kernel.factors[n].size // block) for n, block in tasks])
    return tasks, steps_cost(kernel, range(len(kernel.steps))) / count


def _streams(made: LoopPlan, least: int) -> frozenset[int]:
    """The stores of whole lines to operands that caches would not hold anyway."""
    kernel, vector = made.kernel, made.vector
    found: set[int] = set()
    for n, step in enumerate(kernel.steps):
        if not isinstance(step, Store) or vector is None or step.guards:
            continue
        if made.turned is not None and n in made.turned.stores:
            continue
        operand = kernel.operands[step.operand]
        size = operand.dtype.numpy.itemsize
        apart = [s for f, s in enumerate(step.at.strides) if f != vector]
        starts = [step.at.offset, *apart, made.width, made.starts(vector)]
        starts += _cuts(kernel, n, vector)
        lines = all(start * size % LINE == 0 for start in starts)
        if operand.nbytes >= least and step.at.strides[vector] == 1 and lines:
            found.add(n)
    return frozenset(found)


def _cuts(kernel: Kernel, store: int, vector: int) -> list[int]:
    """Where the vector's loop is begun anew, for guards."""
    return [
        cut
        for n in needed(kernel.steps, [store])
        if isinstance(step := kernel.steps[n], Load | Choose)
        for guard in step.guards
        for cut in boundaries(guard, vector)
    ]


def _parallel(kernel: Kernel, vector: int | None, parts: bool) -> int:
    """How many leading factors may be tasks: all stores span them, nothing is summed along them."""
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
    """The factor that is best run in lanes; of a kernel that is cut, the first counts parts."""
    first = 1 if cut else 0
    summed = {f for n in spilled(kernel) for f in _over(kernel, n)}
    able = [n for n in range(first, len(kernel.factors)) if n not in summed]
    return min(able, key=lambda n: (per_point(kernel, n), -n), default=None)


def spilled(kernel: Kernel) -> frozenset[int]:
    """The reductions of which a factor that is kept lies inside of one that is combined along."""
    return frozenset(
        n
        for n, span in enumerate(kernel.spans)
        if (over := _over(kernel, n)) and span and max(span) > min(over)
    )


def _over(kernel: Kernel, n: int) -> tuple[int, ...]:
    step = kernel.steps[n]
    return step.over if isinstance(step, Reduce | Pick) else ()


def _width(kernel: Kernel, vector: int, lanes: int) -> int:
    """Lanes for a factor: few values at a time may be wide, many may not."""
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
    """Lanes of which few are left over at the end of a factor; wide vectors are somewhat faster."""
    able = [most >> n for n in range(3) if most >> n >= min(most, REGISTER_LANES)]
    costs = {w: -(-size // w) * w * (1 + 0.25 * n) for n, w in enumerate(able)}
    return min(min(costs, key=costs.__getitem__), 1 << (size - 1).bit_length())
