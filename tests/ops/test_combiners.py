"""Combining ops: their identity elements, in every element type that has them."""

from __future__ import annotations

import numpy as np
import pytest

from weft.ir.types import DTYPES, DType
from weft.ops.combiners import COMBINERS, identity, in_dtype

CASES = [
    (combine, dtype)
    for combine in COMBINERS
    for dtype in DTYPES.values()
    if (combine in ("and", "or", "xor")) <= (dtype.is_integer or dtype.kind == "bool")
    and not (dtype.is_complex and combine in ("max", "min"))
    and not (dtype.name == "f8E8M0FNU" and combine in ("add", "mul"))
    and dtype.kind in ("int", "uint", "bool", "float", "complex")
]


def samples(dtype: DType) -> np.ndarray:
    if dtype.kind == "bool":
        return np.array([False, True])
    if dtype.is_integer:
        low, high = (int(n) for n in dtype.limits)
        wide = np.uint64 if dtype.kind == "uint" else np.int64
        return np.array([low, high, 0, 1, high // 3], wide).astype(dtype.numpy)
    return np.array([1.0, 2.0, 0.5, 4.0]).astype(dtype.numpy)


@pytest.mark.parametrize(("combine", "dtype"), CASES, ids=lambda x: getattr(x, "name", x))
def test_the_identity_changes_nothing(combine, dtype: DType):
    values = samples(dtype)
    nothing = np.full(values.shape, identity(combine, dtype)).astype(dtype.numpy)
    op = COMBINERS[in_dtype(combine, dtype)]
    for made in (op.reference(nothing, values), op.reference(values, nothing)):
        np.testing.assert_array_equal(np.asarray(made), values)
