"""Where a library finds operands: strided views of memory, in elements."""

from __future__ import annotations

from collections.abc import Sequence

from weft.kernels.kernel import Affine, Kernel
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Matrices:
    """Stacks of matrices in memory: an operand, an offset, sizes and strides in elements.

    The last two dims are those of a matrix. The dim before these is the batch of one library call;
    there is a call for each index of the dims before that.
    """

    operand: int
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


def dense_index(kernel: Kernel, factors: Sequence[int]) -> Affine:
    """The index in a dense array of these factors, in row-major order."""
    strides, size = [0] * len(kernel.factors), 1
    for f in reversed(factors):
        strides[f] = size
        size *= kernel.factors[f].size
    return Affine(tuple(strides))
