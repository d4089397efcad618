"""Products of complex matrices, in all layouts, by their kernel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.emit.llvm.single.lone_nodes import compiled, lone_kernel, node_of, stacked
from weft.emit.llvm.single.emit import refuses_single_node
from weft.ir.types import Array, TensorType, dtype_of
from weft.kernels.single_node import SingleNode
from weft.ops.contract import Dot, DotDimensionNumbers, DotGeneral


def product_kernel(
    equation: str, a: Array, b: Array, sizes: tuple[int, ...] = (), masks: tuple[int, ...] = (0, 0)
) -> SingleNode:
    """The kernel of an einsum whose result has batch dims, free dims of a, then of b."""
    left, right, out = equation.replace("->", ",").split(",")
    batch = [c for c in left if c in right and c in out]
    summed = [c for c in left if c in right and c not in out]
    sides = [[tuple(map(side.index, names)) for side in (left, right)] for names in (batch, summed)]
    numbers = DotDimensionNumbers(*sides[0], *sides[1])
    known = dict(zip(left + right, a.shape + b.shape, strict=True))
    type = TensorType(tuple(known[c] for c in out), dtype_of(a.dtype))
    return lone_kernel(node_of(DotGeneral(numbers, type), a, b), sizes, masks)


def numbers(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    """Random complex numbers."""
    random = np.random.default_rng(seed)
    return (random.standard_normal(shape) + 1j * random.standard_normal(shape)).astype(dtype)


def check(equation: str, a: Array, b: Array) -> None:
    (made,) = compiled(product_kernel(equation, a, b))(a, b)
    wide = np.complex128
    expected = np.einsum(equation, a.astype(wide), b.astype(wide))
    size = np.einsum(equation, np.abs(a), np.abs(b))
    error = np.abs(made - expected) / (size * np.finfo(a.real.dtype).eps)
    assert made.shape == expected.shape and float(np.max(error)) < 16


LAYOUTS = (
    *("ij,jk->ik", "ij,kj->ik", "ji,jk->ik", "ij,j->i", "j,jk->k", "j,j->", "i,k->ik"),
    *("bij,bjk->bik", "ibj,bjk->bik", "aij,jk->aik", "ij,ajk->iak", "ijc,jck->ik"),
)


@settings(suppress_health_check=list(HealthCheck), max_examples=25, deadline=None)
@given(
    equation=st.sampled_from(LAYOUTS),
    sizes=st.lists(st.sampled_from([1, 2, 3, 5, 8, 9, 17]), min_size=6, max_size=6),
    dtype=st.sampled_from(["complex64", "complex128"]),
)
def test_layouts(equation: str, sizes: list[int], dtype: str):
    known = dict(zip("abcijk", sizes, strict=True))
    left, right = equation.partition("->")[0].split(",")
    shapes = [tuple(known[c] for c in side) for side in (left, right)]
    check(equation, numbers(shapes[0], dtype, 0), numbers(shapes[1], dtype, 1))


@pytest.mark.parametrize("shape", [(128, 128, 128), (125, 64, 33), (1, 300, 40), (250, 3, 1)])
def test_larger_products(shape: tuple[int, int, int]):
    rows, depth, columns = shape
    check(
        "ij,jk->ik",
        numbers((rows, depth), "complex64", 0),
        numbers((depth, columns), "complex64", 1),
    )


def test_infinities_and_nan_stay_in_their_rows_and_columns():
    a, b = numbers((5, 3), "complex64", 0), numbers((3, 9), "complex64", 1)
    a[2, 1], b[0, 4] = np.nan, np.inf
    (made,) = compiled(product_kernel("ij,jk->ik", a, b))(a, b)
    bad = ~np.isfinite(made)
    assert bad[2].all() and bad[:, 4].all() and not np.delete(bad, 4, 1)[[0, 1, 3, 4]].any()


def test_complex_products_of_devices_that_vary():
    a, b = numbers((2, 3), "complex64", 0), numbers((3, 4), "complex64", 1)
    kernel = product_kernel("ij,jk->ik", a, b, (2, 3), (0b10, 0))
    given = stacked(a, 0b10, (2, 3))
    (made,) = compiled(kernel)(given, stacked(b, 0, (2, 3)))
    np.testing.assert_allclose(made, given @ b, rtol=1e-5, atol=1e-6)


def test_the_older_form_and_what_is_refused():
    a, b = numbers((4, 3), "complex128", 0), numbers((3, 2), "complex128", 1)
    old = Dot(TensorType((4, 2), dtype_of(a.dtype)))
    (made,) = compiled(lone_kernel(node_of(old, a, b)))(a, b)
    np.testing.assert_allclose(made, a @ b)
    whys = (
        ("ij,jk->ik", a.real, b.real, "it is no product of complex numbers alone"),
        ("ij,jk->ik", a[:0], b, "it has no elements"),
        ("ijc,cjk->ik", a[:, :, None] + b[0], b.T[:, :, None] + b[0], "its summed dims"),
    )
    for equation, x, y, why in whys:
        refusal = refuses_single_node(product_kernel(equation, x, y))
        assert (refusal or "").startswith(why)
