"""The order of loops: what is kept lies outside of what is combined."""

from __future__ import annotations

from collections.abc import Collection

from weft.kernels.kernel import Kernel, Pick, Reduce


def ordered(kernel: Kernel, steps: Collection[int] | None = None) -> tuple[int, ...] | None:
    """The schedule's order, changed so that the factors of results are outside of those combined.

    None if there is none: rows are combined for columns, and columns for rows. Only `steps` count,
    if they are given.
    """
    before: dict[int, set[int]] = {n: set() for n in kernel.schedule.order}
    for n in range(len(kernel.steps)) if steps is None else steps:
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
