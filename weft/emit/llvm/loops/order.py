"""Loop order: kept factors outside of reduced ones, or the reverse where it pays off."""

from __future__ import annotations

import math
from collections.abc import Collection

from weft.kernels.kernel import Kernel, Pick, Reduce

# sums in a row in scratch memory: the least number worth it, and the most that fit
FEW_SUMS, MANY_SUMS = 64, 1 << 14
ROUNDS = 64  # minimum number of passes over a row of sums


def loop_order(kernel: Kernel, steps: Collection[int] | None = None) -> tuple[int, ...] | None:
    """A loop order for a kernel, or for some of its steps; None if there is none.

    With kept factors outside of reduced ones, sums stay in registers. If rows are instead reduced
    in memory order, a row of sums is kept in scratch memory.
    """
    counted = range(len(kernel.steps)) if steps is None else steps
    strict = _ordered(kernel, counted)
    inner = [n for n in counted if _is_inner(kernel, n)]
    if not inner or not all(_fits(kernel, n) for n in inner):
        return strict
    if strict is None or all(_pays(kernel, n) for n in inner):
        return _ordered(kernel, [n for n in counted if n not in inner]) or strict
    return strict


def _ordered(kernel: Kernel, steps: Collection[int]) -> tuple[int, ...] | None:
    """The schedule's order, changed so that kept factors are outside of reduced ones."""
    before: dict[int, set[int]] = {n: set() for n in kernel.schedule.order}
    for n in steps:
        step = kernel.steps[n]
        if isinstance(step, Reduce | Pick):
            for over in step.over:
                before[over] |= kernel.spans[n]
    order: list[int] = []
    left = list(kernel.schedule.order)
    while left:
        free = next((n for n in left if before[n] <= set(order)), None)
        if free is None:
            return None
        order.append(free)
        left.remove(free)
    return tuple(order)


def _kept_inside(kernel: Kernel, n: int) -> list[int]:
    """The kept factors of a reduction that lie inside of a reduced one."""
    step, order = kernel.steps[n], kernel.schedule.order
    if not isinstance(step, Reduce | Pick):
        return []
    first = min([order.index(f) for f in step.over], default=len(order))
    return [f for f in kernel.spans[n] if order.index(f) > first and kernel.factors[f].size > 1]


def _is_inner(kernel: Kernel, n: int) -> bool:
    return bool(_kept_inside(kernel, n))


def _fits(kernel: Kernel, n: int) -> bool:
    """Whether the sums of a reduction fit into scratch, with lanes along a kept factor."""
    step, kept = kernel.steps[n], _kept_inside(kernel, n)
    count = math.prod([kernel.factors[f].size for f in kept])
    return isinstance(step, Reduce) and count <= MANY_SUMS


def _pays(kernel: Kernel, n: int) -> bool:
    """Whether rows of sums beat columns, each of which would traverse all rows."""
    step, kept = kernel.steps[n], _kept_inside(kernel, n)
    assert isinstance(step, Reduce | Pick)
    count = math.prod([kernel.factors[f].size for f in kept])
    rounds = math.prod([kernel.factors[f].size for f in step.over])
    return count > FEW_SUMS and rounds >= ROUNDS
