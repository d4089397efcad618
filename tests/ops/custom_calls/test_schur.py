"""The Schur decomposition without LAPACK: few steps, standard blocks, matrices that are hard."""

from __future__ import annotations

import numpy as np
import pytest

from weft.ir.types import Array
from weft.ops.numerics import schur
from weft.ops.numerics.schur import decompose_by_qr


def check(matrix: Array) -> None:
    """An orthogonal basis, a form with standard blocks, and their product."""
    found = decompose_by_qr(matrix)
    assert found is not None
    form, basis = found
    size, eps = max(1, len(matrix)), float(np.finfo(matrix.dtype).eps)
    slack = 40 * size * eps * (float(np.abs(matrix).max(initial=0)) or 1)
    np.testing.assert_allclose(basis @ form @ basis.conj().T, matrix, atol=slack)
    np.testing.assert_allclose(basis @ basis.conj().T, np.eye(len(matrix)), atol=40 * size * eps)
    assert not np.tril(form, -2).any()
    below = np.diagonal(form, -1)
    if matrix.dtype.kind == "c":
        assert not below.any()
        return
    for n in np.flatnonzero(below):  # a pair of complex eigenvalues
        assert form[n, n] == form[n + 1, n + 1] and form[n, n + 1] * form[n + 1, n] < 0
        assert n == 0 or not below[n - 1]


@pytest.mark.parametrize("dtype", [np.float64, np.complex128, np.float32, np.complex64])
@pytest.mark.parametrize("size", [0, 1, 2, 3, 5, 12])
def test_few_steps_for_each_eigenvalue(dtype, size, monkeypatch):
    """A right shift converges in two or three steps; few are allowed here."""
    monkeypatch.setattr(schur, "_TRIES", 1 if size > 5 else 4)
    rng = np.random.default_rng(size)
    for _ in range(4):
        matrix = rng.standard_normal((size, size))
        if np.dtype(dtype).kind == "c":
            matrix = matrix + 1j * rng.standard_normal((size, size))
        check(matrix.astype(dtype))
        check((matrix + matrix.conj().T).astype(dtype))


HARD = {
    "zero": np.zeros((4, 4)),
    "one block": np.diag(np.ones(4), 1) + 3 * np.eye(5),
    "cycle": np.roll(np.eye(6), 1, 0),  # which needs an exceptional shift
    "real pair": np.array([[1.0, 2.0], [0.5, -1.0]]),
    "equal pair": np.array([[2.0, 0.0], [3.0, 2.0]]),
    "turn": np.array([[0.0, 1.0], [-1.0, 0.0]]),
    "far diagonal": np.array([[4.0, 1.0], [-9.0, -4.0]]),
    "roots": np.diag(np.ones(4), -1) + np.outer(np.eye(5)[0], [-1.0, 2, -3, 4, -5]),
    "blocks": np.kron(np.eye(3), np.array([[1.0, 5.0], [-0.1, 1.0]])),
    "small below": np.array([[1.0, 2, 3], [1e-30, 4, 5], [0, 1e-30, 6]]),
}


@pytest.mark.parametrize("name", HARD)
def test_hard_matrices(name):
    check(HARD[name])
    check(HARD[name].T.copy())
    check(HARD[name] * (1 + 0.5j))
