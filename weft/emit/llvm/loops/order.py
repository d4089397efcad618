"""The order of loops: what is kept outside of what is combined, or the other way where it pays."""

from __future__ import annotations

import math
from collections.abc import Collection

from weft.kernels.kernel import Kernel, Pick, Reduce

# A row of sums in scratch memory: worth it from so many on, possible up to so many.
FEW_SUMS, MANY_SUMS = 64, 1 << 14
ROUNDS = 64  # how often a row of sums should be gone through, at least


def loop_order(kernel: Kernel, steps: Collection[int] | None = None) -> tuple[int, ...] | None:
    """An order of loops for a kernel, or for some of its steps; None if there is none.

    If what is kept is outside of what is combined, sums are in registers. If rows are combined in
    the order in which they lie in memory, there is a row of sums in scratch memory.
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
    """The schedule's order, changed so that what is kept is outside of what is combined."""
    before: dict[int, set[int]] = {n: set() for n in kernel.schedule.order}
    for n in steps:
        step = kernel.steps[n]
        if isinstance(step, Reduce | Pick):
            for over in step.over:
                before[over] |= kernel.spans[n]
    found: list[int] = []
    left = list(kernel.schedule.order)
    while left:
        free = next((n for n in left if before[n] <= set(found)), None)
        if free is None:
            return None
        found.append(free)
        left.remove(free)
    return tuple(found)


def _kept_inside(kernel: Kernel, n: int) -> list[int]:
    """The factors that a reduction keeps and that lie inside of one that it combines along."""
    step, order = kernel.steps[n], kernel.schedule.order
    if not isinstance(step, Reduce | Pick):
        return []
    first = min([order.index(f) for f in step.over], default=len(order))
    return [f for f in kernel.spans[n] if order.index(f) > first and kernel.factors[f].size > 1]


def _is_inner(kernel: Kernel, n: int) -> bool:
    return bool(_kept_inside(kernel, n))


def _fits(kernel: Kernel, n: int) -> bool:
    """Whether there is room for the sums of a reduction, and its lanes are what is kept."""
    step, kept = kernel.steps[n], _kept_inside(kernel, n)
    count = math.prod([kernel.factors[f].size for f in kept])
    return isinstance(step, Reduce) and count <= MANY_SUMS


def _pays(kernel: Kernel, n: int) -> bool:
    """Whether rows of sums are better than columns, each of which goes through all rows."""
    step, kept = kernel.steps[n], _kept_inside(kernel, n)
    assert isinstance(step, Reduce | Pick)
    count = math.prod([kernel.factors[f].size for f in kept])
    rounds = math.prod([kernel.factors[f].size for f in step.over])
    return count > FEW_SUMS and rounds >= ROUNDS
