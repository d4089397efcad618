"""Where fast functions suffice: values that are only observed as narrow floats.

Triton's fast functions of f32 err by a few units in the 22nd bit, a thousandth of what rounding to
bf16 or f16 loses. They are used where each path from a step to the kernel's results rounds so, and
until then only scales, selects or sums, which does not magnify relative errors.
"""

from __future__ import annotations

from weft.ir.types import DType
from weft.kernels.kernel import Apply, Choose, Contract, Kernel, Reduce, Step, Store, args_of
from weft.ops.elementwise.convert import Convert
from weft.ops.elementwise.pointwise import Divide, Multiply, Select

_SCALING = (Multiply, Divide, Select, Convert)


def coarse_steps(kernel: Kernel) -> frozenset[int]:
    """The steps of f32 whose relative error may be that of fast functions."""
    if not kernel.excess_precision:
        return frozenset()
    readers: dict[int, list[int]] = {}
    for n, step in enumerate(kernel.steps):
        for arg in args_of(step):
            readers.setdefault(arg, []).append(n)
    coarse: set[int] = set()
    for n in reversed(range(len(kernel.steps))):
        step = kernel.steps[n]
        if isinstance(step, Store) or step.dtype.name != "f32":
            continue
        if all(_tolerates(kernel, reader, coarse) for reader in readers.get(n, ())):
            coarse.add(n)
    return frozenset(coarse)


def _tolerates(kernel: Kernel, number: int, coarse: set[int]) -> bool:
    """Whether a step may read values with such an error."""
    step: Step = kernel.steps[number]
    match step:
        case Store(operand=operand):
            return _is_narrow(kernel.operands[operand].dtype)
        case Apply(op=op, dtype=dtype) if isinstance(op, Convert) and _is_narrow(dtype):
            return True
        case Apply(op=op, dtype=dtype) if isinstance(op, _SCALING):
            return _is_narrow(dtype) or number in coarse
        case Reduce(how="add") | Choose():
            return number in coarse
        case Contract(lhs=lhs):
            side = kernel.steps[lhs]
            return not isinstance(side, Store) and _is_narrow(side.dtype)
    return False


def _is_narrow(dtype: DType) -> bool:
    return dtype.is_float and dtype.bits < 32
