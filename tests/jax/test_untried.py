"""The door on a Python that was not tried: all is as elsewhere, and a warning says it is slower."""

from __future__ import annotations

from tests.jax.door import run_on_cpu, start
from tests.untried import UNTRIED

_SOURCE = """
import numpy as np, jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

A = np.arange(64, dtype=np.float32).reshape(8, 8)
mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("x", "y"))
split = jax.device_put(A, NamedSharding(mesh, P("x", "y")))

# Small and large, one device and several, donated and called again.
step = jax.jit(lambda a, b: (a @ b.T, (a * b).sum()), donate_argnums=0)
for given in (jnp.asarray(A), split, jnp.ones((300, 300)), jnp.zeros((0, 3)), jnp.float32(2)):
    for _ in range(3):
        kept = given + 1
        made = jax.tree.map(np.asarray, jax.jit(lambda a: (a * 2, a.sum(), a > 3))(kept))
        print([part.shape for part in made], float(made[1]), float(made[0].sum()))
for _ in range(3):
    product, total = step(split + 0, split)
    print(np.asarray(product).sum(), float(total))
print(jax.grad(lambda a: jnp.tanh(a @ a.T / 1000).sum())(split).shape)
print(jax.lax.fori_loop(0, 5, lambda n, a: a + n, jnp.arange(3)))
print(jax.jit(lambda a: jax.pure_callback(lambda v: np.asarray(v) + 1, a, a))(jnp.arange(4.0)))
total = jax.shard_map(lambda a: jax.lax.psum(a, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
print(np.asarray(jax.jit(total)(split)).sum())
print(np.from_dlpack(jnp.arange(5)).sum(), np.asarray(jax.random.bits(jax.random.key(0), 3)))
"""


def test_as_on_cpu() -> None:
    done = start(UNTRIED + _SOURCE, "weft", devices=4, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout == run_on_cpu(_SOURCE, devices=4)
    assert done.stderr.count("RuntimeWarning: Weft was not tried on") == 1, done.stderr
