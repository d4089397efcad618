"""The cost of steps on a vector processor, in instructions on one register."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache

from weft.emit.llvm.loops.transposed import lines_of
from weft.ir.op import Op
from weft.ir.types import DType, TensorType
from weft.kernels.kernel import (
    Apply,
    Choose,
    Kernel,
    Load,
    Pick,
    Position,
    Reduce,
    Step,
    Store,
    args_of,
)
from weft.ops.elementwise.broadcasting import Broadcasting
from weft.ops.elementwise.pointwise import Divide, Power, Remainder
from weft.ops.elementwise.special import Digamma, Lgamma, Polygamma, Zeta
from weft.ops.elementwise.transcendental import Rsqrt, Sqrt

REGISTER_LANES = 16
# fmt: off
_SLOW: dict[type[Op], float] = {
    Divide: 10.0, Sqrt: 14.0, Rsqrt: 8.0, Remainder: 20.0, Power: 60.0,
    Lgamma: 400.0, Digamma: 600.0, Zeta: 1200.0, Polygamma: 1300.0,
}
# fmt: on
_IN_DOUBLE = 400.0  # cost from which functions are computed in f64 for all types
TRANSCENDENTAL = 20.0
GATHER = 14.0  # a strided or gathered register
TURN = 10.0  # the same, by transposed tiles
TURNED = 8  # lines are transposed together
ACROSS = 12.0  # a horizontal reduction


def step_cost(step: Step) -> float:
    """The cost of one register of a step with contiguous lanes."""
    match step:
        case Load() | Store():
            return 1.0 + 2.0 * len(step.guards)
        case Apply(op=op, dtype=dtype):
            return _apply_cost(op, dtype)
        case Choose(guards=guards):
            return 1.0 + 2.0 * len(guards)
        case Reduce():
            return 1.0
        case Pick():
            return 4.0
        case Position():
            return 2.0
        case _:
            return 0.0


@cache
def _apply_cost(op: Op, dtype: DType) -> float:
    # A register holds half as many 64-bit elements.
    scale = dtype.real.bits / 32 if dtype.real.bits > 32 else 1.0
    if isinstance(op, Broadcasting):
        return _apply_cost(op.applied(), dtype)
    if type(op) in _SLOW:
        return _SLOW[type(op)] * (1.0 if _SLOW[type(op)] >= _IN_DOUBLE else scale)
    try:
        work = op.work((TensorType((), dtype),), (TensorType((), dtype),))
    except (IndexError, TypeError, ValueError):
        return scale
    return (TRANSCENDENTAL if work.transcendentals else 1.0) * scale


def own_factors(step: Step, span: frozenset[int]) -> frozenset[int]:
    """The factors that a step is computed along: those of its value, and those it reduces."""
    return span | frozenset(step.over) if isinstance(step, Reduce | Pick) else span


def nests(kernel: Kernel) -> list[frozenset[int]]:
    """The loops around each step: those of the stores and reductions that read it."""
    steps = kernel.steps
    found = [own_factors(s, span) for s, span in zip(steps, kernel.spans, strict=True)]
    around: list[set[int]] = [set() for _ in steps]
    for n in reversed(range(len(steps))):
        outer = max(kernel.spans[n], default=-1)
        sink = isinstance(steps[n], Reduce | Pick)
        nest = found[n] | {f for f in around[n] if not sink or f <= outer}
        around[n] = set(nest)
        for arg in args_of(steps[n]):
            around[arg] |= nest
    return [frozenset(one) for one in around]


def per_point(kernel: Kernel, vector: int) -> float:
    """The cost of the kernel vectorized along a factor, per point."""
    size = kernel.factors[vector].size
    lanes = min(1 << (size - 1).bit_length(), 4 * REGISTER_LANES)
    used = size / (-(-size // max(lanes, REGISTER_LANES)) * max(lanes, REGISTER_LANES))
    cost = 0.0
    for step, span, nest in zip(kernel.steps, kernel.spans, nests(kernel), strict=True):
        wide = own_factors(step, span)
        if isinstance(step, Load):  # again in each turn of the loops around those of its span
            wide = frozenset([f for f in nest if f <= max(wide, default=-1)])
        points = math.prod([kernel.factors[n].size for n in wide])
        at_once = REGISTER_LANES * used if vector in wide else 1.0
        cost += _access_cost(kernel, step, vector) * points / at_once
        if isinstance(step, Reduce | Pick) and vector in step.over:
            cost += ACROSS * math.prod([kernel.factors[n].size for n in span])
    return cost


def _access_cost(kernel: Kernel, step: Step, vector: int) -> float:
    """The cost of one register of an access, vectorized along a factor."""
    if isinstance(step, Load) and any(vector in kernel.spans[s.index] for s in step.shifts):
        return GATHER
    if isinstance(step, Load | Store) and step.at.strides[vector] not in (0, 1, -1):
        lines = lines_of(kernel, step, vector)
        if lines is None:
            return GATHER
        size = kernel.factors[lines].size
        return TURN * (-(-size // TURNED)) * TURNED / size
    return step_cost(step)


def steps_cost(kernel: Kernel, steps: Iterable[int], lanes: int = REGISTER_LANES) -> float:
    """The cost of some steps at all of their points."""
    cost = 0.0
    for n in steps:
        step, wide = kernel.steps[n], kernel.spans[n]
        if isinstance(step, Reduce | Pick):
            wide = wide | set(step.over)
        points = math.prod([kernel.factors[f].size for f in wide])
        cost += step_cost(step) * points / lanes
    return cost
