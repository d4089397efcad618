"""Eigenvalues and singular values by LAPACK, on as many threads as pay."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np

from weft.ir.types import Array
from weft.ops.numerics.schur import has_lapack

# Rows of a matrix from which on OpenBLAS's threads pay. Below, they wait for one another at each of
# many small steps, which costs 100 times the work where other programs use the cores.
THREADED = 1024


def eigh(matrices: Array, lower: bool) -> tuple[Array, Array]:
    """The eigenvalues and eigenvectors of finite Hermitian matrices, from one triangle."""
    with _threads_for(matrices):
        if not _is_single(matrices):
            values, vectors = np.linalg.eigh(matrices, "L" if lower else "U")
            return values, vectors
        import scipy.linalg

        def one(matrix: Array) -> tuple[Array, ...]:
            made: tuple[Array, ...] = scipy.linalg.eigh(
                matrix, lower=lower, driver="evd", check_finite=False
            )
            return made

        values, vectors = _each(one, matrices)
        return values, vectors


def svd(matrices: Array, full: bool, vectors: bool) -> tuple[Array, ...]:
    """U, the singular values and V^H of finite matrices, or the values alone."""
    with _threads_for(matrices):
        if not _is_single(matrices):
            if not vectors:
                return (np.linalg.svd(matrices, compute_uv=False),)
            return tuple(np.linalg.svd(matrices, full_matrices=full))
        import scipy.linalg

        def one(matrix: Array) -> tuple[Array, ...]:
            made = scipy.linalg.svd(
                matrix, full_matrices=full, compute_uv=vectors, check_finite=False
            )
            return tuple(made) if vectors else (made,)

        return _each(one, matrices)


def eig(matrices: Array) -> tuple[Array, Array]:
    """The eigenvalues and right eigenvectors of finite matrices."""
    with _threads_for(matrices):
        if not _is_single(matrices):
            values, vectors = np.linalg.eig(matrices)
            return values, vectors
        import scipy.linalg

        def one(matrix: Array) -> tuple[Array, ...]:
            values, vectors = scipy.linalg.eig(matrix, check_finite=False)
            return values, vectors

        values, vectors = _each(one, matrices)
        return values, vectors


def _is_single(matrices: Array) -> bool:
    """Whether SciPy is better: numpy's functions compute single precision in double."""
    return matrices.dtype.char in "fF" and has_lapack() and matrices.size > 0


def _each(function: Callable[[Array], tuple[Array, ...]], matrices: Array) -> tuple[Array, ...]:
    """The results of a function of one matrix, stacked."""
    batch = matrices.shape[:-2]
    made = [function(matrix) for matrix in matrices.reshape(-1, *matrices.shape[-2:])]
    parts = [np.stack(part) for part in zip(*made, strict=True)]
    return tuple([part.reshape(*batch, *part.shape[1:]) for part in parts])


_Count = tuple[Callable[[], int], Callable[[int], None]]
_LIMITED = threading.RLock()


@contextmanager
def _threads_for(matrices: Array) -> Iterator[None]:
    """One thread of OpenBLAS for small matrices; all that it has for large ones."""
    if max(matrices.shape[-2:]) >= THREADED:
        yield
        return
    with _LIMITED:
        before = [(change, get()) for get, change in _thread_counts()]
        for change, _ in before:
            change(1)
        try:
            yield
        finally:
            for change, count in before:
                change(count)


@cache
def _thread_counts() -> tuple[_Count, ...]:
    """The getters and setters of the thread counts of numpy's and SciPy's OpenBLAS."""
    found: list[_Count] = []
    folders = Path(np.__file__).parent.parent
    for name in ("numpy", "scipy"):
        beside = [folders / f"{name}.libs", folders / name / ".dylibs"]
        for path in [path for folder in beside for path in folder.glob("*openblas*")]:
            library = ctypes.CDLL(str(path))
            for end in ("64_", ""):
                get, change = (f"scipy_openblas_{way}_num_threads{end}" for way in ("get", "set"))
                if hasattr(library, get):
                    found.append((getattr(library, get), getattr(library, change)))
    return tuple(found)
