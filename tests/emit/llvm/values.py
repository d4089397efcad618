"""Arrays of every element type: what is special, what is random, and all pairs of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import ml_dtypes
import numpy as np

from weft.ir.types import Array, DType

_REAL = (
    0.0,
    0.5,
    1.0,
    1.5,
    2.0,
    2.5,
    3.0,
    7.0,
    10.0,
    88.0,
    100.0,
    700.0,
    1e-3,
    1e10,
    np.inf,
    np.nan,
)


def special(dtype: DType) -> Array:
    """Zeros, ones, limits, ties, infinities, NaN, subnormal numbers: of both signs."""
    if dtype.kind == "bool":
        return np.array([False, True])
    if dtype.is_integer:
        signed = dtype.kind == "int"
        high = (1 << dtype.bits - signed) - 1
        low = -high - 1 if signed else 0
        near = [
            0,
            1,
            2,
            3,
            5,
            7,
            31,
            high // 2,
            high - 1,
            high,
            low,
            low + 1,
            *(-1, -2, -3) * signed,
        ]
        kept = sorted({n for n in near if low <= n <= high})
        return np.array(kept, np.int64 if signed else np.uint64).astype(dtype.numpy)
    info = ml_dtypes.finfo(dtype.real.numpy)
    limits = [float(x) for x in (info.max, info.tiny, info.smallest_subnormal, info.eps)]
    sizes = np.array([*_REAL, *limits, 1 + float(info.eps), 0.5 - float(info.eps) / 4])
    with np.errstate(all="ignore"):
        reals = np.concatenate([sizes, -sizes]).astype(dtype.real.numpy)
    if not dtype.is_complex:
        return reals
    few = reals[np.abs(reals) != float(info.smallest_subnormal)][::3]
    return np.array([complex(a, b) for a, b in itertools.product(few, few)], dtype.numpy)


def random(dtype: DType, count: int, seed: int = 0) -> Array:
    """Random bits, and as many random numbers of moderate size."""
    rng = np.random.default_rng(seed)
    if dtype.kind == "bool":
        return rng.integers(0, 2, count).astype(bool)
    if dtype.is_complex:
        parts = random(dtype.real, 2 * count, seed)
        return parts.view(dtype.numpy)
    size = dtype.numpy.itemsize
    bits = rng.integers(0, 256, (count // 2, size), dtype=np.uint8).view(f"u{size}").ravel()
    if dtype.bits < 8:
        bits &= (1 << dtype.bits) - 1
    moderate = rng.standard_normal(count - count // 2) * 4
    with np.errstate(all="ignore"):
        numbers = (moderate if dtype.is_float else np.abs(np.rint(moderate))).astype(dtype.numpy)
    return rng.permutation(np.concatenate([bits.view(dtype.numpy), numbers]))


def operands(dtypes: Sequence[DType], count: int = 400, seed: int = 0) -> list[Array]:
    """Arrays of one length, with every combination of special values at their beginning."""
    few = [special(d) for d in dtypes]
    if len(dtypes) > 2:
        few = [x[:: max(1, len(x) // 8)] for x in few]
    grids = np.meshgrid(*few, indexing="ij") if few else []
    return [
        np.concatenate([grid.ravel(), random(dtype, count, seed + n)])
        for n, (grid, dtype) in enumerate(zip(grids, dtypes, strict=True))
    ]
