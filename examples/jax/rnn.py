"""A gated recurrent network over sequences with scan, its gradient clipped.

JAX_PLATFORMS=weft python examples/jax/rnn.py
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

INPUTS, HIDDEN = 4, 16


def make(key):
    keys = jax.random.split(key, 3)
    return {
        "input": jax.random.normal(keys[0], (INPUTS, 3 * HIDDEN)) * 0.5,
        "state": jax.random.normal(keys[1], (HIDDEN, 3 * HIDDEN)) * HIDDEN**-0.5,
        "bias": jnp.zeros(3 * HIDDEN),
        "output": jax.random.normal(keys[2], (HIDDEN, 1)) * HIDDEN**-0.5,
    }


def cell(params, h, x):
    given, kept = x @ params["input"] + params["bias"], h @ params["state"]
    (zx, rx, nx), (zh, rh, nh) = jnp.split(given, 3, -1), jnp.split(kept, 3, -1)
    z, r = jax.nn.sigmoid(zx + zh), jax.nn.sigmoid(rx + rh)
    return (1 - z) * h + z * jnp.tanh(nx + r * nh)


def loss(params, xs, ys):
    def advance(h, x):
        h = cell(params, h, x)
        return h, h @ params["output"]

    start = jnp.zeros((xs.shape[1], HIDDEN))
    _, made = jax.lax.scan(advance, start, xs)
    return ((made - ys) ** 2).mean()


@jax.jit
def step(params, xs, ys):
    value, grads = jax.value_and_grad(loss)(params, xs, ys)
    norm = jnp.sqrt(sum((g * g).sum() for g in jax.tree.leaves(grads)))
    scale = jnp.minimum(1.0, 1.0 / norm)
    return jax.tree.map(lambda p, g: p - 0.2 * scale * g, params, grads), value, norm


def main():
    mesh = jax.make_mesh((len(jax.devices()),), ("data",), (AxisType.Auto,))
    xs = jax.random.normal(jax.random.key(0), (12, 8, INPUTS))
    ys = jnp.cumsum(xs[..., :1], axis=0) * 0.3
    xs, ys = jax.device_put((xs, ys), NamedSharding(mesh, P(None, "data")))
    params = jax.device_put(make(jax.random.key(1)), NamedSharding(mesh, P()))
    for n in range(5):
        params, value, norm = step(params, xs, ys)
        print(f"step {n} loss {value:.6f} norm {norm:.6f}")


if __name__ == "__main__":
    main()
