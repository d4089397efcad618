"""Numbers that all points of a kernel share, computed once by a launch of their own.

An optimizer's bias corrections are powers in f64: every program would compute them again, and wait
for them longer than for its operands.
"""

from __future__ import annotations

from dataclasses import replace

from weft.emit.triton.parts.split import TwoKernels
from weft.emit.triton.rebuild import StepList
from weft.emit.triton.tiles import needed_by
from weft.kernels.kernel import (
    Affine,
    Apply,
    Kernel,
    Load,
    Operand,
    Step,
    Store,
    args_of,
    value_dtype,
)
from weft.ops.elementwise.convert import Convert
from weft.ops.elementwise.pointwise import Power

POINTS = 1 << 16  # points for which another launch pays off


def shared_scalars(kernel: Kernel) -> TwoKernels | None:
    """The numbers of a kernel of points and the rest of it, if some take long to compute."""
    if kernel.points < POINTS:
        return None
    costly = [n for n, step in enumerate(kernel.steps) if _is_costly(kernel, n, step)]
    if not costly:
        return None
    wanted = [n for n in _passed(kernel) if needed_by(kernel, [n]) & {*costly}]
    if not wanted:
        return None
    scratch = tuple([Operand(value_dtype(kernel.steps[n]), (1,), True) for n in wanted])
    nowhere = Affine((0,) * len(kernel.factors))
    count = len(kernel.operands)
    first = StepList()
    for n in sorted(needed_by(kernel, wanted)):
        first.keep(n, kernel.steps[n])
    for number, n in enumerate(wanted):
        first.add(Store(count + number, nowhere, first.numbers[n]))
    one = [replace(f, size=1) for f in kernel.factors]
    name = f"{kernel.name}_scalars"
    early, early_operands = first.kernel(kernel, name, one, (*kernel.operands, *scratch))
    second = StepList()
    stores = [n for n, step in enumerate(kernel.steps) if isinstance(step, Store)]
    for n in sorted(needed_by(kernel, stores, wanted) | {*wanted}):
        step = kernel.steps[n]
        if n in wanted:
            step = Load(count + wanted.index(n), nowhere, value_dtype(step))
        second.keep(n, step)
    read = [replace(operand, output=False) for operand in scratch]
    late, late_operands = second.kernel(
        kernel, kernel.name, kernel.factors, (*kernel.operands, *read)
    )
    return TwoKernels(early, early_operands, late, late_operands, scratch)


def _is_costly(kernel: Kernel, number: int, step: Step) -> bool:
    """Whether a number takes long: a power, or arithmetic in f64."""
    if kernel.spans[number] or not isinstance(step, Apply):
        return False
    wide = step.dtype.is_float and step.dtype.bits == 64
    return isinstance(step.op, Power) or (wide and not isinstance(step.op, Convert))


def _passed(kernel: Kernel) -> list[int]:
    """The computed numbers that steps of all points read."""
    scalars: set[int] = set()
    todo = [
        arg
        for n, step in enumerate(kernel.steps)
        if kernel.spans[n] or isinstance(step, Store)
        for arg in args_of(step)
    ]
    while todo:
        n = todo.pop()
        step = kernel.steps[n]
        if kernel.spans[n] or not isinstance(step, Apply):
            continue
        if step.dtype.is_float and step.dtype.bits < 32:
            # It may be held with more precision than scratch of its type has: convert it there.
            todo += step.args
        else:
            scalars.add(n)
    return sorted(scalars)
