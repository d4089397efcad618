"""The LAPACK that SciPy is linked with: the one that JAX on a CPU calls, too."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

from weft.ir.types import Array

_LETTERS = {"f": "s", "d": "d", "F": "c", "D": "z"}  # by numpy's character of a dtype


@cache
def has_lapack() -> bool:
    """Whether SciPy, an optional dependency that JAX brings along, is installed."""
    return importlib.util.find_spec("scipy") is not None


def gees(matrix: Array) -> tuple[Array, Array] | None:
    """The Schur form of a finite square matrix and its vectors; None if it does not converge."""
    if not matrix.size:
        return matrix.copy(), matrix.copy()
    letter = _LETTERS[matrix.dtype.char]
    length = int(_call(letter, matrix, -1)[-2][0].real)  # workspace query
    form, *_, vectors, _, info = _call(letter, matrix, length)
    return None if info else (form, vectors)


def _call(letter: str, matrix: Array, length: int) -> tuple[Any, ...]:
    from scipy.linalg import lapack

    result: tuple[Any, ...] = getattr(lapack, f"{letter}gees")(
        lambda *value: None,  # which eigenvalues come first: unused, they are not sorted
        matrix,
        lwork=length,
    )
    return result
