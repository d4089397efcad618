"""CPU schedules of loops: by rows, by columns, or as a packed contraction."""

from __future__ import annotations

import math
from collections.abc import Mapping

from weft.kernels.attention import Attention
from weft.kernels.kernel import (
    Contract,
    Kernel,
    Load,
    OptionRanges,
    Pick,
    Reduce,
    Schedule,
    Step,
    Store,
    refuses_options,
)

_LARGE = range(1, 1 << 40)
_TRUTH = (0, 1)
_LOOPS = {"task": _LARGE, "width": tuple(1 << n for n in range(9)), "stream": range(1 << 48)}
_PACKED = {
    **dict.fromkeys(("block_k", "parts", "task_rows", "task_vectors"), _LARGE),
    "rows": range(1, 17),
    "vectors": range(1, 17),
    "unroll": (1, 2, 4),
    "rhs": range(3),
    **dict.fromkeys(("lhs", "inner", "tiles", "stream"), _TRUTH),
}
_ATTENTION = {"vectors": (1, 2, 4), "keys": range(16, 4097, 16)}
OPTIONS: Mapping[str, OptionRanges] = {"rows": _LOOPS, "columns": _LOOPS, "packed": _PACKED}


def schedule_of(kernel: Kernel) -> Schedule:
    """The loops in the order of the first output; reductions innermost, or around vectors.

    `rows`: tasks are points of the outer parallel factors; each runs passes along the inner
    factors, vectorized along the last. `columns`: vectorized along a parallel factor, with
    reductions as outer loops. `packed`: a blocked contraction of packed operands; other steps are
    fused into the packing (prologue) and the store (epilogue).
    """
    count, steps = len(kernel.factors), kernel.steps
    rows = {n for s in steps if isinstance(s, Reduce | Pick | Contract) for n in s.over}
    store = next(s for s in steps if isinstance(s, Store))
    outer = sorted(
        [n for n in range(count) if n not in rows],
        key=lambda n: (-abs(store.at.strides[n]) or -math.inf, n),
    )
    if any(isinstance(s, Contract) for s in steps):
        return Schedule("packed", (*outer, *sorted(rows)), len(outer))
    if not rows:
        return Schedule("rows", tuple(outer), max(0, len(outer) - 1))
    if _is_window(kernel, rows):
        free = [n for n in range(count) if n not in rows]
        last = min(free, key=lambda n: abs(store.at.strides[n]) or math.inf)
        around = [n for n in free if n != last]
        return Schedule("columns", (*around, *sorted(rows), last), len(around))
    inner = sorted(rows, key=lambda n: -_stride(n, steps))
    fastest = min((_stride(n, steps), n) for n in range(count))[1]
    if fastest in rows or not outer:
        return Schedule("rows", (*outer, *inner), len(outer))
    *around, last = outer
    if fastest in outer:
        last = fastest
        around = [n for n in outer if n != last]
    return Schedule("columns", (*around, *inner, last), len(around))


def refuses_schedule(kernel: Kernel | Attention) -> str | None:
    """Why a kernel's schedule is invalid on a CPU, or None if it is valid."""
    if isinstance(kernel, Attention):
        return refuses_options(kernel.options, _ATTENTION)
    schedule = kernel.schedule
    if schedule.kind not in OPTIONS:
        return f"unknown schedule {schedule.kind[:40]!r}"
    return refuses_options(schedule.options, OPTIONS[schedule.kind])


def _is_window(kernel: Kernel, rows: set[int]) -> bool:
    """Whether a reduction runs along a sliding window: neighbours read the same elements again."""
    sizes = [factor.size for factor in kernel.factors]
    for step in kernel.steps:
        if not isinstance(step, Load):
            continue
        moving = [(abs(s), n) for n, s in enumerate(step.at.strides) if s]
        for stride, n in moving:
            for other, along in moving:
                if (n in rows) != (along in rows) and stride <= other < stride * sizes[n]:
                    return True
    return False


def _stride(factor: int, steps: tuple[Step, ...]) -> int:
    """The stride along a factor in the widest load; large if there is none."""
    loads = [s for s in steps if isinstance(s, Load)]
    most = max((_span(s) for s in loads), default=0)
    found = [abs(s.at.strides[factor]) for s in loads if _span(s) == most and s.at.strides[factor]]
    return min(found, default=1 << 60)


def _span(load: Load) -> int:
    """The number of factors that a load runs over."""
    return sum(map(bool, load.at.strides))
