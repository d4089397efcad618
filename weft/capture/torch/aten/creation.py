"""Creation ops: full, arange, scalars, and empty."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from weft.capture.torch.build import AtenLowering, Build
from weft.capture.torch.dtypes import TorchOperand, computed_in
from weft.ir.module import Value
from weft.ir.types import I64
from weft.ops.elementwise.pointwise import Add, Multiply


def full(b: Build, size: Sequence[int], value: TorchOperand, **layout: object) -> Value:
    """A splat of a number, which may be a value of the graph."""
    if isinstance(value, Value):
        return b.broadcast(b.convert(b.reshape(value, ()), b.out.dtype), b.out.sizes)
    return b.splat(value, b.out)


def full_like(b: Build, like: Value, value: TorchOperand, **layout: object) -> Value:
    """A splat in the shape of another tensor."""
    return full(b, b.out.sizes, value)


def scalar_tensor(b: Build, value: TorchOperand, **layout: object) -> Value:
    """A number as a tensor without dims."""
    return full(b, (), value)


def empty(b: Build, *args: object, **layout: object) -> Value:
    """Uninitialized memory, zeros here."""
    return b.splat(0, b.out)


def arange(b: Build, start: float, end: float, step: float = 1, **layout: object) -> Value:
    """Equally spaced numbers; the length is that of the result type."""
    dtype = b.out.dtype
    numbers = (start, step)
    if all(isinstance(n, int) for n in numbers):
        values = b.iota(0, b.out.sizes, dtype if dtype.is_integer else I64)
        if step != 1:
            values = b.op(Multiply(), values, b.like(values, step))
        if start != 0:
            values = b.op(Add(), values, b.like(values, start))
        return b.convert(values, dtype)
    held = computed_in(dtype) if dtype.is_float else dtype
    # start + step * n in f64, as PyTorch's kernel accumulates nothing: repeated addition would
    # drift.
    index = np.arange(b.out.size, dtype=np.float64)
    values = b.constant((start + step * index).astype(held.numpy))
    return b.convert(values, dtype)


def iota(b: Build, length: int, *, start: int, step: int, **layout: object) -> Value:
    """`length` equally spaced integers."""
    return arange(b, start, start + step * length, step)


def frequencies(half: bool, b: Build, n: int, d: float = 1.0, **layout: object) -> Value:
    """The frequencies of the bins of a Fourier transform, or of its real half."""
    made = np.fft.rfftfreq(n, d) if half else np.fft.fftfreq(n, d)
    return b.constant(made.astype(b.out.dtype.numpy))


LOWERINGS: dict[str, AtenLowering] = {
    "aten._efficientzerotensor.default": empty,
    "aten.arange.start_step": arange,
    "aten.empty.memory_format": empty,
    "aten.empty_permuted.default": empty,
    "aten.empty_strided.default": empty,
    "aten.fft_fftfreq.default": partial(frequencies, False),
    "aten.fft_rfftfreq.default": partial(frequencies, True),
    "aten.fill.Scalar": full_like,
    "aten.fill.Tensor": full_like,
    "aten.full.default": full,
    "aten.full_like.default": full_like,
    "aten.new_empty_strided.default": empty,
    "aten.scalar_tensor.default": scalar_tensor,
    "prims.iota.default": iota,
}
