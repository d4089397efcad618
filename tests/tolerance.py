"""The one table of tolerances: how far results may be apart, by type and reduction length."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from weft.ir.types import Array, DType, dtype_of

# Units in the last place that one rounding, or one library function, may be off.
ULPS = {"f64": 8, "f32": 8, "f16": 2, "bf16": 2}
SMALL_ULPS = 1  # of all narrower floats


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What is still equal: a share of each element, and a share of the largest one."""

    relative: float
    of_largest: float


def tolerance(dtype: DType, length: int = 1) -> Tolerance:
    """The tolerance for results of that type, each of which sums up `length` roundings."""
    if not (dtype.is_float or dtype.is_complex):
        return Tolerance(0.0, 0.0)
    info = ml_dtypes.finfo(dtype.real.numpy)
    unit = ULPS.get(dtype.real.name, SMALL_ULPS) * float(info.eps)
    # Errors of a sum are random, and relative to what cancels in it.
    spread = unit * math.sqrt(length) if length > 1 else 0.0
    return Tolerance(unit * math.sqrt(length), spread)


def difference(actual: Any, expected: Any, length: int = 1, least: float = 0.0) -> str | None:
    """Where and how far two arrays are apart, or None if they are equal within the tolerance.

    Elements smaller than `least` are measured as if they had that size: approximations of a
    function are no better near its zeros than elsewhere.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.dtype != expected.dtype:
        return f"element types differ: {actual.dtype} and {expected.dtype}"
    if actual.shape != expected.shape:
        return f"shapes differ: {actual.shape} and {expected.shape}"
    good = _equal(actual, expected, tolerance(dtype_of(actual.dtype), length), least)
    if good.all():
        return None
    place = tuple(int(i) for i in np.argwhere(~good)[0])
    count = int((~good).sum())
    return (
        f"element {list(place)} is {actual[place]}, expected {expected[place]} "
        f"({count} of {good.size} differ)"
    )


def assert_close(
    actual: Any, expected: Any, length: int = 1, what: str = "", least: float = 0.0
) -> None:
    """Fail unless two arrays are equal within the tolerance of their type."""
    found = difference(actual, expected, length, least)
    assert found is None, f"{what}: {found}" if what else found


def _equal(actual: Array, expected: Array, allowed: Tolerance, least: float) -> Array:
    """Element by element; NaN equals NaN, whatever its bits."""
    if actual.dtype.kind == "c":
        parts = [(actual.real, expected.real), (actual.imag, expected.imag)]
        size = np.maximum(np.abs(_wide(expected)), least)
        return _near(*parts[0], allowed, size) & _near(*parts[1], allowed, size)
    if allowed.relative == 0.0:
        return np.asarray(actual == expected)
    size = np.maximum(np.abs(_wide(expected)), least)
    return _near(actual, expected, allowed, size)


def _near(actual: Array, expected: Array, allowed: Tolerance, size: Array) -> Array:
    """Whether real numbers are near, measured by the size of the whole (complex) number."""
    tiny = float(ml_dtypes.finfo(actual.dtype).tiny)
    a, e = _wide(actual), _wide(expected)
    finite = np.isfinite(e) & np.isfinite(size)
    with np.errstate(all="ignore"):
        largest = float(np.max(size, where=finite, initial=0.0))
        room = allowed.relative * np.where(finite, size, 0.0) + allowed.of_largest * largest + tiny
        near = np.abs(a - e) <= room
    return np.asarray(np.where(finite, near, (a == e) | (np.isnan(a) & np.isnan(e))) | (a == e))


def _wide(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
