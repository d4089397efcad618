"""Numbers that random programs found wrong: on every level, target and mesh now those of JAX."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import weft
from weft import Mesh, P

WAYS = [*itertools.product((0, 1), ("llvm", "numpy"))]
TWO = Mesh(a=2)


@pytest.mark.parametrize(("level", "target"), WAYS)
@pytest.mark.parametrize("dtype", ["complex64", "float16", "bfloat16"])
def test_products_split_over_their_contracting_dim(level: Any, target: str, dtype: str) -> None:
    x, y = (np.asarray(jnp.ones(shape, dtype)) for shape in ((3, 8), (8, 2)))
    how = {"mesh": TWO, "in_shardings": (P(None, "a"), P("a")), "level": level, "target": target}
    found = np.asarray(weft.compile(lambda x, y: x @ y, x, y, **how)(x, y))
    np.testing.assert_array_equal(found.astype(complex), np.full((3, 2), 8))


PRODUCT = """func.func @main(%x: tensor<3x5xT>, %y: tensor<5x2xT>) -> tensor<3x2xT> {
  %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0]
    : (tensor<3x5xT>, tensor<5x2xT>) -> tensor<3x2xT>
  return %0 : tensor<3x2xT>
}"""


@pytest.mark.parametrize("target", ["llvm", "numpy"])
@pytest.mark.parametrize(
    ("name", "dtype", "bits"),
    [
        ("f64", "f8", 25),
        ("complex<f64>", "c16", 25),
        ("complex<f32>", "c8", 10),
        ("i64", "i8", 62),
        ("i32", "i4", 30),
        ("ui16", "u2", 16),
    ],
)
def test_products_use_all_bits_of_their_type(name: str, dtype: str, bits: int, target: str) -> None:
    """Integers that their sums of products fit; those of integers wrap around."""
    rng = np.random.default_rng(bits)
    x, y = (rng.integers(0, 1 << bits, shape).astype(dtype) for shape in ((3, 5), (5, 2)))
    if np.iscomplexobj(x):
        x, y = x * (1 + 1j), y - 1j * y[::-1]
    found = np.asarray(weft.compile(PRODUCT.replace("T", name), target=target)(x, y)[0])
    expected = np.einsum("ik,kj->ij", x, y)  # without BLAS: in order, in the type itself
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_partial_sums_of_narrow_floats_round_once() -> None:
    # Each device's own sum is rounded to 2048, twice; the sum of all is 4098.
    x = np.asarray([[2048, 1, 2048, 1]], np.float16)
    y = np.asarray(np.ones((4, 1)), np.float16)
    how = {"mesh": TWO, "in_shardings": (P(None, "a"), P("a"))}
    for level, target in WAYS:
        split = weft.compile(lambda x, y: x @ y, x, y, level=level, target=target, **how)
        whole = weft.compile(lambda x, y: x @ y, x, y, level=level, target=target)
        np.testing.assert_array_equal(split(x, y), whole(x, y))


ONE_ROW = {
    "sum": lambda x, y: (x @ y).sum(0),
    "largest": lambda x, y: (x @ y).max(0),
    "softmax": lambda x, y: jax.nn.softmax(x @ y, 0),
    "where": lambda x, y: ((x @ y).argmax(0), (x @ y + 1).sum(0)),
    "one column": lambda x, y: (y.T @ x.T).sum(1),
}


@pytest.mark.parametrize("name", ONE_ROW)
def test_reductions_of_a_product_of_one_row(name: str) -> None:
    x, y = np.arange(8, dtype=np.float32)[None], np.ones((8, 4), np.float32)
    wanted = jax.tree.leaves(jax.jit(ONE_ROW[name])(x, y))
    for level, target in WAYS:
        compiled = weft.compile(ONE_ROW[name], x, y, level=level, target=target)
        for mine, theirs in zip(jax.tree.leaves(compiled(x, y)), wanted, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e5m2"])
@pytest.mark.parametrize("dims", [(((), ()), ((), ())), (((), ()), ((0,), (0,)))])
def test_products_that_sum_nothing_keep_the_sign_of_zero(dtype: str, dims: Any) -> None:
    x, y = (np.asarray(jnp.asarray(v).astype(dtype)) for v in ([-0.0, 0, -1], [1.0, -2, 0]))

    def fn(x: Any, y: Any) -> Any:
        return lax.dot_general(x, y, dims)

    wanted = np.multiply.outer(x.astype("f8"), y.astype("f8"))
    wanted = wanted if not dims[1][0] else wanted.diagonal()
    for level, target in WAYS:
        for how in ({}, {"mesh": TWO, "in_shardings": P("a"), "out_shardings": P("a")}):
            made = weft.compile(fn, x, y, level=level, target=target, **how)(x, y)
            np.testing.assert_array_equal(
                np.signbit(np.asarray(made).astype("f8")), np.signbit(wanted)
            )


SCATTERS = (lax.scatter_add, lax.scatter_mul, lax.scatter_min, lax.scatter_max)


@settings(max_examples=12)
@given(
    st.integers(0, 2**31),
    st.sampled_from(SCATTERS),
    st.sampled_from(["fill", "clip"]),
    st.sampled_from([np.int32, np.int8, np.uint8]),
    st.sampled_from(WAYS),
    st.booleans(),
)
def test_windows_partly_out_of_bounds_are_dropped_as_jax_does(
    seed: int, scatter: Any, mode: str, kind: Any, way: Any, on_mesh: bool
) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 6, 2)
    window = tuple(int(n) for n in rng.integers(1, sizes + 1))
    x = rng.integers(1, 9, sizes).astype(np.float32)
    u = rng.integers(2, 9, (3, *window)).astype(np.float32)
    at = rng.integers(-2, 7, (3, 2)).astype(kind)

    def fn(x: Any, u: Any) -> Any:
        dims = lax.ScatterDimensionNumbers((1, 2), (), (0, 1))
        read = lax.GatherDimensionNumbers((1, 2), (), (0, 1))

        def gathered(x: Any) -> Any:
            return (lax.gather(x, at, read, window, mode="fill", fill_value=0.5) * u).sum()

        return scatter(x, at, u, dims, mode=mode), jax.grad(gathered)(x)

    level, target = way
    how = {"mesh": TWO, "in_shardings": P("a")} if on_mesh else {}
    compiled = weft.compile(fn, x, u, level=level, target=target, **how)
    for mine, theirs in zip(compiled(x, u), jax.jit(fn)(x, u), strict=True):
        np.testing.assert_allclose(mine, theirs, 1e-6)


SCATTER = """
func.func @main(%x: tensor<4xf32>, %i: tensor<1x1xi32>, %u: tensor<1x3xf32>) -> tensor<4xf32> {
  %0 = "stablehlo.scatter"(%x, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<
      update_window_dims = [1], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      stablehlo.return %b : tensor<f32>
  }) : (tensor<4xf32>, tensor<1x1xi32>, tensor<1x3xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


@pytest.mark.parametrize("target", ["llvm", "numpy"])
def test_a_file_means_what_the_specification_says(target: str) -> None:
    x, u = np.zeros(4, np.float32), np.asarray([[1, 2, 3]], np.float32)
    compiled = weft.compile(SCATTER, target=target)
    for start, wanted in ((2, [0, 0, 1, 2]), (-1, [2, 3, 0, 0]), (4, [0, 0, 0, 0])):
        (found,) = compiled(x, np.asarray([[start]], np.int32), u)
        np.testing.assert_array_equal(found, wanted)


CALLS = """
sdy.mesh @mesh = <["a"=2]>
sdy.mesh @one = <[], device_ids=[0]>
func.func @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}]>}) -> tensor<4xf32> {
  func.call @f(%x) {sdy.sharding = #sdy.sharding_per_value<[<@one, []>]>} : (tensor<4xf32>) -> ()
  %0 = func.call @g(%x) {sdy.sharding = #sdy.sharding_per_value<[<@one, []>]>}
      : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @f(%x: tensor<4xf32>) { return }
func.func private @g(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


def test_calls_may_be_put_onto_one_device() -> None:
    x = np.arange(4, dtype=np.float32)
    (found,) = weft.compile(CALLS)(x)
    np.testing.assert_array_equal(found, x + x)


def test_a_donated_array_of_other_sub_axes_is_written_over_or_copied() -> None:
    x, parts = np.ones((9, 1), np.float16), P(None, ("a:(2)4", "a:(1)2"))
    how: dict[str, Any] = {"mesh": Mesh(a=8), "in_shardings": P("a"), "out_shardings": parts}
    compiled = weft.compile(lambda x: x + x, x, donate_argnums=0, target="numpy", **how)
    np.testing.assert_array_equal(compiled(x), x + x)
