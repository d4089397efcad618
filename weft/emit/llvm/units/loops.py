"""The instructions of loop kernels, by their plan: loop order, vector width, transposed tiles."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

from weft.emit.llvm.jit.processor import Processor
from weft.emit.llvm.loops.cost import REGISTER_LANES, nests, own_factors
from weft.emit.llvm.loops.emit import loop_plans
from weft.emit.llvm.loops.plan import LoopPlan
from weft.emit.llvm.units.instructions import instructions_of
from weft.kernels.kernel import Kernel, Load, Pick, Reduce, Step, Store


def loop_units(kernel: Kernel, processor: Processor) -> Mapping[str, float]:
    """The instructions of all loops, and their overheads: entries, chains, strided elements."""
    units: defaultdict[str, float] = defaultdict(float)
    for plan in loop_plans(kernel, processor):
        _count(plan, units)
        units["tasks"] = max(units["tasks"], -(-plan.count // plan.chunk))  # chunks of them
    return dict(units)


def _count(plan: LoopPlan, units: defaultdict[str, float]) -> None:
    kernel, vector = plan.kernel, plan.vector
    size = kernel.factors[vector].size if vector is not None else 1
    registers = -(-size // plan.width) * max(1.0, plan.width / REGISTER_LANES)
    tiles = plan.transposed
    turned = {*tiles.loads, *tiles.stores} if tiles is not None else set()
    loops = set[frozenset[int]]()
    for number, (step, nest) in enumerate(zip(kernel.steps, nests(kernel), strict=True)):
        wide = _around(kernel, number, step, nest)
        points = math.prod([kernel.factors[f].size for f in wide])
        entries = points / size if vector in wide else points
        unit, count = instructions_of(step)
        if isinstance(step, Load | Store) and _is_apart(kernel, step, vector, wide):
            units["turned" if number in turned else "strided"] += points
        else:
            units[unit] += count * entries * (registers if vector in wide else 1)
        if isinstance(step, Store | Reduce | Pick):
            loops.add(wide)
        if isinstance(step, Reduce | Pick):
            # Each waits for the one before, in every lane; wider vectors are several chains.
            units["chain"] += entries * (-(-size // plan.width) if vector in wide else 1)
            if vector in step.over:
                rows = math.prod([kernel.factors[f].size for f in kernel.spans[number]])
                units["across"] += instructions_of(step)[1] * rows
    for wide in loops:
        points = math.prod([kernel.factors[f].size for f in wide])
        units["line"] += points / size if vector in wide else points


def _around(kernel: Kernel, number: int, step: Step, nest: frozenset[int]) -> frozenset[int]:
    """The factors at whose points a step runs."""
    span = own_factors(step, kernel.spans[number])
    if isinstance(step, Store):
        return span | {f for f, stride in enumerate(step.at.strides) if stride}
    if isinstance(step, Load):  # again in each turn of the loops around those of its span
        return frozenset([f for f in nest if f <= max(span, default=-1)])
    return span


def _is_apart(kernel: Kernel, step: Load | Store, vector: int | None, wide: frozenset[int]) -> bool:
    """Whether the elements of a vector do not lie side by side in memory."""
    if vector is None or vector not in wide:
        return False
    shifts = step.shifts if isinstance(step, Load) else ()
    moving = any(vector in kernel.spans[shift.index] for shift in shifts)
    return moving or step.at.strides[vector] not in (0, 1)
