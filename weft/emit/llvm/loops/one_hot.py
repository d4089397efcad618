"""One-hot sums: a sum that selects one index along a factor becomes a load, without a loop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from weft.ir.types import BOOL, DType
from weft.kernels.kernel import (
    Affine,
    Apply,
    Choose,
    Fill,
    Guard,
    Kernel,
    Load,
    Operand,
    Position,
    Reduce,
    Shift,
    Step,
    args_of,
)
from weft.ops.elementwise.pointwise import Add, And, Compare, Select


def one_hot_sum(step: Reduce, steps: list[Step], kernel: Kernel) -> Step | None:
    """sum over j of (value if j == index else 0) -> value at index, or 0 if it is out of range.

    Appends the steps it needs; None if the sum has another form.
    """
    sizes = [f.size for f in kernel.factors]
    if step.how != "add" or len(step.over) != 1:
        return None
    (factor,) = step.over
    found = _one_place(steps, step.arg, factor, sizes)
    if found is None or sizes[factor] < 2:
        return None
    value, index = found
    if not _is_movable(steps, value, factor, kernel.operands):
        return None
    return _OneHotSum(steps, factor, sizes[factor], index).sum(step, value)


def _one_place(
    steps: list[Step], arg: int, factor: int, sizes: list[int]
) -> tuple[int, int] | None:
    """The value and the index of a one-hot select along a factor."""
    match steps[arg]:
        case Apply(op=Select(), args=(hit, value, other), dtype=dtype):
            pass
        case _:
            return None
    zero = steps[other]
    if not (dtype.is_float and isinstance(zero, Fill) and _is_positive_zero(zero.value)):
        return None
    match steps[hit]:
        case Apply(op=Compare(comparison_direction="EQ"), args=(a, b)):
            for position, index in ((a, b), (b, a)):
                if _counts(steps[position], factor, sizes) and not _varies(steps, index, factor):
                    return value, index
    return None


def _is_positive_zero(value: bool | int | float | complex) -> bool:
    return not isinstance(value, complex) and value == 0 and math.copysign(1.0, value) > 0


def _counts(step: Step, factor: int, sizes: list[int]) -> bool:
    """Whether a step is the index along a factor, in a type that can represent it."""
    if not isinstance(step, Position) or step.dtype.kind not in ("int", "uint"):
        return False
    strides = [int(n == factor) for n in range(len(sizes))]
    room = step.dtype.bits - (step.dtype.kind == "int")
    return step.at == Affine(tuple(strides)) and sizes[factor] <= 1 << room


def _varies(steps: list[Step], n: int, factor: int) -> bool:
    """Whether a step varies along a factor."""
    step = steps[n]
    if isinstance(step, Load | Position) and step.at.strides[factor]:
        return True
    if isinstance(step, Load | Choose) and _is_guarded(step.guards, factor):
        return True
    if isinstance(step, Reduce) and factor in step.over:
        return False
    return any(_varies(steps, a, factor) for a in args_of(step))


def _is_guarded(guards: tuple[Guard, ...], factor: int) -> bool:
    return any(g.index.strides[factor] for g in guards)


def _is_movable(steps: list[Step], n: int, factor: int, operands: Sequence[Operand]) -> bool:
    """Whether a step can be evaluated at one index: it consists of loads and arithmetic.

    Not if an output of the operand's size may overwrite it before this index is read.
    """
    step = steps[n]
    if not _varies(steps, n, factor):
        return True
    if isinstance(step, Load):
        room = operands[step.operand].nbytes
        apart = all(room != operand.nbytes for operand in operands if operand.output)
        return apart and not step.shifts and not _is_guarded(step.guards, factor)
    if not isinstance(step, Apply):
        return False
    return all(_is_movable(steps, a, factor, operands) for a in step.args)


class _OneHotSum:
    """Appends the steps that evaluate a value at one index of a factor."""

    def __init__(self, steps: list[Step], factor: int, size: int, index: int) -> None:
        self.steps = steps
        self.factor = factor
        self.size = size
        self.index = index
        self.moved: dict[int, int] = {}

    def sum(self, step: Reduce, value: int) -> Step:
        """The value of the sum."""
        dtype = step.dtype
        parts = (self.is_inside(), self.move(value), self.zero(dtype))
        found = self.add(Apply(Select(), parts, dtype))
        if step.init is None:  # adding to zeros never yields -0
            return Apply(Add(), (found, self.zero(dtype)), dtype)
        return Apply(Add(), (step.init, found), dtype)

    def is_inside(self) -> int:
        """Whether the index is in range."""
        index = self.steps[self.index]
        assert isinstance(index, Load | Fill | Position | Apply | Choose | Reduce), "an integer"
        last = self.add(Fill(self.size - 1, index.dtype))
        below = self.add(Apply(Compare("LE"), (self.index, last), BOOL))
        if index.dtype.kind == "uint":
            return below
        above = self.add(Apply(Compare("GE"), (self.index, self.zero(index.dtype)), BOOL))
        return self.add(Apply(And(), (below, above), BOOL))

    def zero(self, dtype: DType) -> int:
        return self.add(Fill(0.0 if dtype.is_float else 0, dtype))

    def move(self, n: int) -> int:
        """A step at the index."""
        if n not in self.moved:
            self.moved[n] = self.at_index(n)
        return self.moved[n]

    def at_index(self, n: int) -> int:
        step = self.steps[n]
        if not _varies(self.steps, n, self.factor):
            return n
        if isinstance(step, Load):
            stride = step.at.strides[self.factor]
            strides = [0 if f == self.factor else s for f, s in enumerate(step.at.strides)]
            # Clamped into range: what an index out of range reads is not selected.
            shift = Shift(self.index, self.size - 1, stride)
            at = replace(step.at, strides=tuple(strides))
            return self.add(replace(step, at=at, shifts=(shift,)))
        assert isinstance(step, Apply), "loads and arithmetic"
        return self.add(replace(step, args=tuple([self.move(a) for a in step.args])))

    def add(self, step: Step) -> int:
        self.steps.append(step)
        return len(self.steps) - 1
