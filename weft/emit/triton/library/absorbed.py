"""Steps after a contraction that a library computes with it: max(x + added + bias, 0), rounded.

A bias is a vector along the columns, or channels; an addend lies in memory as the result does.
Steps that follow are a kernel of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.emit.triton.library.places import Matrices, dense_index
from weft.ir.types import DType
from weft.kernels.kernel import (
    Affine,
    Apply,
    Fill,
    Kernel,
    Load,
    args_of,
    is_rounded,
    value_dtype,
)
from weft.ops.elementwise.convert import Convert
from weft.ops.elementwise.pointwise import Add, Maximum
from weft.records import dataclass

_TYPES = {"bf16", "f16"}


@dataclass(frozen=True, slots=True)
class Absorbed:
    """A library's epilogue of a contraction, and the step that it makes."""

    last: int
    bias: Load | None = None
    added: Load | None = None
    relu: bool = False

    @property
    def is_nothing(self) -> bool:
        """Whether the library only multiplies and rounds."""
        return self.bias is None and self.added is None and not self.relu

    @property
    def operands(self) -> tuple[int, ...]:
        """The operands of the epilogue: the bias, and the addend."""
        return tuple([load.operand for load in (self.bias, self.added) if load is not None])

    @property
    def shown(self) -> str:
        """The epilogue, in words."""
        parts = [("bias", self.bias), ("sum", self.added), ("relu", self.relu)]
        return "".join([f" + {name}" for name, there in parts if there])


def absorbed(
    kernel: Kernel, at: int, columns: Sequence[int], place: Affine, dtype: DType
) -> Absorbed | None:
    """The epilogue of the contraction `at`, as far as a library computes it; it is rounded then.

    `dtype` is that of the operands, and of the result at `place`; None if no step has it.
    """
    chain = _Chain(kernel, columns, place, dtype)
    chain.prefix = Absorbed(at)
    best = chain.prefix if chain.dtype_of(at) is dtype else None
    if dtype.name not in _TYPES:
        return best
    while (longer := chain.following()) is not None:
        chain.prefix = longer
        if chain.dtype_of(longer.last) is dtype:
            best = longer
        # The library's epilogues end with it.
        if longer.relu:
            break
    return best


class _Chain:
    """A walk along the only readers of a step."""

    def __init__(self, kernel: Kernel, columns: Sequence[int], place: Affine, dtype: DType) -> None:
        self.kernel, self.columns, self.place, self.dtype = kernel, columns, place, dtype
        self.prefix = Absorbed(0)
        self.readers: dict[int, list[int]] = {}
        for n, step in enumerate(kernel.steps):
            for arg in {*args_of(step)}:
                self.readers.setdefault(arg, []).append(n)

    def dtype_of(self, number: int) -> DType:
        """The type of a step's value."""
        return value_dtype(self.kernel.steps[number])

    def following(self) -> Absorbed | None:
        """The epilogue with one more step, if the library computes it."""
        prefix, steps = self.prefix, self.kernel.steps
        readers = self.readers.get(prefix.last, [])
        if len(readers) != 1:
            return None
        (number,) = readers
        step = steps[number]
        if not isinstance(step, Apply):
            return None
        rest = [arg for arg in step.args if arg != prefix.last]
        match step.op:
            case Maximum() if len(rest) == 1 and _is_zero(steps[rest[0]]):
                # Rounding keeps signs: the larger of it and 0 may be rounded later.
                return Absorbed(number, prefix.bias, prefix.added, relu=True)
            case Convert() if self._is_kept(step.dtype) and not self._is_rounded(prefix.last):
                return Absorbed(number, prefix.bias, prefix.added)
            # A sum of values that were rounded in between is another number than the library's,
            # which rounds once.
            case Add() if len(rest) == 1 and not self._is_rounded(prefix.last):
                return self._sum(number, rest[0])
        return None

    def _is_kept(self, dtype: DType) -> bool:
        """Whether a conversion to this type may be left to the library's rounding."""
        return dtype is self.dtype or dtype.name == "f32"

    def _is_rounded(self, number: int) -> bool:
        excess = self.kernel.excess_precision
        return is_rounded(self.dtype_of(number), excess_precision=excess)

    def _sum(self, number: int, other: int) -> Absorbed | None:
        """Extended by the sum with a bias, or with an addend that lies as the result does."""
        prefix, load = self.prefix, self.kernel.steps[other]
        if isinstance(load, Apply) and isinstance(load.op, Convert) and load.dtype.name == "f32":
            load = self.kernel.steps[load.args[0]]
        if not isinstance(load, Load) or load.guards or load.shifts:
            return None
        if load.dtype is not self.dtype or load.at.offset < 0:
            return None
        strides = self._strides(load.at)
        if prefix.bias is None and strides == self._strides(dense_index(self.kernel, self.columns)):
            return Absorbed(number, load, prefix.added)
        if prefix.added is None and strides == self._strides(self.place):
            return Absorbed(number, prefix.bias, load)
        return None

    def _strides(self, at: Affine) -> list[int]:
        pairs = zip(at.strides, self.kernel.factors, strict=True)
        # Strides of factors of size 1 are arbitrary, and would make equal places differ.
        return [stride if factor.size > 1 else 0 for stride, factor in pairs]


def _is_zero(step: Any) -> bool:
    return isinstance(step, Fill) and step.value == 0


def finish(result: Any, absorbed: Absorbed, channels: int, out: Matrices, *tensors: Any) -> Any:
    """A contraction's wide result with the fused epilogue, by PyTorch, before rounding.

    `channels` is the dim of the bias; `tensors` are those of the bias and of the addend.
    """
    left = [*tensors]
    if absorbed.bias is not None:
        count, start = result.shape[channels], absorbed.bias.at.offset
        sizes = [count if dim == channels % result.dim() else 1 for dim in range(result.dim())]
        result = result + left.pop(0)[start : start + count].view(sizes)
    if absorbed.added is not None:
        start = absorbed.added.at.offset
        result = result + left.pop(0).as_strided(out.sizes, out.strides, start)
    return result.clamp_min(0) if absorbed.relu else result
