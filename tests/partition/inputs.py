"""Random arguments for a module: tame numbers, indices in range, bits for what holds bits."""

from __future__ import annotations

import numpy as np

from weft.errors import Unsupported
from weft.ir.module import Module
from weft.ir.types import Array, TensorType, Type

INDEX_RANGE = 16


def arguments(module: Module, seed: int = 0, func: str = "main") -> list[Array]:
    """An array for every argument of a function, drawn from the seed."""
    rng = np.random.default_rng(seed)
    return [drawn(type, rng) for type in module.function(func).arg_types]


def drawn(type: Type, rng: np.random.Generator) -> Array:
    """An array of a type."""
    if not isinstance(type, TensorType):
        raise Unsupported(f"no arguments of the type {type} are drawn", help="draw tensors only")
    shape, dtype = type.sizes, type.dtype
    if dtype.kind == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.is_complex:
        values = rng.normal(size=shape) + 1j * rng.normal(size=shape)
        return np.asarray(values).astype(dtype.numpy)
    if dtype.is_float:
        return np.asarray(rng.uniform(-1, 1, shape)).astype(dtype.numpy)
    high = 3 if shape == () else min(INDEX_RANGE, 2 ** (dtype.bits - 1))
    return np.asarray(rng.integers(0, max(high, 2), shape)).astype(dtype.numpy)
