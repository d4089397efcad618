"""Compiled functions inside of JAX's transforms: they are traced as the functions that they are."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft
from tests.jax.door import run_on_weft

X = jnp.arange(8.0).reshape(2, 4) / 8
PARAMS = {"w": jnp.eye(4) / 2}
MESH = weft.Mesh(d=2)


def loss(params: dict[str, Any], x: Any, n: int = 2, *, scale: float = 1.0) -> Any:
    for _ in range(n):
        x = jnp.tanh(x @ params["w"]) * scale
    return (x**2).sum()


@pytest.fixture(scope="module")
def compiled() -> weft.Compiled:
    return weft.compile(loss, mesh=MESH, in_shardings=(None, weft.P("d")), static_argnums=2)


def test_gradients_are_those_of_the_function(compiled: weft.Compiled) -> None:
    found = jax.grad(compiled)(PARAMS, X, 3, scale=2.0)
    expected = jax.grad(loss)(PARAMS, X, 3, scale=2.0)
    np.testing.assert_array_equal(found["w"], expected["w"])
    ours = {"w": weft.put(np.asarray(PARAMS["w"]))}
    value, slope = jax.value_and_grad(compiled)(ours, weft.put(np.asarray(X)), 3, scale=2.0)
    np.testing.assert_allclose(value, loss(PARAMS, X, 3, scale=2.0), rtol=1e-6)
    np.testing.assert_allclose(slope["w"], expected["w"], rtol=1e-5)


def test_jit_vmap_jvp_and_control_flow(compiled: weft.Compiled) -> None:
    assert jax.jit(compiled, static_argnums=2)(PARAMS, X, 2) == jax.jit(loss)(PARAMS, X)
    rows = jax.vmap(lambda x: compiled(PARAMS, x, 2))(X)
    np.testing.assert_allclose(rows, jax.vmap(lambda x: loss(PARAMS, x))(X), rtol=1e-6)
    cube = weft.compile(lambda x: (x**3).sum())
    np.testing.assert_allclose(jax.hessian(cube)(X[0]), np.diag(6 * X[0]), rtol=1e-6)
    add = weft.compile(lambda a, b: a + b)
    total, _ = jax.lax.scan(lambda c, x: (add(c, x), None), jnp.zeros(4), X)
    np.testing.assert_array_equal(total, X.sum(0))
    assert jax.jit(weft.compile(lambda x: x * 2))(3).weak_type
    normal = weft.compile(lambda key: jax.random.normal(key, (3,)))
    keys = jax.random.split(jax.random.key(0), 2)
    np.testing.assert_allclose(jax.vmap(normal)(keys)[1], normal(keys[1]), rtol=1e-5)


def test_inside_of_another_compiled_function_shardings_are_constraints(
    compiled: weft.Compiled,
) -> None:
    outer = weft.compile(lambda p, x: compiled(p, x, 2) * 2, PARAMS, X, mesh=MESH)
    assert outer.text("captured").count("sharding_constraint") == 1
    np.testing.assert_allclose(outer(PARAMS, X), 2 * loss(PARAMS, X), rtol=1e-6)
    elsewhere = weft.compile(lambda p, x: compiled(p, x, 2), PARAMS, X, mesh=weft.Mesh(e=2))
    assert "sharding_constraint" not in elsewhere.text("captured")
    slope = weft.compile(jax.grad(compiled), mesh=MESH, static_argnums=2)(PARAMS, X, 2)
    np.testing.assert_allclose(slope["w"], jax.grad(loss)(PARAMS, X, 2)["w"], rtol=1e-5)
    np.testing.assert_array_equal(weft.compile(weft.compile(lambda x: x + 1))(X), X + 1)


def test_it_has_the_name_and_signature_of_the_function(compiled: weft.Compiled) -> None:
    assert compiled.__name__ == "loss" and inspect.signature(compiled) == inspect.signature(loss)


def test_a_module_cannot_be_traced() -> None:
    text = "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> { return %a : tensor<4xf32> }"
    with pytest.raises(weft.WeftError, match="JAX cannot differentiate, batch or inline"):
        jax.jit(weft.compile(text))(X[0])


DOOR = """
import jax, jax.numpy as jnp, numpy as np, weft
x = jnp.arange(8.0).reshape(2, 4) / 8
fn = weft.compile(lambda x: jnp.tanh(x).sum(), mesh=weft.Mesh(d=2), in_shardings=weft.P("d"))
np.testing.assert_allclose(jax.grad(fn)(x), 1 - np.tanh(x) ** 2, rtol=1e-5)
np.testing.assert_allclose(jax.jit(jax.vmap(fn))(x[:, None]), np.tanh(x).sum(1), rtol=1e-5)
np.testing.assert_allclose(jnp.sum(weft.put(x) * 2), 2 * x.sum())
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
twice = weft.compile(lambda x: x * 2, mesh=weft.Mesh(d=2), out_shardings=weft.P("d"))
with jax.set_mesh(mesh):
    assert jax.jit(twice)(x).sharding.spec == jax.sharding.PartitionSpec("d")
print("ok")
"""


def test_on_devices_of_weft() -> None:
    assert run_on_weft(DOOR, devices=2).endswith("ok\n")
