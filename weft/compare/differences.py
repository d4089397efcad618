"""Errors of values relative to a reference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from weft.ir.location import UNKNOWN, Location
from weft.ir.types import Array, type_of
from weft.records import dataclass

_CANCELLED = 1e-2  # of the operands' magnitude: a smaller sum is mostly cancellation error
# Tolerance relative to the largest element, by the bits of the (real) element type.
_TOLERANCE = {64: 1e-9, 32: 1e-3, 16: 5e-2, 8: 0.25, 6: 0.25, 4: 0.5}


@dataclass(frozen=True, slots=True)
class Difference:
    """The error of a value relative to its reference."""

    name: str
    what: str  # its type, as text
    relative: float  # largest error over the largest element
    correlation: float  # correlation; NaN if one of the two is constant
    is_close: bool  # within rounding, or within the caller's tolerance
    loc: Location = UNKNOWN

    def __str__(self) -> str:
        text = f"{self.name}  {self.what}  relative error {self.relative:.2g}"
        if np.isnan(self.correlation):
            return text
        return f"{text}, correlation {self.correlation:.6f}"

    def located(self) -> str:
        """The text with the source line."""
        return f"{self}\n  --> {self.loc.describe()}"


def difference(
    name: str,
    actual: Array,
    expected: Array,
    loc: Location = UNKNOWN,
    scale: float = 0.0,
    *,
    rtol: float | None = None,
    atol: float | None = None,
) -> Difference:
    """Compare a value with its reference; NaN equals NaN, infinities equal their like.

    The error is relative to the largest element, or to `scale` if that is larger. With `rtol` or
    `atol`, every element may be off by `atol + rtol * abs(expected)`, as in numpy's allclose.
    """
    type = type_of(np.asarray(expected))
    exact = type.dtype.kind in ("bool", "int", "uint")
    tolerance = 0.0 if exact else _TOLERANCE[type.dtype.real.bits]
    wide = np.complex128 if type.dtype.kind == "complex" else np.float64
    a, b = (np.asarray(x).astype(wide).reshape(-1) for x in (actual, expected))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return Difference(name, str(type), 0.0, 1.0, True, loc)
    with np.errstate(all="ignore"):
        off = np.where(same, 0.0, np.abs(a - b))
        largest = max(np.abs(b[np.isfinite(b)]).max(initial=0.0), scale) or 1.0
        relative = float(np.where(np.isnan(off), np.inf, off).max() / largest)
        both = np.isfinite(a) & np.isfinite(b)
        correlation = _correlation(a[both], b[both])
        if rtol is None and atol is None:
            is_close = relative <= tolerance
        else:
            is_close = bool((same | (off <= (atol or 0.0) + (rtol or 0.0) * np.abs(b)))[both].all())
            is_close &= bool(same[~both].all())
    return Difference(name, str(type), relative, correlation, is_close, loc)


def _correlation(a: Array, b: Array) -> float:
    if a.size < 2 or not np.ptp(np.abs(a)) or not np.ptp(np.abs(b)):
        return 1.0 if np.array_equal(a, b) else np.nan
    return float(np.corrcoef(a, b)[0, 1].real)


def errors(
    arrays: Sequence[Array | None],
    expected: Sequence[Array],
    rtol: float | None = None,
    atol: float | None = None,
) -> list[Difference]:
    """The error of each result, within rounding or the caller's tolerance."""
    return [
        difference(f"result {n}", a, b, rtol=rtol, atol=atol)
        for n, (a, b) in enumerate(zip(arrays, expected, strict=True))
        if a is not None
    ]


def cancellation_bound(operands: Iterable[Array]) -> float:
    """The magnitude of operands that may cancel, which bounds the rounding error."""
    magnitude = 0.0
    for operand in operands:
        if operand.dtype.kind not in "biu" and operand.size:
            sizes = np.abs(operand.astype(np.complex128))
            magnitude = max(magnitude, float(sizes[np.isfinite(sizes)].max(initial=0.0)))
    return _CANCELLED * magnitude
