"""Transforms, decompositions and triangular systems: values, special values, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tolerance import assert_close
from weft.errors import WeftError
from weft.ir.op import Op, infer, rule
from weft.ir.types import DTYPES, Types, tensor
from weft.ops.linalg import Cholesky, Fft, TriangularSolve


def refusal(op: Op, *types: object) -> str:
    with pytest.raises(WeftError) as caught:
        infer(op, types)
    return caught.value.message.removeprefix(f"{op.name}: ")


def test_transforms_of_one_dim():
    pulse = np.array([1, 0, 0, 0], np.complex64)
    np.testing.assert_array_equal(Fft("FFT", (4,)).reference(pulse), np.ones(4))
    np.testing.assert_array_equal(Fft("IFFT", (4,)).reference(np.ones(4, np.complex64)), pulse)
    real = np.array([1.0, 2.0, 3.0, 4.0])
    half = np.array([10, -2 + 2j, -2])
    np.testing.assert_array_equal(Fft("RFFT", (4,)).reference(real), half)
    np.testing.assert_array_equal(Fft("IRFFT", (4,)).reference(half), real)


@pytest.mark.parametrize("lengths", [(3,), (4, 5), (2, 3, 7), (1,), (4, 1)])
def test_real_transforms_invert_each_other(lengths: tuple[int, ...]):
    array = np.random.default_rng(0).normal(size=(3, *lengths)).astype(np.float32)
    there = Fft("RFFT", lengths).reference(array)
    assert there.dtype == np.complex64 and there.shape[-1] == lengths[-1] // 2 + 1
    assert_close(Fft("IRFFT", lengths).reference(there), array, 10)


def test_transforms_of_nothing():
    empty = np.zeros((14, 15, 0, 17), np.float32)
    made = Fft("RFFT", (17,)).reference(empty)
    assert made.shape == (14, 15, 0, 9) and made.dtype == np.complex64
    assert Fft("RFFT", (0,)).reference(np.zeros((2, 0), np.float32)).shape == (2, 0)
    for size in (0, 1):
        assert Fft("IRFFT", (0,)).reference(np.zeros((2, size), np.complex64)).shape == (2, 0)


def test_rule_of_fft_blocks_a_dim_that_changes():
    found = rule(Fft("RFFT", (6, 8)), (tensor(4, 6, 8),))
    assert str(found) == (
        "([i, j, k])->([i, j, k]) {i=4, j=6, k=8} need_replication={j, k} blocked_propagation={k}"
    )


def test_work_of_fft():
    counted = Fft("FFT", (8,)).work(
        (tensor(4, 8, dtype="complex<f32>"),), (tensor(4, 8, dtype="complex<f32>"),)
    )
    assert counted.flops == 4 * 5 * 8 * 3


def test_refusals_of_fft():
    complexes = tensor(4, 8, dtype="complex<f32>")
    assert refusal(Fft("FFT", (8,)), tensor(4, 8)) == "operand 0 is tensor<4x8xf32>"
    assert refusal(Fft("RFFT", (8,)), complexes) == "operand 0 is tensor<4x8xcomplex<f32>>"
    assert refusal(Fft("RFFT", (8,)), tensor(4, 8, dtype="bf16")) == "operand 0 is tensor<4x8xbf16>"
    assert refusal(Fft("FFT", (2, 4, 8)), complexes) == ("3 lengths for tensor<4x8xcomplex<f32>>")
    assert refusal(Fft("FFT", ()), complexes) == "0 lengths for tensor<4x8xcomplex<f32>>"
    assert refusal(Fft("IRFFT", (8,)), complexes) == (
        "operand 0 is tensor<4x8xcomplex<f32>>, but fft_length is [8]"
    )


MATRIX = np.array([[1.0, 2.0, 3.0], [2.0, 20.0, 26.0], [3.0, 26.0, 70.0]])
FACTOR = np.array([[1.0, 0.0, 0.0], [2.0, 4.0, 0.0], [3.0, 5.0, 6.0]])


def test_cholesky_reads_one_triangle_and_clears_the_other():
    noise = np.full((3, 3), np.nan)
    lower = Cholesky(True).reference(np.tril(MATRIX) + np.triu(noise, 1))
    np.testing.assert_array_equal(lower, FACTOR)
    upper = Cholesky(False).reference(np.triu(MATRIX) + np.tril(noise, -1))
    np.testing.assert_array_equal(upper, FACTOR.T)


def test_cholesky_of_complex_matrices():
    factor = np.array([[2, 0], [1 + 1j, 3]])
    matrix = factor @ factor.conj().T
    np.testing.assert_array_equal(Cholesky(True).reference(matrix), factor)
    np.testing.assert_array_equal(Cholesky(False).reference(matrix), factor.conj().T)


def test_cholesky_of_what_has_none_is_nan_in_its_triangle():
    batch = np.stack([np.eye(2), -np.eye(2), np.zeros((2, 2))]).astype(np.float32)
    made = Cholesky(True).reference(batch)
    np.testing.assert_array_equal(made[0], np.eye(2))
    for broken in made[1:]:
        np.testing.assert_array_equal(broken, [[np.nan, 0], [np.nan, np.nan]])
    assert Cholesky(True).reference(np.zeros((2, 0, 0))).shape == (2, 0, 0)
    narrow = np.eye(2).astype(DTYPES["f8E5M2"].numpy)
    np.testing.assert_array_equal(Cholesky(True).reference(narrow), narrow)


@pytest.mark.parametrize("transpose", ["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_triangular_solve_solves(transpose: str, lower: bool, left: bool, unit: bool):
    random = np.random.default_rng(0)
    a = random.normal(size=(2, 3, 3)) + 1j * random.normal(size=(2, 3, 3)) + 3 * np.eye(3)
    b = random.normal(size=(2, 3, 4) if left else (2, 4, 3)) + 0j
    x = TriangularSolve(left, lower, unit, transpose).reference(a, b)
    used = np.tril(a) if lower else np.triu(a)
    if unit:
        used[:, range(3), range(3)] = 1
    used = used.swapaxes(1, 2) if transpose != "NO_TRANSPOSE" else used
    used = used.conj() if transpose == "ADJOINT" else used
    np.testing.assert_allclose(used @ x if left else x @ used, b)


def test_triangular_solve_with_a_zero_pivot():
    a, b = np.diag([0.0, 2.0]), np.array([[1.0], [4.0]])
    x = TriangularSolve(True, True, False, "NO_TRANSPOSE").reference(a, b)
    assert x[0, 0] == np.inf


def test_refusals_of_decompositions():
    assert refusal(Cholesky(True), tensor(3)) == "operand 0 is tensor<3xf32>"
    assert refusal(Cholesky(True), tensor(2, 3)) == "operand 0 is tensor<2x3xf32>"
    assert refusal(Cholesky(True), tensor(3, 3, dtype="i32")) == "operand 0 is tensor<3x3xi32>"
    op = TriangularSolve(True, True, False, "TRANSPOSE")
    square = tensor(2, 3, 3)
    assert refusal(op, square, tensor(3, 4)) == (
        "operand 0 is tensor<2x3x3xf32>, but operand 1 is tensor<3x4xf32>"
    )
    assert refusal(op, square, tensor(1, 3, 4)).startswith("operand 0 is tensor<2x3x3xf32>, but")
    assert refusal(op, square, tensor(2, 4, 3)) == (
        "sizes differ: operand 0 dim 2 is 3, operand 1 dim 1 is 4"
    )
    types: Types = (square, tensor(2, 4, 3))
    assert infer(TriangularSolve(False, True, False, "TRANSPOSE"), types) == (types[1],)


def test_work_of_decompositions():
    square, given = tensor(2, 6, 6), tensor(2, 6, 4)
    assert Cholesky(True).work((square,), (square,)).flops == 2 * 6**3 // 3
    op = TriangularSolve(True, True, False, "TRANSPOSE")
    assert op.work((square, given), (given,)).flops == 2 * 6 * 6 * 4
