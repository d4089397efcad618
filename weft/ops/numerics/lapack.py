"""Routines of the LAPACK that numpy is linked with and does not export."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np

from weft.ir.types import Array

_LETTERS = {"f": "s", "d": "d", "F": "c", "D": "z"}  # by numpy's character of a dtype
# Prefix and suffix of a symbol, and the integers of that build.
_SPELLINGS = (
    ("scipy_", "_64_", ctypes.c_int64),
    ("", "_64_", ctypes.c_int64),
    ("scipy_", "_", ctypes.c_int32),
    ("", "_", ctypes.c_int32),
)


@functools.cache
def _routine(name: str) -> tuple[Any, type[ctypes.c_int64 | ctypes.c_int32]] | None:
    """A routine and its integer type; None if numpy's LAPACK does not export it.

    The symbol is looked up in numpy's own extension module, since dlsym also searches the libraries
    that it depends on, wherever they are installed.
    """
    try:
        library = ctypes.CDLL(np.linalg._umath_linalg.__file__)
    except (AttributeError, OSError):
        return None
    for before, after, integer in _SPELLINGS:
        if hasattr(library, f"{before}{name}{after}"):
            return getattr(library, f"{before}{name}{after}"), integer
    return None


def has_gees(dtype: np.dtype[Any]) -> bool:
    """Whether `gees` is available for a dtype."""
    return _routine(f"{_LETTERS[dtype.char]}gees") is not None


def gees(matrix: Array) -> tuple[Array, Array] | None:
    """The Schur form of a finite square matrix and its vectors; None if it does not converge."""
    found = _routine(f"{_LETTERS[matrix.dtype.char]}gees")
    assert found is not None, "check has_gees first"
    call, integer = found
    size = len(matrix)
    form = np.array(matrix, order="F")
    vectors = np.zeros_like(form)
    is_complex = matrix.dtype.kind == "c"
    values = [np.zeros(size, form.dtype) for _ in range(1 if is_complex else 2)]
    more = [np.zeros(size, form.real.dtype)] if is_complex else []
    n, lead, selected, info = integer(size), integer(max(size, 1)), integer(), integer()

    def run(work: Array, length: int) -> None:
        call(
            *(b"V", b"N", None, ctypes.byref(n), _address(form), ctypes.byref(lead)),
            ctypes.byref(selected),
            *map(_address, values),
            *(_address(vectors), ctypes.byref(lead)),
            *(_address(work), ctypes.byref(integer(length))),
            *map(_address, more),
            *(None, ctypes.byref(info)),
            *(
                ctypes.c_size_t(1),
                ctypes.c_size_t(1),
            ),  # Fortran's hidden lengths of the two strings
        )

    best = np.zeros(1, form.dtype)
    run(best, -1)  # workspace query
    length = max(int(best[0].real), 3 * size, 1)
    run(np.zeros(length, form.dtype), length)
    return None if info.value else (form, vectors)


def _address(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
