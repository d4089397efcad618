"""Meshes in any order of their devices: whole values are the same, whoever has which piece."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as JaxP

import weft
from weft.capture.jax.device_order import in_order_of
from weft.mesh import Mesh, P

X = np.arange(64, dtype=np.float32).reshape(8, 8)
AXES = (("x", 4), ("y", 2))
ORDERS = ([7, 6, 5, 4, 3, 2, 1, 0], [3, 1, 2, 0, 7, 5, 6, 4], [0, 4, 1, 5, 2, 6, 3, 7])


def places(a: Any) -> Any:
    return a + jax.lax.axis_index("x") * 100 + jax.lax.axis_index(("y", "x"))


BODIES: dict[str, Callable[[Any], Any]] = {
    "places": places,
    "sums": lambda a: jax.lax.psum(places(a), "y") + jax.lax.pmax(a, ("x", "y")),
    "permutes": lambda a: jax.lax.ppermute(a, "x", [(0, 1), (1, 3), (3, 2), (2, 0)]),
    "gathers": lambda a: jax.lax.all_gather(a, "x", axis=0)[jax.lax.axis_index("x") - 1],
    "exchanges": lambda a: jax.lax.all_to_all(a, "y", 1, 0, tiled=True).reshape(a.shape),
    "scatters": lambda a: jnp.tile(jax.lax.psum_scatter(a, "y", tiled=True), (2, 1)),
}


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("name", BODIES)
def test_the_order_of_devices_changes_no_number(name: str, order: list[int]) -> None:
    mesh = AbstractMesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    specs = {"in_specs": JaxP("x", "y"), "out_specs": JaxP("x", "y")}
    body = jax.shard_map(BODIES[name], mesh=mesh, check_vma=False, **specs)
    compiled = partial(weft.compile, lambda x: body(x * 2) + 1, X, in_shardings=P("x", "y"))
    expected = compiled(mesh=Mesh(AXES))(X)
    made = compiled(mesh=Mesh(AXES, order))(X)
    assert made.mesh.device_ids == tuple(order)
    np.testing.assert_array_equal(made, expected)


def test_all_meshes_get_the_order() -> None:
    """But for meshes of other sizes, and those whose devices are named."""
    text = """module {
      sdy.mesh @grid = <["x"=4, "y"=2]>
      sdy.mesh @line = <["z"=8]>
      sdy.mesh @half = <["z"=4]>
      sdy.mesh @last = <[], device_ids=[7]>
      func.func @main(%x: tensor<8xf32>
          {sdy.sharding = #sdy.sharding<mesh<["z"=8]>, [{"z"}]>}) -> tensor<8xf32> {
        return %x : tensor<8xf32>
      }
    }"""
    made = in_order_of(weft.parse(text), Mesh(AXES, ORDERS[1]))
    ids = {name: mesh.device_ids for name, mesh in made.meshes.items()}
    order = tuple(ORDERS[1])
    assert ids == {"grid": order, "line": order, "half": None, "last": (7,)}
    assert "device_ids=[3, 1, 2, 0, 7, 5, 6, 4]>, [{" in made.text()
