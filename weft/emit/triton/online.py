"""Online sums of exponentials: `sum(exp(x - max(x)))` in one pass over x."""

from __future__ import annotations

from weft.ir.types import F32, DType
from weft.kernels.kernel import Apply, Fill, Kernel, Reduce
from weft.ops.elementwise.pointwise import Maximum, Subtract
from weft.ops.elementwise.transcendental import Exponential
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class OnlineSum:
    """The steps of a maximum and of the sum of exponentials relative to it."""

    top: int
    total: int
    dtype: DType


def online_sums(kernel: Kernel) -> dict[int, OnlineSum]:
    """By the step of a maximum: the sum that can be computed in the same pass."""
    sums: dict[int, OnlineSum] = {}
    for n, step in enumerate(kernel.steps):
        if isinstance(step, Reduce) and step.how == "add":
            top = _relative_to(kernel, step.arg)
            known = None if top is None else kernel.steps[top]
            if isinstance(known, Reduce) and known.over == step.over and known.dtype is F32:
                assert top is not None
                sums.setdefault(top, OnlineSum(top, n, known.dtype))
    return sums


def _relative_to(kernel: Kernel, number: int) -> int | None:
    """The maximum m, if a step is exp(x - m) of the x that it is of."""
    step = kernel.steps[number]
    if not (isinstance(step, Apply) and isinstance(step.op, Exponential)):
        return None
    shifted = kernel.steps[step.args[0]]
    if not (isinstance(shifted, Apply) and isinstance(shifted.op, Subtract)):
        return None
    x, base = shifted.args
    top = _without_floor(kernel, base)
    known = kernel.steps[top]
    is_max = isinstance(known, Reduce) and known.how == "max" and known.arg == x
    return top if is_max and isinstance(known, Reduce) and _is_open(kernel, known.init) else None


def _without_floor(kernel: Kernel, number: int) -> int:
    """A step without the maximum with -inf that JAX takes of it."""
    step = kernel.steps[number]
    if isinstance(step, Apply) and isinstance(step.op, Maximum):
        for one, other in (step.args, step.args[::-1]):
            if _is_open(kernel, one):
                return other
    return number


def _is_open(kernel: Kernel, number: int | None) -> bool:
    """Whether an initial value is -inf, or missing."""
    if number is None:
        return True
    step = kernel.steps[number]
    return isinstance(step, Fill) and step.value == float("-inf")
