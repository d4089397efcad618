"""Functions that users partition by hand: their own programs of one device run, on its pieces."""

from __future__ import annotations

from tests.jax.door import run_on_weft

SOURCE = """
from functools import partial
import numpy as np, jax, jax.numpy as jnp
from jax.experimental.custom_partitioning import ArrayMapping, SdyShardingRule, custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
D = jax.devices()
A = np.arange(64, dtype=np.float32).reshape(8, 8)
mesh = Mesh(np.array(D).reshape(4, 2), ("x", "y"))

def on(*spec):
    return NamedSharding(mesh, P(*spec))

def waves(rule, seen=None):
    @custom_partitioning
    def wave(a):
        return jnp.sin(a)

    def partition(mesh, given, result):
        if seen is not None:
            seen.append((given[0].sharding.spec, result.sharding.spec))
        return mesh, lambda a: jnp.sin(a) + 10, result.sharding, (given[0].sharding,)  # seen to run

    wave.def_partition(partition=partition, sharding_rule=rule)
    return wave

split, seen = jax.device_put(A, on("x", "y")), []
expected = np.sin(A) + 10
with mesh:
    made = jax.jit(waves("i j -> i j", seen))(split)
    assert made.sharding.spec == P("x", "y") and seen == [(P("x", "y"), P("x", "y"))]
    np.testing.assert_allclose(made, expected, rtol=1e-5)
    wanted = jax.jit(waves("i j -> i j"), out_shardings=on("y"))(A)
    np.testing.assert_allclose(wanted, expected, rtol=1e-5)
    same = (ArrayMapping("i", "j"),)
    rule = lambda mesh, taken, given: SdyShardingRule(same, same)
    np.testing.assert_allclose(jax.jit(waves(rule))(split), expected, rtol=1e-5)
    wave = waves("i j -> i j")
    step = lambda carry, _: (wave(carry), carry.sum())
    carried, totals = jax.jit(lambda a: jax.lax.scan(step, a, None, 3))(split)
    after = np.sin(np.sin(np.sin(A) + 10) + 10) + 10
    np.testing.assert_allclose(carried, after, rtol=1e-4)
# Where no mesh is known; and on one device, as it is written.
np.testing.assert_allclose(jax.jit(waves("i j -> i j"))(split), expected, rtol=1e-5)
np.testing.assert_allclose(waves("i j -> i j")(A), np.sin(A), rtol=1e-5)

# Shardings of its own choice, collectives inside, several results, functions inside.
@partial(custom_partitioning, static_argnums=(2,))
def product(a, b, scale):
    return a @ b * scale

def by_hand(scale, mesh, given, result):
    (rows, inner), _ = given[0].sharding.spec, given[1].sharding.spec
    shardings = NamedSharding(mesh, P(rows, inner)), NamedSharding(mesh, P(inner, None))
    local = lambda a, b: jax.lax.psum(a @ b, inner) * scale
    return mesh, local, NamedSharding(mesh, P(rows, None)), shardings

product.def_partition(partition=by_hand, sharding_rule="i k, k j -> i j", reduction_factors=("k",))

@custom_partitioning
def both(a, b):
    return a + b, {"times": a * b}

def pieces(mesh, given, result):
    def local(a, b):
        times = jax.lax.cond(a[0, 0] >= 0, jnp.multiply, jnp.add, a, b)
        return jax.jit(jnp.add)(a, b), {"times": times}
    return mesh, local, *(jax.tree.map(lambda s: s.sharding, tree) for tree in (result, given))

both.def_partition(partition=pieces, sharding_rule="i j, i j -> i j, i j")
with mesh:
    other = jax.device_put(A, on("y"))
    made = jax.jit(lambda a, b: product(a, b, 2) + 1)(split, other)
    np.testing.assert_allclose(made, A @ A * 2 + 1)
    total, named = jax.jit(both)(split, split)
    np.testing.assert_allclose(total, A + A)
    np.testing.assert_allclose(named["times"], A * A)

@custom_partitioning
def broken(a):
    return a

def fails(mesh, given, result):
    raise ValueError("I cannot be split")

broken.def_partition(partition=fails, sharding_rule="i j -> i j")
try:
    with mesh:
        jax.jit(broken)(split)
except jax.errors.JaxRuntimeError as error:
    print("I cannot be split" in str(error))
"""


def test_users_programs_run() -> None:
    assert run_on_weft(SOURCE) == "True\n"
