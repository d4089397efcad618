"""Shapes, element types and small arrays to draw examples from."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from weft.ir.types import DTYPES, Array, DType

EVERY = tuple(name for name in DTYPES if name != "index")
INTEGERS = ("i4", "i8", "i32", "i64", "ui8", "ui32", "ui64")
COMMON = ("f32", "f64", "bf16", "i32", "i8", "ui16", "i1")

dims = st.sampled_from((2, 4, 2, 4, 3, 6, 1, 8, 0))
seeds = st.integers(0, 2**32 - 1)


def shapes(least: int = 0, most: int = 3) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes with even dims mostly, so that factors can be split."""
    return st.lists(dims, min_size=least, max_size=most).map(tuple)


def dtypes(names: tuple[str, ...] = EVERY) -> st.SearchStrategy[DType]:
    """Element types."""
    return st.sampled_from([DTYPES[name] for name in names])


def array(shape: tuple[int, ...], dtype: DType, seed: int) -> Array:
    """Small whole numbers, which every element type holds and whose sums are exact."""
    random = np.random.default_rng(seed)
    if dtype.kind == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if "E8M0" in dtype.name:  # powers of two only, and no zero
        return np.asarray(2.0 ** random.integers(-2, 3, shape)).astype(dtype.numpy)
    signed = dtype.bits > 2 and dtype.kind != "uint"
    low, high = (-3 if signed else 0), (4 if dtype.bits > 2 else 2)
    values = random.integers(low, high, shape)
    if dtype.is_complex:
        return (values + 1j * random.integers(low, high, shape)).astype(dtype.numpy)
    return np.asarray(values).astype(dtype.numpy)


def indices(shape: tuple[int, ...], dtype: DType, high: int, seed: int) -> Array:
    """Indices from a little below 0 to a little above `high`, as far as the type holds them."""
    random = np.random.default_rng(seed)
    return random.integers(0 if dtype.kind == "uint" else -2, high + 2, shape).astype(dtype.numpy)
