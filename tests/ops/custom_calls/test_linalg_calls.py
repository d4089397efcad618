"""Decompositions of matrices: what LAPACK gives, up to signs and phases where these are free."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.lax import linalg as lax_linalg

from tests.tolerance import assert_close
from weft.errors import WeftError
from weft.evaluate import evaluate
from weft.ir.module import Function, Module, Region, Value, apply
from weft.ir.op import rule
from weft.ir.types import Array, type_of
from weft.ops.custom_calls.custom import CustomCall
from weft.ops.custom_calls.declaration import config_text

DTYPES = ("float32", "float64", "complex64", "complex128")
ROUNDINGS = 1000  # that one element of a small decomposition sums up
dtypes = st.sampled_from(DTYPES)
batches = st.sampled_from([(), (2,), (3, 2)])
sizes = st.sampled_from([1, 2, 5])
seeds = st.integers(0, 2**31)


def draw(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    random = np.random.default_rng(seed)
    made = random.standard_normal(shape)
    if dtype.startswith("complex"):
        made = made + 1j * random.standard_normal(shape)
    return made.astype(dtype)


def call(name: str, *operands: Array, outs: Any, **config: int) -> tuple[Array, ...]:
    """Run one custom call."""
    types = tuple(type_of(np.asarray(out)) for out in outs)
    op = CustomCall(name, types, backend_config=config_text(**config), api_version=4)
    args = tuple(Value(type_of(a), None, n) for n, a in enumerate(operands))
    node = apply(op, *args)
    main = Function("main", Region(args, [node], node.results))
    return evaluate(Module({"main": main}), *operands)


def adjoint(a: Array) -> Array:
    return np.conj(np.swapaxes(a, -1, -2))


def close(ours: Any, theirs: Any) -> None:
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    scale = float(np.max(np.abs(theirs), initial=1.0))
    assert_close(ours, theirs.astype(ours.dtype), ROUNDINGS, least=scale)


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


# What is unique: equal to LAPACK's


@settings(max_examples=8)
@given(batches, sizes, sizes, dtypes, seeds)
def test_lu(batch, rows, columns, dtype, seed):
    a = draw((*batch, rows, columns), dtype, seed)
    theirs = lax_linalg.lu(a)
    for ours, expected in zip(call("weft.lu", a, outs=theirs), theirs, strict=True):
        close(ours, expected)


@settings(max_examples=8)
@given(batches, sizes, sizes, dtypes, seeds)
def test_qr_and_its_product(batch, rows, columns, dtype, seed):
    a = draw((*batch, rows, columns), dtype, seed)
    theirs = jax._src.lax.linalg.geqrf(a)
    packed, taus = call("weft.qr", a, outs=theirs)
    close(packed, theirs[0])
    close(taus, theirs[1])
    if rows >= columns:
        (q,) = call("weft.householder_product", packed, taus, outs=[packed])
        close(q, lax_linalg.householder_product(packed, taus))
        close(q @ np.triu(packed)[..., :columns, :], a)


@settings(max_examples=8)
@given(batches, sizes, sizes, dtypes, seeds)
def test_pivoted_qr(batch, rows, columns, dtype, seed):
    a = draw((*batch, rows, columns), dtype, seed)
    free = np.zeros((*batch, columns), np.int32)
    theirs = jax._src.lax.linalg.geqp3(a, free)
    for ours, expected in zip(call("weft.pivoted_qr", a, free, outs=theirs), theirs, strict=True):
        close(ours, expected)


def test_pivoted_qr_with_columns_to_come_first():
    a = draw((4, 4), "float64", 1)
    first = np.array([0, 0, 1, 0], np.int32)
    theirs = jax._src.lax.linalg.geqp3(a, first)
    for ours, expected in zip(call("weft.pivoted_qr", a, first, outs=theirs), theirs, strict=True):
        close(ours, expected)


@settings(max_examples=8)
@given(batches, sizes, dtypes, seeds)
def test_hessenberg(batch, size, dtype, seed):
    a = draw((*batch, size, size), dtype, seed)
    theirs = lax_linalg.hessenberg(a)
    for ours, expected in zip(call("weft.hessenberg", a, outs=theirs), theirs, strict=True):
        close(ours, expected)


@settings(max_examples=8)
@given(batches, sizes, dtypes, seeds, st.booleans())
def test_tridiagonal(batch, size, dtype, seed, lower):
    a = draw((*batch, size, size), dtype, seed)
    # The other triangle is not read, nor are the imaginary parts of the diagonal.
    theirs = lax_linalg.tridiagonal(a, lower=lower)
    made = call("weft.tridiagonal", a, outs=theirs, lower=lower)
    for ours, expected in zip(made, theirs, strict=True):
        close(ours, expected)


@settings(max_examples=15)
@given(batches, st.sampled_from([1, 2, 3, 7]), sizes, dtypes, seeds, st.booleans(), st.booleans())
def test_tridiagonal_solve(batch, size, columns, dtype, seed, perturb, needs_pivots):
    below, diagonal, above = (draw((*batch, size), dtype, seed + n) for n in range(3))
    if needs_pivots:
        diagonal[..., :-1] = 0
        above[...] += np.sign(above.real)
        below[...] += np.sign(below.real)
    right = draw((*batch, size, columns), dtype, seed + 3)
    theirs = lax_linalg.tridiagonal_solve(
        *map(jax.numpy.asarray, (below, diagonal, above, right)), perturb_singular=perturb
    )
    (ours,) = call(
        "weft.tridiagonal_solve",
        *(below, diagonal, above, right),
        outs=(right,),
        perturb_singular=perturb,
    )
    matrix = np.zeros((*batch, size, size), dtype)
    at = np.arange(size)
    matrix[..., at, at] = diagonal
    matrix[..., at[1:], at[:-1]], matrix[..., at[:-1], at[1:]] = below[..., 1:], above[..., :-1]
    if np.linalg.cond(matrix.astype(complex)).max() < 1e3:
        close(matrix @ ours, right)
        close(ours, theirs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("singular", [([0, 0, 0], [0, 0, 0]), ([1, 1, 1], [0, 0, 1])])
def test_tridiagonal_solve_of_a_singular_matrix(dtype, singular):
    """NaN for it alone; or the solution of a matrix nearby, which is large."""
    below, diagonal, above = np.zeros((3, 2, 3), dtype)
    below[:], diagonal[0], diagonal[1] = singular[1], singular[1], 2
    right = np.ones((2, 3, 1), dtype)
    operands = (below, diagonal, above, right)
    (plain,) = call("weft.tridiagonal_solve", *operands, outs=(right,))
    assert np.isnan(plain[0]).all() and np.isfinite(plain[1]).all()
    (moved,) = call("weft.tridiagonal_solve", *operands, outs=(right,), perturb_singular=True)
    assert np.isfinite(moved).all() and np.abs(moved[0]).max() > 0.1 / np.finfo(dtype).eps
    close(moved[1], plain[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "bands",
    [
        ([0, 0, 0], [1, 8, 0], [0, 0, 0]),
        ([0, 0, 0], [1, 1, 0], [8, 0, 0]),
        ([0, 1, 0], [0, 0, 0], [1, 8, 0]),  # rows are swapped: it is two above the diagonal of U
    ],
)
def test_pivots_are_moved_by_the_largest_element(dtype, bands):
    """The last pivot is zero, the largest element of U is 8."""
    operands = (*np.array(bands, dtype), np.ones((3, 1), dtype))
    (made,) = call("weft.tridiagonal_solve", *operands, outs=operands[3:], perturb_singular=True)
    close(made[-1] * np.finfo(dtype).eps, np.array([1 / 8], dtype))


def test_tridiagonal_solve_splits_batches_and_columns():
    diagonal, right = np.zeros((4, 5), np.float32), np.zeros((4, 5, 6), np.float32)
    op = CustomCall("weft.tridiagonal_solve", (type_of(right),))
    types = (*[type_of(diagonal)] * 3, type_of(right))
    factors = rule(op, types).factors
    assert [(f.size, f.role) for f in factors] == [(4, "pass"), (5, "whole"), (6, "pass")]


# What is free up to a phase: the values are LAPACK's, and the vectors belong to them


@settings(max_examples=8)
@given(batches, sizes, dtypes, seeds, st.booleans())
def test_eigh(batch, size, dtype, seed, lower):
    a = draw((*batch, size, size), dtype, seed)
    theirs, values = lax_linalg.eigh(a + adjoint(a), lower=lower)
    triangle = (np.tril if lower else np.triu)(a + adjoint(a))
    v, w = call("weft.eigh", triangle, outs=(theirs, values), lower=lower)
    close(w, values)
    close(v * w[..., None, :], (a + adjoint(a)) @ v)
    close(adjoint(v) @ v, np.broadcast_to(np.eye(size), v.shape))


@settings(max_examples=8)
@given(batches, sizes, sizes, dtypes, seeds, st.booleans())
def test_svd(batch, rows, columns, dtype, seed, full):
    a = draw((*batch, rows, columns), dtype, seed)
    u, s, vh = lax_linalg.svd(a, full_matrices=full)
    made, left, right = call("weft.svd", a, outs=(s, u, vh), full_matrices=full, vectors=True)
    close(made, s)
    least = min(rows, columns)
    close((left[..., :least] * made[..., None, :]) @ right[..., :least, :], a)
    (alone,) = call("weft.svd", a, outs=(s,), full_matrices=full, vectors=False)
    close(alone, s)


@settings(max_examples=8)
@given(batches, sizes, dtypes, seeds)
def test_eig(batch, size, dtype, seed):
    a = draw((*batch, size, size), dtype, seed)
    theirs = lax_linalg.eig(a)
    w, left, right = call("weft.eig", a, outs=theirs, left=True, right=True)
    order = np.argsort(w, axis=-1), np.argsort(np.asarray(theirs[0]), axis=-1)
    close(np.sort_complex(w), np.sort_complex(np.asarray(theirs[0])))
    assert [o.shape for o in order] == [w.shape] * 2
    close(a @ right, right * w[..., None, :])
    close(adjoint(left) @ a, w[..., :, None] * adjoint(left))
    close(np.linalg.norm(right, axis=-2), np.ones(w.shape))
    close(np.linalg.norm(left, axis=-2), np.ones(w.shape))


@settings(max_examples=8)
@given(batches, st.sampled_from([1, 5, 15]), dtypes, seeds)
def test_schur_has_the_order_and_the_signs_of_lapack(batch, size, dtype, seed):
    a = draw((*batch, size, size), dtype, seed)
    for ours, theirs in zip(
        call("weft.schur", a, outs=(a, a), vectors=True), lax_linalg.schur(a), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


@settings(max_examples=8)
@given(batches, sizes, dtypes, seeds, st.booleans())
def test_schur(batch, size, dtype, seed, by_lapack):
    a = draw((*batch, size, size), dtype, seed)
    with pytest.MonkeyPatch.context() as patch:
        if not by_lapack:
            patch.setattr("weft.ops.numerics.schur.has_lapack", lambda: False)
        form, basis = call("weft.schur", a, outs=(a, a), vectors=True)
    close(basis @ form @ adjoint(basis), a)
    close(adjoint(basis) @ basis, np.broadcast_to(np.eye(size), a.shape))
    below = -1 if dtype.startswith("complex") else -2
    assert not np.tril(form, below).any()
    if below == -2:  # blocks of two stand apart, and have equal diagonal elements
        beside = np.diagonal(form, -1, -2, -1) != 0
        assert not (beside[..., 1:] & beside[..., :-1]).any()
        diagonal = np.diagonal(form, 0, -2, -1)
        assert (diagonal[..., 1:] == diagonal[..., :-1])[beside].all()


@pytest.mark.parametrize("by_lapack", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "matrix",
    [
        np.zeros((3, 3)),
        np.eye(3),
        np.diag([1.0, 1.0], 1),  # one eigenvalue, one eigenvector
        np.array([[0.0, 1, 0], [0, 0, 1], [1, 0, 0]]),  # every eigenvalue equally large
        np.array([[1.0, 2], [3, 4]]),
    ],
)
def test_schur_of_matrices_that_are_special(matrix, dtype, by_lapack, monkeypatch):
    if not by_lapack:
        monkeypatch.setattr("weft.ops.numerics.schur.has_lapack", lambda: False)
    a = matrix.astype(dtype)
    form, basis = call("weft.schur", a, outs=(a, a), vectors=True)
    close(basis @ form @ adjoint(basis), a)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_spoils_its_own_matrix_only(bad):
    a = draw((2, 3, 3), "float32", 0)
    a[0, 1, 1] = bad
    for name, count, config in (("svd", 3, {"vectors": True}), ("schur", 2, {"vectors": True})):
        outs = [a] * 2 if count == 2 else [a[..., 0], a, a]
        for made in call(f"weft.{name}", a, outs=outs, **config):
            assert np.isnan(made[0]).all() and np.isfinite(made[1]).all()


# Rules and refusals


def test_the_names_that_xla_has():
    a = draw((2, 4, 3), "float32", 0)
    packed, taus = call("weft.qr", a, outs=(a, a[..., 0, :]))
    for ours, same in zip(call("Qr", a, outs=(a, a[..., 0, :])), (packed, taus), strict=True):
        close(ours, same)
    (q,) = call("ProductOfElementaryHouseholderReflectors", packed, taus, outs=(a,))
    close(q @ np.triu(packed)[..., :3, :], a)


def test_matrices_stay_whole_and_batches_pass():
    a = np.zeros((4, 8, 8), np.float32)
    op = CustomCall("weft.lu", tuple(map(type_of, (a, np.int32(a[..., 0]), np.int32(a[..., 0])))))
    factors = rule(op, (type_of(a),)).factors
    assert [(f.size, f.role) for f in factors][:3] == [(4, "pass"), (8, "whole"), (8, "whole")]


@pytest.mark.parametrize(
    ("name", "shape", "outs", "message"),
    [
        ("weft.eigh", (2, 3), [(2, 3), (3,)], "the matrices must be square"),
        ("weft.lu", (3,), [(3,), (3,), (3,)], "it must be a matrix"),
        ("weft.qr", (3, 2), [(3, 2), (3,)], "correct the types"),
    ],
)
def test_refusals(name, shape, outs, message):
    with pytest.raises(WeftError, match=message):
        call(name, np.zeros(shape, np.float32), outs=[np.zeros(o, np.float32) for o in outs])
