"""Eigenvalues and singular values by their kernels: orthonormal vectors that give the matrix."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.emit.llvm.single.lone_nodes import compiled, lone_kernel, node_of, stacked
from weft.emit.llvm.single.emit import refuses_single_node
from weft.ir.types import Array, TensorType, dtype_of
from weft.kernels.single_node import SingleNode
from weft.ops.custom_calls.custom import CustomCall
from weft.ops.custom_calls.declaration import config_text

FINE = 16  # units of the last place, of the largest value


def types(a: Array, *shapes: tuple[int, ...]) -> tuple[TensorType, ...]:
    """Results of these shapes after the batch dims."""
    return tuple(TensorType((*a.shape[:-2], *s), dtype_of(a.dtype)) for s in shapes)


def eigh_kernel(
    a: Array, kept: int | None = None, sizes: tuple[int, ...] = (), mask: int = 0, **config: int
) -> SingleNode:
    """The kernel of a decomposition of symmetric matrices."""
    size = a.shape[-1]
    kept = size if kept is None else kept
    op = CustomCall(
        "weft.eigh", types(a, (size, kept), (kept,)), backend_config=config_text(**config)
    )
    return lone_kernel(node_of(op, a), sizes, [mask])


def svd_kernel(
    a: Array, kept: int | None = None, full: bool = False, vectors: bool = True, first: int = 0
) -> SingleNode:
    """The kernel of a singular value decomposition."""
    rows, columns = a.shape[-2:]
    kept = min(rows, columns) if kept is None else kept
    sides = ((rows, rows), (columns, columns)) if full else ((rows, kept), (kept, columns))
    config = config_text(full_matrices=full, vectors=vectors, first=first)
    shapes = ((kept,), *(sides if vectors else ()))
    return lone_kernel(node_of(CustomCall("weft.svd", types(a, *shapes), backend_config=config), a))


def eigh(a: Array) -> tuple[Array, Array]:
    """Eigenvectors and eigenvalues by the kernel."""
    vectors, values = compiled(eigh_kernel(a))(a)
    return vectors, values


def svd(a: Array, full: bool = False) -> tuple[Array, Array, Array]:
    """The decomposition by the kernel."""
    values, left, right = compiled(svd_kernel(a, full=full))(a)
    return values, left, right


def units(a: Array, b: Array, most: float = 1.0) -> float:
    """The largest difference in units of the last place of a number."""
    apart = float(np.max(np.abs(a.astype(np.float64) - b), initial=0.0))
    return apart / max(most, 1e-300) / float(np.finfo(a.dtype).eps)


def matrices(shape: tuple[int, ...], dtype: str, how: str, seed: int) -> Array:
    """Random matrices of a kind."""
    random = np.random.default_rng(seed)
    made = random.standard_normal(shape)
    match how:
        case "rounded":
            made = np.round(made)
        case "low rank":
            made = made[..., :, :1] * made[..., :1, :]
        case "graded":
            made = made * np.logspace(0, -30, shape[-1])
        case "equal":
            made = np.broadcast_to(np.eye(*shape[-2:]), shape) * 3
        case "zero":
            made = np.zeros(shape)
        case "large":
            made = made * (float(np.finfo(dtype).max) / 100 / max(shape))
        case "small":
            made = made * float(np.finfo(dtype).tiny) * 100
    return made.astype(dtype)


KINDS = ("normal", "rounded", "low rank", "graded", "equal", "zero", "large", "small")


def is_orthonormal(rows: Array) -> bool:
    """Whether vectors are, to a few units."""
    eye = np.eye(rows.shape[-2])
    return units(rows @ np.swapaxes(rows, -1, -2), eye) < FINE + rows.shape[-2]


@settings(suppress_health_check=list(HealthCheck), max_examples=20, deadline=None)
@given(
    size=st.sampled_from([1, 2, 3, 5, 8, 17, 40]),
    batch=st.sampled_from([(), (3,), (2, 2)]),
    dtype=st.sampled_from(["float32", "float64"]),
    how=st.sampled_from(KINDS),
    lower=st.booleans(),
    seed=st.integers(0, 99),
)
def test_eigenvectors(
    size: int, batch: tuple[int, ...], dtype: str, how: str, lower: bool, seed: int
):
    a = matrices((*batch, size, size), dtype, how, seed)
    vectors, values = compiled(eigh_kernel(a, lower=lower))(a)
    whole = np.tril(a) if lower else np.triu(a)
    whole = whole + np.swapaxes(np.tril(whole, -1) + np.triu(whole, 1), -1, -2)
    expected = np.linalg.eigvalsh(whole.astype(np.float64))
    most = float(np.max(np.abs(expected)))
    assert units(values, expected, most) < FINE + size
    assert np.all(np.diff(values) >= 0) and is_orthonormal(np.swapaxes(vectors, -1, -2))
    wide = vectors.astype(np.float64)
    again = (wide * values[..., None, :]) @ np.swapaxes(wide, -1, -2)
    assert units(whole, again, most) < FINE + size


@settings(suppress_health_check=list(HealthCheck), max_examples=25, deadline=None)
@given(
    shape=st.sampled_from([(1, 1), (2, 3), (3, 2), (1, 4), (8, 8), (17, 6), (9, 33), (40, 40)]),
    batch=st.sampled_from([(), (3,)]),
    dtype=st.sampled_from(["float32", "float64"]),
    how=st.sampled_from(KINDS),
    full=st.booleans(),
    seed=st.integers(0, 99),
)
def test_singular_vectors(
    shape: tuple[int, int], batch: tuple[int, ...], dtype: str, how: str, full: bool, seed: int
):
    a = matrices((*batch, *shape), dtype, how, seed)
    values, left, right = svd(a, full)
    expected = np.linalg.svd(a.astype(np.float64), compute_uv=False)
    most = float(np.max(expected))
    assert units(values, expected, most) < FINE + max(shape)
    assert np.all(np.diff(values) <= 0) and np.all(values >= 0)
    assert is_orthonormal(np.swapaxes(left, -1, -2)) and is_orthonormal(right)
    least = min(shape)
    wide = left[..., :least].astype(np.float64) * values[..., None, :]
    assert units(a, wide @ right[..., :least, :], most) < FINE + max(shape)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_matrices_without_a_decomposition(bad: float):
    a = np.stack([np.eye(4, dtype=np.float32), np.eye(4, dtype=np.float32)])
    a[1, 2, 1] = bad
    for made in (*eigh(a), *svd(a)):
        assert np.isfinite(made[0]).all() and np.isnan(made[1]).all()


def test_subsets_and_values_alone():
    a = matrices((2, 9, 9), "float32", "normal", 0)
    vectors, values = eigh(a)
    some = compiled(eigh_kernel(a, 3, first=2))(a)
    np.testing.assert_array_equal(some[0], vectors[..., 2:5])
    np.testing.assert_array_equal(some[1], values[..., 2:5])
    b = a[:, :6]
    values, left, right = svd(b)
    (alone,) = compiled(svd_kernel(b, vectors=False))(b)
    np.testing.assert_array_equal(alone, values)
    some = compiled(svd_kernel(b, 2, first=1))(b)
    for part, whole in zip(
        some, (values[..., 1:3], left[..., 1:3], right[..., 1:3, :]), strict=True
    ):
        np.testing.assert_array_equal(part, whole)


def test_decompositions_of_devices_that_vary():
    a = matrices((4, 4), "float32", "normal", 0)
    vectors, values = compiled(eigh_kernel(a, None, (2, 3), 0b10))(stacked(a, 0b10, (2, 3)))
    assert vectors.shape == (1, 3, 4, 4) and values.shape == (1, 3, 4)
    for n in range(3):
        own = eigh(stacked(a, 0b10, (2, 3))[0, n])
        np.testing.assert_array_equal(vectors[0, n], own[0])
        np.testing.assert_array_equal(values[0, n], own[1])


@pytest.mark.parametrize(
    "shape, why",
    [((0, 0), "it has no elements"), ((1200, 1200), "LAPACK's own threads are faster")],
)
def test_decompositions_by_numpy(shape: tuple[int, int], why: str):
    a = np.zeros(shape, np.float32)
    config = config_text(vectors=False)
    values = TensorType(shape[:1], dtype_of(a.dtype))
    op = CustomCall("weft.svd", (values,), backend_config=config)
    eigen = CustomCall("weft.eigh", (*types(a, shape), values))
    for each in (op, eigen):
        assert (refuses_single_node(lone_kernel(node_of(each, a))) or "").startswith(why)
