"""Reductions of stacks along leading dims; equal values are stored once, so n of them are x * n."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.emit.numpy.ufuncs import is_native, ufunc_of
from weft.executable.items import Site
from weft.ir.op import Op
from weft.ir.types import Array, DType
from weft.kernels.host import HostKernel
from weft.ops.combiners import COMBINERS

ArrayStep = Callable[[Array], Array]
NAMED: dict[str, type[Op]] = {op.name: type(op) for op in COMBINERS.values()}
SAME = HostKernel(lambda x: x, shares=True)
_FIRST = None  # a sum begins with its first element: numpy's own 0 would turn sums of -0 into 0


def reduction(site: Site, index: int, op: type[Op], dims: Sequence[int]) -> HostKernel | None:
    """Reduce an operand along leading dims; None if numpy has no function for it."""
    dtype, stack_dims, mask = site.operand(index).dtype, site.stack_dims, site.mask(index)
    ufunc = ufunc_of(op, dtype)
    if ufunc is None:
        return None
    done = site.summed_before(index)
    dims = [d for d in dims if not done >> d & 1]
    axes = tuple(d for d in dims if mask >> d & 1)
    # A value that is equal along an axis is stored once, so its sum over the axis is a product.
    times = math.prod(stack_dims.size(d) for d in dims if d not in axes)
    again = repeated(ufunc, dtype, times)
    if again is None:
        return None
    narrow = not is_native(dtype)
    if not axes and times == 1:
        return SAME
    along: Any = axes[0] if len(axes) == 1 else axes
    if not narrow and times == 1:
        held = dtype.numpy
        return HostKernel(
            lambda x: ufunc.reduce(x, along, held, None, True, _FIRST),
            lambda x, out: ufunc.reduce(x, along, held, out, True, _FIRST),
        )

    def run(x: Array) -> Array:
        # Narrow floats are summed in f32 and rounded once, as on one device.
        total = x.astype(np.float32) if narrow else x
        if axes:
            total = ufunc.reduce(total, along, total.dtype, None, True, _FIRST)
        total = again(total)
        return total.astype(dtype.numpy) if narrow else total

    return HostKernel(run, shares=True)


def repeated(ufunc: Any, dtype: DType, times: int) -> ArrayStep | None:
    """A value combined with itself: the reduction of a group of equal values."""
    if times == 1 or ufunc in (
        np.maximum,
        np.minimum,
        np.logical_and,
        np.logical_or,
        np.bitwise_and,
        np.bitwise_or,
    ):
        return lambda x: x
    if ufunc is np.add:
        return lambda x: _times(x, times)
    if ufunc in (np.bitwise_xor, np.logical_xor):
        # x ^ x is 0: an even number of equal terms cancels.
        return (lambda x: x) if times % 2 else np.zeros_like
    return None


def _times(x: Array, count: int) -> Array:
    """A value added up so many times; complex parts separately, so that infinities stay."""
    if x.dtype.kind == "c":
        made = np.empty_like(x)
        made.real, made.imag = x.real * count, x.imag * count
        return made
    is_short = x.dtype == np.float16  # which cannot represent every count
    factor = np.float32(count) if is_short else np.asarray(count).astype(x.dtype)
    product: Array = np.multiply(x, factor)
    return product.astype(x.dtype) if is_short else product


def changes_type(site: Site) -> bool:
    """Whether a reduction changes the element type."""
    return any(
        site.operand(n).dtype is not site.result(n).dtype for n in range(len(site.node.operands))
    )
