"""How a kernel without a product is run: the order of its loops, lanes, tasks, and their sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from weft.emit.llvm.access import turns
from weft.emit.llvm.loops_cost import REGISTER_LANES, per_point, steps_cost
from weft.emit.llvm.loops_simplify import needed
from weft.emit.llvm.storage import register_kind
from weft.emit.llvm.vector import BITS
from weft.kernels.kernel import Choose, Kernel, Load, Pick, Reduce, Store

TASK = 1 << 14  # what a thread should have to do at a time, in vector instructions
SPREAD = 8  # tasks that are enough for a machine's threads
LINE = 64  # bytes
STREAM = 1 << 25  # bytes from which on an operand is written past the caches
LANES = 64  # of 32 bits: four registers, so that the latency of one hides behind the others


@dataclass(frozen=True, slots=True)
class Plan:
    """The loops of a simplified kernel: its factors in order, the leading ones made tasks.

    The last task factor is cut into blocks if `block` is more than 1: a task is a block of it.
    """

    kernel: Kernel
    tasks: int
    block: int
    chunk: int
    vector: int | None
    width: int
    cut: tuple[int, int] | None = None  # a factor and its block: factor 0 counts its parts
    streams: frozenset[int] = frozenset()  # stores that go past the caches

    @property
    def count(self) -> int:
        """How many tasks there are."""
        sizes = [f.size for f in self.kernel.factors[: self.tasks]]
        if sizes:
            sizes[-1] = -(-sizes[-1] // self.block)
        return math.prod(sizes)

    @property
    def is_spread(self) -> bool:
        """Whether there are tasks for many threads, or too little to do for more than one."""
        if self.count >= SPREAD:
            return True
        task = dict(self.kernel.schedule.options).get("task", TASK)
        cost = steps_cost(self.kernel, range(len(self.kernel.steps)))
        return cost <= 2 * task * max(1, self.count)


def plan(kernel: Kernel, cut: tuple[int, int] | None = None) -> Plan:
    """Lanes and tasks for a kernel whose factors are listed in loop order."""
    options = dict(kernel.schedule.options)
    task = options.get("task", TASK)
    vector = options.get("vector", _vector(kernel, cut))
    width = options.get("width", _width(kernel, vector)) if vector is not None else 1
    lead = _parallel(kernel, vector, cut is not None)
    sizes = [f.size for f in kernel.factors]
    cost = steps_cost(kernel, range(len(kernel.steps)), min(max(width, 1), REGISTER_LANES))
    block, chunk, tasks = 1, 1, 0
    if cut is not None:
        cost /= sizes[0]
        tasks = 1
    while tasks < lead and cost > task:
        if tasks == vector:
            points = max(1, int(sizes[tasks] * task / cost))
            block = min(sizes[tasks], -(-points // width) * width)
            cost = cost * block / sizes[tasks]
            tasks += 1
            break
        cost /= sizes[tasks]
        tasks += 1
    if tasks and cost < task:
        chunk = max(1, int(task / cost))
    made = Plan(kernel, tasks, options.get("block", block), chunk, vector, width, cut)
    return replace(made, streams=_streams(made, options.get("stream", STREAM)))


def _streams(made: Plan, least: int) -> frozenset[int]:
    """The stores of whole lines to operands that caches would not hold anyway."""
    kernel, vector = made.kernel, made.vector
    found: set[int] = set()
    for n, step in enumerate(kernel.steps):
        if not isinstance(step, Store) or vector not in kernel.spans[n] or step.guards:
            continue
        operand = kernel.operands[step.operand]
        size = operand.dtype.numpy.itemsize
        apart = [s for f, s in enumerate(step.at.strides) if f != vector]
        starts = [step.at.offset, *apart, made.width, *(c for c in _cuts(kernel, n, vector))]
        starts += [made.block if made.block > 1 else 0, 0 if made.cut is None else made.cut[1]]
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
        for cut in turns(guard, vector)
    ]


def _parallel(kernel: Kernel, vector: int | None, parts: bool) -> int:
    """How many leading factors may be tasks: every store spans them, and nothing is summed there."""
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


def _vector(kernel: Kernel, cut: tuple[int, int] | None) -> int | None:
    """The factor that is best run in lanes."""
    first = 0 if cut is None else 1
    return min(
        range(first, len(kernel.factors)), key=lambda n: (per_point(kernel, n), -n), default=None
    )


def _width(kernel: Kernel, vector: int | None) -> int:
    """Lanes for a factor: few values may be wide, many may not."""
    if vector is None:
        return 1
    kinds = [register_kind(s.dtype) for s in kernel.steps if not isinstance(s, Store)]
    widest = max((BITS[kind] for kind in kinds if kind != "i1"), default=32)
    lanes = LANES * 32 // max(widest, 32)
    size = kernel.factors[vector].size
    return min(lanes, 1 << (size - 1).bit_length())
