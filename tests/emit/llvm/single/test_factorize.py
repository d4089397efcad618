"""LU, QR and products of reflectors: factors that multiply to the matrix, as LAPACK signs them."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.emit.llvm.single.lone_nodes import compiled, lone_kernel, node_of, stacked
from weft.emit.llvm.single.emit import refuses_single_node
from weft.ir.types import Array, TensorType, dtype_of
from weft.ops.custom_calls.custom import CustomCall

SHAPES = ((1, 1), (3, 3), (6, 4), (4, 6), (8, 8), (17, 33), (40, 21))


def call(name: str, *shapes: tuple[int, ...], dtypes: tuple[str, ...]) -> CustomCall:
    """A custom call with results of these shapes."""
    pairs = zip(shapes, dtypes, strict=True)
    return CustomCall(name, tuple(TensorType(s, dtype_of(np.dtype(d))) for s, d in pairs))


def lu(a: Array, sizes: tuple[int, ...] = (), mask: int = 0) -> list[Array]:
    """LU by its kernel, on stacks."""
    *batch, rows, columns = a.shape
    shapes = (a.shape, (*batch, min(rows, columns)), (*batch, rows))
    op = call("weft.lu", *shapes, dtypes=(str(a.dtype), "int32", "int32"))
    return compiled(lone_kernel(node_of(op, a), sizes, [mask]))(stacked(a, mask, sizes))


def qr(a: Array) -> tuple[Array, Array]:
    """QR and the product of its reflectors, by their kernels."""
    *batch, rows, columns = a.shape
    shapes = (a.shape, (*batch, min(rows, columns)))
    op = call("weft.qr", *shapes, dtypes=(str(a.dtype),) * 2)
    packed, taus = compiled(lone_kernel(node_of(op, a)))(a)
    kept = np.ascontiguousarray(packed[..., : min(rows, columns)])
    product = call("weft.householder_product", kept.shape, dtypes=(str(a.dtype),))
    (q,) = compiled(lone_kernel(node_of(product, kept, taus)))(kept, taus)
    return q, np.triu(packed[..., : min(rows, columns), :])


def matrices(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    """Random matrices, some of them with equal or zero columns."""
    made = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    if seed % 3 == 1:
        made = np.round(made)
    if seed % 3 == 2:
        made[..., :, -1] = made[..., :, 0] * (seed % 2)
    return made


def error(a: Array, b: Array) -> float:
    """The largest difference in units of the last place of the largest element."""
    most = max(float(np.max(np.abs(b))), 1.0)
    return float(np.max(np.abs(a - b))) / most / float(np.finfo(a.dtype).eps)


@settings(suppress_health_check=list(HealthCheck), max_examples=15)
@given(
    shape=st.sampled_from(SHAPES),
    batch=st.sampled_from([(), (3,), (2, 2)]),
    dtype=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 99),
)
def test_the_factors_are_those_of_the_matrix(
    shape: tuple[int, int], batch: tuple[int, ...], dtype: str, seed: int
):
    a, least = matrices((*batch, *shape), dtype, seed), min(shape)
    packed, pivots, order = lu(a)
    lower = np.tril(packed[..., :least], -1) + np.eye(shape[0], least, dtype=a.dtype)
    rows = np.take_along_axis(a, order[..., None], -2)
    assert error(lower @ np.triu(packed[..., :least, :]), rows) < 64
    assert np.all(np.abs(lower) <= 1) and np.all(pivots >= np.arange(least))
    q, r = qr(a)
    assert error(q @ r, a) < 128
    assert (
        error(
            np.swapaxes(q, -1, -2) @ q,
            np.broadcast_to(np.eye(least), (*batch, least, least)).astype(dtype),
        )
        < 128
    )
    assert error(np.abs(r), np.abs(np.linalg.qr(a)[1])) < 1e4 or seed % 3


def test_devices_that_vary():
    a = matrices((4, 4), "float32", 0)
    packed, pivots, order = lu(a, (2, 3), 0b10)
    assert packed.shape == (1, 3, 4, 4) and pivots.shape == order.shape == (1, 3, 4)
    for n in range(3):
        own = stacked(a, 0b10, (2, 3))[0, n]
        for found, expected in zip((packed, pivots, order), lu(own), strict=True):
            np.testing.assert_array_equal(found[0, n], expected)


def test_zeros_nan_and_large_numbers():
    packed, pivots, order = lu(np.zeros((3, 3), np.float32))
    assert not packed.any() and [*pivots] == [*order] == [0, 1, 2]
    assert [*lu(np.full((3, 3), np.nan, np.float32))[1]] == [0, 1, 2]
    first = np.array([[1.0, 2.0], [np.nan, 1.0], [5.0, 0.0]], np.float32)
    assert lu(first)[1][0] == 1  # a NaN is the largest
    for large in (np.float32(1e30), np.float64(1e300)):
        q, r = qr(np.full((4, 2), large))
        np.testing.assert_allclose(q @ r / large, np.ones((4, 2)), rtol=1e-5)
    q, r = qr(np.zeros((3, 2), np.float32))
    np.testing.assert_array_equal(q, np.eye(3, 2))
    assert not r.any()


def test_what_numpy_does():
    a = np.zeros((0, 0), np.float32)
    op = call("weft.qr", a.shape, a.shape[:1], dtypes=("float32",) * 2)
    assert refuses_single_node(lone_kernel(node_of(op, a))) == "it has no elements"
