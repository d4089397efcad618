"""Fourier transforms along any dims, one after another."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.capture.torch.build import AtenLowering, Build, dim_of, shape_of, type_of
from weft.ir.module import Value
from weft.ir.types import DTYPES
from weft.ops.elementwise.pointwise import Multiply
from weft.ops.linalg import Fft


def complex_to_complex(
    b: Build, x: Value, dim: Sequence[int], normalization: int, forward: bool
) -> Value:
    """A complex transform, or the unnormalized inverse."""
    dims = [dim_of(d, b.out.rank) for d in dim]
    for d in dims:
        x = _along(b, x, d, "FFT" if forward else "IFFT", shape_of(x)[d])
    # StableHLO's inverse divides by the length, PyTorch's unnormalized one does not.
    factor = 1.0 if forward else float(_count(b, x, dims))
    return _scaled(b, x, factor * _factor(normalization, _count(b, x, dims)))


def real_to_complex(
    b: Build, x: Value, dim: Sequence[int], normalization: int, onesided: bool
) -> Value:
    """The transform of real numbers; half of the last dim is enough."""
    dims = [dim_of(d, b.out.rank) for d in dim]
    factor = _factor(normalization, _count(b, x, dims))
    if onesided:
        x = _along(b, x, dims[-1], "RFFT", shape_of(x)[dims[-1]])
        dims = dims[:-1]
    else:
        x = b.convert(x, DTYPES[f"complex<{type_of(x).dtype}>"])
    for d in reversed(dims):
        x = _along(b, x, d, "FFT", shape_of(x)[d])
    return _scaled(b, x, factor)


def complex_to_real(
    b: Build, x: Value, dim: Sequence[int], normalization: int, last_dim_size: int
) -> Value:
    """The unnormalized inverse of a real transform."""
    dims = [dim_of(d, b.out.rank) for d in dim]
    for d in dims[:-1]:
        x = _along(b, x, d, "IFFT", shape_of(x)[d])
    last = dims[-1]
    # The input may have more bins than the length needs, as PyTorch allows.
    x = b.slice(x, last, 0, last_dim_size // 2 + 1)
    x = _along(b, x, last, "IRFFT", last_dim_size)
    count = _count(b, x, dims)
    return _scaled(b, x, count * _factor(normalization, count))


def _along(b: Build, x: Value, dim: int, kind: str, length: int) -> Value:
    last = len(shape_of(x)) - 1
    made = b.op(Fft(kind, (length,)), b.move(x, dim, last))
    return b.move(made, last, dim)


def _count(b: Build, x: Value, dims: Sequence[int]) -> int:
    return math.prod(shape_of(x)[d] for d in dims)


def _factor(normalization: int, count: int) -> float:
    """The divisor of a normalization mode: None, the square root of the count, or the count."""
    return (1.0, 1 / math.sqrt(max(1, count)), 1 / max(1, count))[normalization]


def _scaled(b: Build, x: Value, factor: float) -> Value:
    return x if factor == 1 else b.op(Multiply(), x, b.like(x, factor))


LOWERINGS: dict[str, AtenLowering] = {
    "aten._fft_c2c.default": complex_to_complex,
    "aten._fft_c2r.default": complex_to_real,
    "aten._fft_r2c.default": real_to_complex,
}
