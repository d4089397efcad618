"""The Schur decomposition, by LAPACK or by the QR algorithm with shifts, a matrix at a time.

The order of the eigenvalues and the signs of the vectors are free, and programs are compared with
LAPACK's; where SciPy is missing, they are those of the algorithm here:
Golub and Van Loan, Matrix Computations, section 7.5. Real matrices get real 2x2 blocks for pairs of
complex eigenvalues, with equal diagonal elements, as LAPACK makes them.
"""

from __future__ import annotations

import importlib.util
import math
from functools import cache
from typing import Any

import numpy as np

from weft.ir.types import Array
from weft.ops.numerics.factorize import hessenberg, householder_product

_LETTERS = {"f": "s", "d": "d", "F": "c", "D": "z"}  # LAPACK's, by numpy's character of a dtype
_TRIES = 30  # for each eigenvalue
_STUCK = 10  # iterations after which an exceptional shift is used


def schur(matrices: Array) -> tuple[Array, Array]:
    """T upper triangular (or nearly, for real matrices) and Z unitary, with a = Z T Z^H.

    NaN where the algorithm does not converge.
    """
    forms, vectors = np.empty_like(matrices), np.empty_like(matrices)
    decompose = gees if has_lapack() else decompose_by_qr
    for index in np.ndindex(*matrices.shape[:-2]):
        found = decompose(matrices[index]) if np.isfinite(matrices[index]).all() else None
        forms[index], vectors[index] = found or (np.nan, np.nan)
    return forms, vectors


@cache
def has_lapack() -> bool:
    """Whether SciPy, an optional dependency that JAX brings along, is installed."""
    return importlib.util.find_spec("scipy") is not None


def gees(matrix: Array) -> tuple[Array, Array] | None:
    """The Schur form of a finite square matrix and its vectors; None if it does not converge."""
    if not matrix.size:
        return matrix.copy(), matrix.copy()
    letter = _LETTERS[matrix.dtype.char]
    length = int(_call_gees(letter, matrix, -1)[-2][0].real)  # workspace query
    form, *_, vectors, _, info = _call_gees(letter, matrix, length)
    return None if info else (form, vectors)


def _call_gees(letter: str, matrix: Array, length: int) -> tuple[Any, ...]:
    from scipy.linalg import lapack

    result: tuple[Any, ...] = getattr(lapack, f"{letter}gees")(
        lambda *value: None,  # which eigenvalues come first: unused, they are not sorted
        matrix,
        lwork=length,
    )
    return result


def decompose_by_qr(matrix: Array) -> tuple[Array, Array] | None:
    """The form of a finite matrix and its vectors; None if the algorithm does not converge."""
    form, basis = _start(matrix)
    reduce = _complex if matrix.dtype.kind == "c" else _real
    return (form, basis) if reduce(form, basis) else None


def _start(matrix: Array) -> tuple[Array, Array]:
    """The Hessenberg form, and the basis it is in."""
    size = len(matrix)
    packed, taus = hessenberg(matrix)
    basis = np.eye(size, dtype=matrix.dtype)
    if size > 1:
        basis[1:, 1:] = householder_product(packed[1:, :-1], taus)
    return np.triu(packed, -1), basis


def _split(form: Array, low: int, high: int) -> int:
    """Deflation: the first row of the last unreduced block; tiny subdiagonals become zero."""
    tiny = np.finfo(form.dtype).tiny
    unit = np.finfo(form.dtype).eps
    for k in range(high, low, -1):
        # Negligible beside the diagonal elements around it; beside the whole matrix if these are 0.
        size = abs(form[k - 1, k - 1]) + abs(form[k, k]) or np.abs(form).max()
        if abs(form[k, k - 1]) <= max(unit * size, tiny):
            form[k, k - 1] = 0
            return k
    return low


def _real(form: Array, basis: Array) -> bool:
    """Make a real Hessenberg matrix quasi-triangular, in place; whether it converged."""
    high, tries = len(form) - 1, 0
    while high > 0:
        low = _split(form, 0, high)
        if low >= high - 1:
            if low == high - 1:
                _standardize(form, basis, low)
            high, tries = low - 1, 0
            continue
        tries += 1
        if tries > _TRIES * len(form):
            return False
        _double_step(form, basis, low, high, tries)
    return True


def _double_step(form: Array, basis: Array, low: int, high: int, tries: int) -> None:
    """Two QR steps with conjugate shifts at once, in real arithmetic."""
    corner = form[high - 1 : high + 1, high - 1 : high + 1]
    if tries % _STUCK == 0:
        # Against cycles, the exceptional shift of EISPACK's hqr: x = y = 3/4 s and w = -7/16 s^2,
        # with the trace 3/2 s and the determinant s^2.
        near = abs(form[high, high - 1]) + abs(form[high - 1, high - 2])
        trace, det = 1.5 * near, near * near
    else:
        trace = corner[0, 0] + corner[1, 1]
        det = corner[0, 0] * corner[1, 1] - corner[0, 1] * corner[1, 0]
    h = form[low : low + 3, low : low + 3]
    # The first column of H^2 - trace H + det: three elements that are not 0, since H is Hessenberg.
    # A reflector for it starts the bulge, which the others chase down the subdiagonal.
    bulge = np.array(
        [
            h[0, 0] * h[0, 0] + h[0, 1] * h[1, 0] - trace * h[0, 0] + det,
            h[1, 0] * (h[0, 0] + h[1, 1] - trace),
            h[1, 0] * h[2, 1],
        ]
    )
    for k in range(low, high):
        rows = slice(k, min(k + 3, high + 1))
        if k > low:
            bulge = form[rows, k - 1].copy()
        bulge = bulge[: rows.stop - k]
        # Scaled, so that its norm neither overflows nor vanishes; its sign is that of no
        # cancellation.
        v = bulge / (np.abs(bulge).max() or 1)
        v[0] += math.copysign(float(np.linalg.norm(v)), v[0])
        scale = 2 / (v @ v or 1)
        first = max(k - 1, low)
        form[rows, first:] -= scale * np.outer(v, v @ form[rows, first:])
        last = min(k + 4, high + 1)
        form[:last, rows] -= scale * np.outer(form[:last, rows] @ v, v)
        basis[:, rows] -= scale * np.outer(basis[:, rows] @ v, v)
        if k > low:
            form[k + 1 : rows.stop, k - 1] = 0


def _standardize(form: Array, basis: Array, at: int) -> None:
    """Rotate a 2x2 block: to a triangle if its eigenvalues are real, else to equal diagonals."""
    (a, b), (c, d) = form[at : at + 2, at : at + 2].tolist()
    half = (a - d) / 2
    square = half * half + b * c
    if square >= 0:
        # The root of the larger sum, by the sign of `half`: it does not cancel.
        root = half + math.copysign(math.sqrt(square), half)
        cosine, sine = _rotation(root, c) if root or c else (1.0, 0.0)
    else:
        # Equal diagonals: tan of twice the angle is (d - a) / (b + c), and the angle is small.
        angle = math.atan2(math.copysign(1.0, b + c) * (d - a), abs(b + c)) / 2
        cosine, sine = math.cos(angle), math.sin(angle)
    turn = np.array([[cosine, -sine], [sine, cosine]], form.dtype)
    pair = slice(at, at + 2)
    form[pair, at:] = turn.T @ form[pair, at:]
    form[: at + 2, pair] = form[: at + 2, pair] @ turn
    basis[:, pair] = basis[:, pair] @ turn
    if square >= 0:
        form[at + 1, at] = 0
    else:
        form[at, at] = form[at + 1, at + 1] = (form[at, at] + form[at + 1, at + 1]) / 2


def _rotation(x: float, y: float) -> tuple[float, float]:
    length = math.hypot(x, y)
    return x / length, y / length


def _complex(form: Array, basis: Array) -> bool:
    """Make a complex Hessenberg matrix triangular, in place; whether it converged."""
    high, tries = len(form) - 1, 0
    while high > 0:
        low = _split(form, 0, high)
        if low == high:
            high, tries = high - 1, 0
            continue
        tries += 1
        if tries > _TRIES * len(form):
            return False
        _single_step(form, basis, low, high, _shift(form, high, tries))
    return True


def _shift(form: Array, high: int, tries: int) -> complex:
    """The eigenvalue of the last 2x2 block that is nearer to its last element."""
    if tries % _STUCK == 0:
        return complex(form[high, high] + abs(form[high, high - 1]))
    (a, b), (c, d) = form[high - 1 : high + 1, high - 1 : high + 1].tolist()
    half = (a - d) / 2
    root = complex(np.sqrt(complex(half * half + b * c)))
    nearer: complex = min((d + half + root, d + half - root), key=lambda value: abs(value - d))
    return nearer


def _single_step(form: Array, basis: Array, low: int, high: int, shift: complex) -> None:
    """One QR step on the block from low to high."""
    first, second = form[low, low] - shift, form[low + 1, low]
    for k in range(low, high):
        if k > low:
            first, second = form[k, k - 1], form[k + 1, k - 1]
        length = math.hypot(abs(first), abs(second)) or 1.0
        turn = np.array([[np.conj(first), np.conj(second)], [-second, first]]) / length
        if not (first or second):
            turn = np.eye(2)
        pair = slice(k, k + 2)
        begin = max(k - 1, low)
        form[pair, begin:] = turn @ form[pair, begin:]
        end = min(k + 3, high + 1)
        form[:end, pair] = form[:end, pair] @ np.conj(turn.T)
        basis[:, pair] = basis[:, pair] @ np.conj(turn.T)
        if k > low:
            form[k + 1, k - 1] = 0
