"""Sums over devices become part of products, unless that is not wanted."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import weft
from weft import Mesh, P
from weft.array.stacked import stack
from weft.capture import parse
from weft.kernels.kernel import Contract, Reduce, Step
from weft.pipeline import local_program
from weft.run.parts import parts_of
from weft.targets import target_named


def products(x, y, z, a, b, c, d):
    return (x @ a + y @ b + z @ c) * 2 + d


def compiled(fold_sums: bool):
    draw = np.random.default_rng(0)
    shapes = [(8, 16)] * 3 + [(16, 12)] * 3 + [(8, 12)]
    given = [draw.standard_normal(shape).astype(np.float32) for shape in shapes]
    rows, columns = P("data", "model"), P("model", None)
    made = weft.compile(
        products,
        *given,
        mesh=Mesh(data=2, model=4),
        in_shardings=(rows,) * 3 + (columns,) * 3 + (P("data"),),
        fold_sums=fold_sums,
    )
    return made, given


def steps(fold_sums: bool) -> list[list[Step]]:
    """The steps of each kernel of the program."""
    program = compiled(fold_sums)[0].program.local
    groups = [part.group for part in parts_of(program) if part.group is not None]
    return [list(group.kernel.steps) for group in groups if group.kernel is not None]


def test_products_sum_over_devices():
    found = steps(fold_sums=True)
    assert len(found) == 3
    assert all(sum(isinstance(s, Contract) for s in kernel) == 1 for kernel in found)
    assert not any(isinstance(s, Reduce) for kernel in found for s in kernel)


def test_every_device_sums_by_itself():
    found = steps(fold_sums=False)
    assert sum(isinstance(s, Reduce) for kernel in found for s in kernel) == 1


@pytest.mark.parametrize("fold_sums", [True, False])
def test_the_sum_of_products_is_right(fold_sums):
    made, given = compiled(fold_sums)
    np.testing.assert_allclose(np.asarray(made(*given)), products(*given), rtol=1e-4, atol=1e-4)


ONE = """module {
  sdy.mesh @mesh = <["one"=1, "x"=2]>
  func.func @main(%x: tensor<8x4xf32>, %w: tensor<4x4xf32>) -> (tensor<8x4xf32>, tensor<8x4xf32>) {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
        : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
    %1 = "stablehlo.all_reduce"(%0) <{
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [
          #stablehlo.axis_ref<name = "one">]>,
        use_global_device_ids}> ({
    ^bb0(%l: tensor<f32>, %r: tensor<f32>):
      %both = stablehlo.HOW %l, %r : tensor<f32>
      stablehlo.return %both : tensor<f32>
    }) : (tensor<8x4xf32>) -> tensor<8x4xf32>
    return %1, RESULT : tensor<8x4xf32>, tensor<8x4xf32>
  }
}"""


@pytest.mark.parametrize("result", ["%0", "%1"])
@pytest.mark.parametrize("how", ["add", "maximum", "minimum"])
def test_a_product_is_combined_along_an_axis_of_one_device(how, result):
    """That is the product itself."""
    module = parse(ONE.replace("HOW", how).replace("RESULT", result))
    program = local_program(module, target=target_named("llvm"))
    draw = np.random.default_rng(0)
    x, w = (draw.standard_normal((2, *shape)).astype(np.float32) for shape in ((8, 4), (4, 4)))
    for made in program(stack(x, program.sub_axes), stack(w, program.sub_axes)):
        np.testing.assert_allclose(made.pieces(), x @ w, rtol=1e-5, atol=1e-5)


def test_recalled_groups_are_the_same(tmp_path, monkeypatch):
    """A large region, grouped anew and remembered."""
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))

    def deep(x, w):
        for _ in range(120):
            x = jax.nn.softmax(x @ w) + x
        return x

    draw = np.random.default_rng(0)
    x, w = draw.standard_normal((6, 8)).astype("f"), draw.standard_normal((8, 8)).astype("f")
    first, again = (np.asarray(weft.compile(deep, x, w)(x, w)) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert any("groups" in str(path) for path in tmp_path.rglob("*"))
