"""Systems with tridiagonal matrices, solved by elimination with partial pivoting."""

from __future__ import annotations

import numpy as np

from weft.ir.types import Array


def tridiagonal_solve(
    below: Array, diagonal: Array, above: Array, right: Array, *, perturb: bool = False
) -> Array:
    """x with A x = right: `below[0]` and `above[-1]` are outside of A; leading dims are batch dims.

    A system with a singular matrix has NaN as its solution, or with `perturb` that of a matrix
    nearby: pivots smaller than eps times the largest element of U are moved to that size.
    """
    size = diagonal.shape[-1]
    # The three diagonals of U: swapping rows moves an element of the superdiagonal one further.
    pivots, next_, second = (np.array(part) for part in (diagonal, above, np.zeros_like(above)))
    x = np.array(right)
    if size == 0:
        return x
    next_[..., -1] = 0
    with np.errstate(all="ignore"):
        for row in range(size - 1):
            _eliminate(below[..., row + 1], pivots, next_, second, x, row)
        if perturb:
            pivots = _moved_from_zero(pivots, next_, second)
        singular = (pivots == 0).any(-1)
        for row in reversed(range(size)):
            if row + 1 < size:
                x[..., row, :] -= next_[..., row, None] * x[..., row + 1, :]
            if row + 2 < size:
                x[..., row, :] -= second[..., row, None] * x[..., row + 2, :]
            x[..., row, :] /= pivots[..., row, None]
    x[singular] = np.nan
    return x


def _eliminate(left: Array, pivots: Array, next_: Array, second: Array, x: Array, row: int) -> None:
    """Make the element below a pivot zero, after swapping the two rows if it is larger."""
    swap = np.abs(left) > np.abs(pivots[..., row])
    upper = (pivots[..., row], next_[..., row], np.zeros_like(left))
    lower = (left, pivots[..., row + 1], next_[..., row + 1])
    pivot_row = [np.where(swap, low, up) for low, up in zip(lower, upper, strict=True)]
    other = [np.where(swap, up, low) for low, up in zip(lower, upper, strict=True)]
    # Two zeros leave nothing to eliminate: the matrix is singular.
    factor = np.where(pivot_row[0] == 0, 0, other[0] / np.where(pivot_row[0] == 0, 1, pivot_row[0]))
    pivots[..., row], next_[..., row], second[..., row] = pivot_row
    pivots[..., row + 1] = other[1] - factor * pivot_row[1]
    next_[..., row + 1] = other[2] - factor * pivot_row[2]
    swap, factor = swap[..., None], factor[..., None]
    first, last = x[..., row, :].copy(), x[..., row + 1, :].copy()
    x[..., row, :] = np.where(swap, last, first)
    x[..., row + 1, :] = np.where(swap, first, last) - factor * x[..., row, :]


def _moved_from_zero(pivots: Array, next_: Array, second: Array) -> Array:
    """Pivots, those below eps times the largest element of U replaced by that, with their sign."""
    sizes = [np.abs(part).max(-1, keepdims=True) for part in (pivots, next_, second)]
    largest = np.maximum(np.maximum(sizes[0], sizes[1]), sizes[2])
    least = np.finfo(pivots.dtype).eps * np.where(largest == 0, 1, largest)
    small = np.abs(pivots) < least
    sign = np.where(pivots == 0, 1, pivots / np.where(pivots == 0, 1, np.abs(pivots)))
    return np.where(small, sign * least, pivots).astype(pivots.dtype)
