"""f32 accumulation of narrow floats: sums and products are rounded once, at the end."""

from __future__ import annotations

from dataclasses import replace

from weft.ir.types import F32, DType, tensor
from weft.kernels.kernel import Apply, Kernel, Reduce, Step, is_rounded, value_dtype
from weft.kernels.rewriting import renumbered
from weft.ops.elementwise.convert import Convert


def accumulated(kernel: Kernel) -> Kernel:
    """reduce(x): f16 -> convert(reduce(convert(x): f32)): f16, where f16 has to be rounded.

    Partial reductions are then in f32, too. Reductions that select an element, such as max, need no
    wider accumulator.
    """
    if not any(_is_narrow(step, kernel) for step in kernel.steps):
        return kernel
    steps: list[Step] = []
    numbers: list[int] = []
    for step in kernel.steps:
        rebuilt = renumbered(step, numbers)
        if isinstance(rebuilt, Reduce) and _is_narrow(rebuilt, kernel):
            arg, dtype = _in(steps, rebuilt.arg, F32), rebuilt.dtype
            init = None if rebuilt.init is None else _in(steps, rebuilt.init, F32)
            steps.append(replace(rebuilt, arg=arg, init=init, dtype=F32))
            numbers.append(_in(steps, len(steps) - 1, dtype))
        else:
            steps.append(rebuilt)
            numbers.append(len(steps) - 1)
    return replace(kernel, steps=tuple(steps))


def _is_narrow(step: Step, kernel: Kernel) -> bool:
    if not isinstance(step, Reduce) or step.how not in ("add", "mul"):
        return False
    return is_rounded(step.dtype, excess_precision=kernel.excess_precision)


def _in(steps: list[Step], number: int, dtype: DType) -> int:
    """The number of a step converted to another type, which is added if necessary."""
    step = steps[number]
    if value_dtype(step) is dtype:
        return number
    steps.append(Apply(Convert(tensor(dtype=dtype)), (number,), dtype))
    return len(steps) - 1
