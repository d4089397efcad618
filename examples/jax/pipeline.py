"""A pipeline with shard_map: every device holds a stage, microbatches go from one to the next.

JAX_PLATFORMS=weft python examples/jax/pipeline.py
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

WIDTH, MICROBATCHES, ROWS = 16, 6, 4


def stage(weight, x):
    return x + jnp.tanh(x @ weight)


def forward(mesh, weights, batches):
    """All microbatches through all stages; each step moves what every device has made."""
    stages = mesh.shape["stage"]

    @partial(jax.shard_map, mesh=mesh, in_specs=(P("stage"), P()), out_specs=P(), check_vma=False)
    def run(weight, batches):
        me = jax.lax.axis_index("stage")
        following = [(n, (n + 1) % stages) for n in range(stages)]

        def advance(carry, n):
            held, done = carry
            x = jnp.where(me == 0, batches[jnp.minimum(n, MICROBATCHES - 1)], held)
            made = stage(weight[0], x)
            out = n - (stages - 1)
            is_out = (me == stages - 1) & (out >= 0)
            done = jnp.where(is_out, done.at[jnp.maximum(out, 0)].set(made), done)
            return (jax.lax.ppermute(made, "stage", following), done), None

        start = (jnp.zeros((ROWS, WIDTH)), jnp.zeros((MICROBATCHES, ROWS, WIDTH)))
        (_, done), _ = jax.lax.scan(advance, start, jnp.arange(MICROBATCHES + stages - 1))
        return jax.lax.psum(jnp.where(me == stages - 1, done, 0), "stage")

    return run(weights, batches)


def main():
    mesh = jax.make_mesh((len(jax.devices()),), ("stage",), (AxisType.Auto,))
    weights = jax.random.normal(jax.random.key(0), (mesh.size, WIDTH, WIDTH)) * WIDTH**-0.5
    weights = jax.device_put(weights, NamedSharding(mesh, P("stage")))
    batches = jax.random.normal(jax.random.key(1), (MICROBATCHES, ROWS, WIDTH))

    @jax.jit
    def loss(weights, batches):
        return (forward(mesh, weights, batches) ** 2).mean()

    for n in range(3):
        value, grads = jax.value_and_grad(loss)(weights, batches)
        weights = weights - 0.1 * grads
        print(f"step {n} loss {value:.6f} gradient {jnp.abs(grads).sum():.6f}")


if __name__ == "__main__":
    main()
