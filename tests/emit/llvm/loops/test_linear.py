"""Triangular systems and Cholesky decompositions of matrices larger than vectors."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from tests.emit.llvm.single.lone_nodes import check_alone, lone_kernel, node_of
from tests.tolerance import assert_close
from weft.emit.llvm.single.emit import emit_single_node
from weft.errors import Unsupported
from weft.ir.types import DTYPES, Array
from weft.ops.linalg import Cholesky, TriangularSolve

RANDOM = np.random.default_rng(0)
CLOSE = partial(assert_close, length=5000)


def matrices(*shape: int, dtype: str = "f32") -> Array:
    """Matrices whose diagonals are large."""
    made = RANDOM.standard_normal(shape) / shape[-1]
    made[..., range(shape[-1]), range(shape[-1])] += 2
    return made.astype(DTYPES[dtype].numpy)


@pytest.mark.parametrize("systems", [1, 5, 32, 70])
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("transpose", ["NO_TRANSPOSE", "TRANSPOSE"])
@pytest.mark.parametrize("lower", [True, False])
def test_triangular_systems(systems: int, left: bool, transpose: str, lower: bool):
    shape = (2, 37, systems) if left else (2, systems, 37)
    given = RANDOM.standard_normal(shape).astype(np.float32)
    op = TriangularSolve(left, lower, False, transpose)
    check_alone(op, matrices(2, 37, 37), given, sizes=(2,), masks=(0, 1), compare=CLOSE)


def test_complex_systems():
    transposed = RANDOM.permutation(20)
    matrix = matrices(20, 20) + 1j * matrices(20, 20)[transposed]
    given = (matrices(20, 20) + 1j * matrices(20, 20)).astype(np.complex64)
    op = TriangularSolve(True, True, True, "ADJOINT")
    check_alone(op, matrix.astype(np.complex64), given, compare=CLOSE)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize(("size", "dtype"), [(1, "f32"), (17, "f64"), (50, "f32"), (9, "bf16")])
def test_cholesky(lower: bool, size: int, dtype: str):
    factor = np.tril(matrices(3, size, size, dtype="f64"))
    matrix = (factor @ np.swapaxes(factor, -1, -2)).astype(DTYPES[dtype].numpy)
    check_alone(Cholesky(lower), matrix, sizes=(2,), masks=(1,), compare=CLOSE)


def test_matrices_that_are_not_positive_definite_have_no_factor():
    matrix = np.stack([np.eye(5), -np.eye(5), np.full((5, 5), np.nan)]).astype(np.float32)
    matrix[0, 3, 3] = 0
    check_alone(Cholesky(True), matrix, compare=CLOSE)


def test_large_complex_matrices_are_left_to_numpy():
    node = node_of(Cholesky(True), np.zeros((1024, 1024), np.complex64))
    with pytest.raises(Unsupported, match="no kernel in the llvm target: LAPACK's own"):
        emit_single_node(lone_kernel(node))
