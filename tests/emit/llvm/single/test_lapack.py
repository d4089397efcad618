"""Kernels that call LAPACK, beside the reference: complex matrices, large ones, general ones."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import weft
from tests.emit.llvm.single.lone_nodes import check_alone, compiled, lone_kernel, node_of
from weft.emit.llvm.jit import lapack as found
from weft.emit.llvm.jit.lapack import define_routines, lapack
from weft.emit.llvm.lapack import matrices as lapack_matrices
from weft.emit.llvm.single.emit import emit_single_node, refuses_single_node
from weft.errors import WeftError
from weft.ir.types import I32, Array, TensorType, dtype_of
from weft.kernels.flow import ControlFlow
from weft.kernels.single_node import SingleNode
from weft.ops.custom_calls.custom import CustomCall
from weft.ops.custom_calls.declaration import config_text
from weft.ops.linalg import Cholesky
from weft.run.parts import parts_of

pytestmark = pytest.mark.skipif(lapack() is None, reason="numpy has no LAPACK library of its own")
DTYPES = ("complex64", "complex128")


def numbers(dtype: str, *shape: int) -> Array:
    """Random numbers."""
    random = np.random.default_rng(sum(shape))
    made = random.standard_normal(shape)
    return (made + 1j * random.standard_normal(shape) if dtype[0] == "c" else made).astype(dtype)


def adjoint(a: Array) -> Array:
    """The conjugate transpose."""
    return np.conj(np.swapaxes(a, -1, -2))


def hermitian(dtype: str, *shape: int) -> Array:
    """Random Hermitian matrices."""
    a = numbers(dtype, *shape)
    return a + adjoint(a)


def types(a: Array, *shapes: tuple[int, ...], real: bool = False) -> tuple[TensorType, ...]:
    """Results of these shapes after the batch dims."""
    dtype = dtype_of(a.real.dtype if real else a.dtype)
    return tuple(TensorType((*a.shape[:-2], *shape), dtype) for shape in shapes)


def kernel_of(name: str, a: Array, *results: TensorType, **config: int) -> SingleNode:
    """The kernel of a custom call of one matrix."""
    return lone_kernel(node_of(CustomCall(name, results, backend_config=config_text(**config)), a))


def near(actual: Array, expected: Array, units: int = 64) -> None:
    """Fail unless two arrays are equal to some units of the largest element."""
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    unit = float(np.finfo(actual.dtype).eps) if actual.dtype.kind in "fc" else 0.0
    most = float(np.max(np.abs(np.nan_to_num(expected)), initial=0))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=units * unit * most)


check = partial(check_alone, compare=near)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7, 7), (20, 20)])
@pytest.mark.parametrize(("first", "kept"), [(0, 0), (0, None), (1, 1)])
def test_eigh(dtype: str, shape: tuple[int, ...], first: int, kept: int | None):
    size = shape[-1]
    count = size if kept is None else kept
    if first + count > size or not count:
        return
    a = hermitian(dtype, *shape)
    results = (*types(a, (size, count)), *types(a, (count,), real=True))
    vectors, values = compiled(kernel_of("weft.eigh", a, *results, lower=0, first=first))(a)
    near(values, np.linalg.eigvalsh(a)[..., first : first + count])
    near(a @ vectors, vectors * values[..., None, :].astype(dtype), 256)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3, 6), (6, 3), (1, 4), (5, 5)])
@pytest.mark.parametrize("how", ["values", "thin", "full", "second"])
def test_svd(dtype: str, shape: tuple[int, ...], how: str):
    a, (rows, columns) = numbers(dtype, *shape), shape[-2:]
    least = min(rows, columns)
    first = 1 if how == "second" and least > 1 else 0
    kept = 1 if first else least
    sides = ((rows, rows), (columns, columns)) if how == "full" else ((rows, kept), (kept, columns))
    results = types(a, (kept,), real=True)
    if how != "values":
        results += types(a, *sides)
    config = {"vectors": how != "values", "full_matrices": how == "full", "first": first}
    values, *vectors = compiled(kernel_of("weft.svd", a, *results, **config))(a)
    near(values, np.linalg.svd(a, compute_uv=False)[..., first : first + kept])
    if vectors:
        left, right = vectors[0][..., :kept], vectors[1][..., :kept, :]
        near(a @ adjoint(right), left * values[..., None, :].astype(dtype))
        for basis in (vectors[0], adjoint(vectors[1])):
            count = basis.shape[-1]
            eye = np.broadcast_to(np.eye(count, dtype=dtype), (*shape[:-2], count, count))
            near(adjoint(basis) @ basis, eye)


@pytest.mark.parametrize("dtype", ["float32", "float64", *DTYPES])
def test_eig_of_both_sides(dtype: str):
    a = numbers(dtype, 3, 9, 9)
    a[1] = np.diag(np.arange(9)) if dtype[0] == "c" else np.kron(np.eye(3), np.roll(np.eye(3), 1))
    wide = np.result_type(dtype, np.complex64)
    results = types(a.astype(wide), (9,), (9, 9), (9, 9))
    values, left, right = compiled(kernel_of("weft.eig", a, *results, left=1, right=1))(a)
    near(a @ right, right * values[..., None, :], 256)
    near(adjoint(left) @ a, values[..., :, None] * adjoint(left), 256)
    lengths = np.linalg.norm(right, axis=-2)
    near(lengths, np.ones_like(lengths))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4, 4), (2, 5, 3), (3, 5)])
def test_factors_are_those_of_the_reference(dtype: str, shape: tuple[int, ...]):
    a, (rows, columns), least = numbers(dtype, *shape), shape[-2:], min(shape[-2:])
    if least > 2:
        a[..., 1] = 0  # singular
    whole, taus = types(a, (rows, columns), (least,))
    pivots = [TensorType((*shape[:-2], n), I32) for n in (least, rows)]
    check(CustomCall("weft.lu", (whole, *pivots)), a, masks=[1], sizes=[2])
    check(CustomCall("weft.qr", (whole, taus)), a)
    first = np.zeros((*shape[:-2], columns), np.int32)
    first[..., -1] = 1
    order = TensorType(first.shape, I32)
    check(CustomCall("weft.pivoted_qr", (whole, order, taus)), numbers(dtype, *shape), first)
    if rows >= columns:
        packed = numbers(dtype, *shape)
        factors = numbers(dtype, *shape[:-2], least) * 0.1
        check(CustomCall("weft.householder_product", (whole,)), packed, factors)


@pytest.mark.parametrize("dtype", ["float32", *DTYPES])
def test_forms_are_those_of_the_reference(dtype: str):
    a = numbers(dtype, 2, 6, 6)
    whole, taus = types(a, (6, 6), (5,))
    check(CustomCall("weft.hessenberg", (whole, taus)), a)
    real = types(a, (6,), (5,), real=True)
    for lower in (0, 1):
        config = config_text(lower=lower)
        results = (whole, *real, taus)
        check(
            CustomCall("weft.tridiagonal", results, backend_config=config),
            hermitian(dtype, 2, 6, 6),
        )
    form, basis = compiled(kernel_of("weft.schur", a, whole, whole, vectors=1))(a)
    near(basis @ form @ adjoint(basis), a)
    assert not np.tril(form, -2).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lower", [False, True])
def test_cholesky(dtype: str, lower: bool):
    a = numbers(dtype, 4, 6, 6)
    a = a @ adjoint(a) + 6 * np.eye(6, dtype=dtype)
    a[1, 3, 3] = -1  # not positive definite
    a[2, (0, 5)[lower], (5, 0)[lower]] = np.nan
    a[3, (5, 0)[lower], (0, 5)[lower]] = np.nan  # in the triangle that is not read
    check(Cholesky(lower), a, masks=[1], sizes=[2])


def test_no_decomposition_is_nan():
    a = hermitian("complex64", 3, 4, 4)
    a[0, 1, 2], a[2, 3, 3] = np.nan, np.inf
    results = (*types(a, (4, 4)), *types(a, (4,), real=True))
    vectors, values = compiled(kernel_of("weft.eigh", a, *results, lower=1))(a)
    assert np.isnan(vectors[[0, 2]]).all() and np.isnan(values[[0, 2]]).all()
    near(values[1], np.linalg.eigvalsh(a[1]))


def test_large_real_matrices_are_lapacks_and_huge_ones_the_hosts():
    for size, text in ((40, "_reflector"), (150, "lapack"), (1024, "")):
        a = np.zeros((size, size), np.float32)
        kernel = kernel_of("weft.eigh", a, *types(a, (size, size), (size,)), lower=1)
        if size == 1024:
            assert "threads are faster" in str(refuses_single_node(kernel))
        else:
            assert ("weft.lapack" in emit_single_node(kernel).text) is (text == "lapack")


def test_a_machine_without_the_library(monkeypatch: pytest.MonkeyPatch):
    a = hermitian("complex64", 4, 4)
    kernel = kernel_of("weft.eigh", a, *types(a, (4, 4)), *types(a, (4,), real=True), lower=1)
    monkeypatch.setattr(lapack_matrices, "lapack", lambda: None)
    assert "no LAPACK library" in str(refuses_single_node(kernel))
    monkeypatch.setattr(found, "lapack", lambda: None)
    with pytest.raises(WeftError, match="LAPACK's cheevd with integers of 64 bits"):
        define_routines(b"... weft.lapack64.cheevd ...")


def test_decompositions_in_a_loop_are_one_native_program():
    text = """
    func.func @main(%a: tensor<4x4xcomplex<f32>>) -> tensor<4x4xcomplex<f32>> {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %0 = stablehlo.constant dense<0> : tensor<i32>
      %1 = stablehlo.constant dense<1> : tensor<i32>
      %r:2 = stablehlo.while(%i = %0, %x = %a) : tensor<i32>, tensor<4x4xcomplex<f32>>
      cond { %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
             stablehlo.return %c : tensor<i1> }
      do { %j = stablehlo.add %i, %1 : tensor<i32>
           %f = stablehlo.cholesky %x, lower = true : tensor<4x4xcomplex<f32>>
           %y = stablehlo.add %x, %f : tensor<4x4xcomplex<f32>>
           stablehlo.return %j, %y : tensor<i32>, tensor<4x4xcomplex<f32>> }
      return %r#1 : tensor<4x4xcomplex<f32>>
    }
    """
    a = (hermitian("complex64", 4, 4) + 9 * np.eye(4)).astype(np.complex64)
    program = weft.compile(text)
    assert isinstance(parts_of(program.program.local)[-1].group.kernel, ControlFlow)
    expected = a
    for _ in range(3):
        expected = expected + np.linalg.cholesky(expected).astype(np.complex64)
    near(np.asarray(program(a)[0]), expected)
