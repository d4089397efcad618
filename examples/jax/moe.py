"""A mixture of experts: tokens are sent to the experts' devices and back, top-2 with capacity.

JAX_PLATFORMS=weft python examples/jax/moe.py
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

TOKENS, WIDTH, EXPERTS, CAPACITY = 64, 16, 8, 24


def make(key):
    keys = jax.random.split(key, 3)
    return {
        "gate": jax.random.normal(keys[0], (WIDTH, EXPERTS)) * 0.5,
        "up": jax.random.normal(keys[1], (EXPERTS, WIDTH, 2 * WIDTH)) * WIDTH**-0.5,
        "down": jax.random.normal(keys[2], (EXPERTS, 2 * WIDTH, WIDTH)) * (2 * WIDTH) ** -0.5,
    }


def route(params, x):
    """For each token and expert, its place in the expert's queue and its weight."""
    weights, chosen = jax.lax.top_k(jax.nn.softmax(x @ params["gate"]), 2)
    weights = weights / weights.sum(-1, keepdims=True)
    picked = jax.nn.one_hot(chosen, EXPERTS)  # tokens, 2, experts
    flat = picked.transpose(1, 0, 2).reshape(-1, EXPERTS)  # first choices before second ones
    places = ((jnp.cumsum(flat, axis=0) - flat) * flat).sum(-1).reshape(2, TOKENS).T
    kept = (places < CAPACITY)[..., None] * picked
    seats = jax.nn.one_hot(places.astype(int), CAPACITY)
    dispatch = jnp.einsum("tke,tkc->tec", kept, seats)
    combine = jnp.einsum("tk,tke,tkc->tec", weights, kept, seats)
    return dispatch, combine


def layer(params, x, mesh):
    dispatch, combine = route(params, x)
    sent = jnp.einsum("tec,td->ecd", dispatch, x)
    sent = jax.lax.with_sharding_constraint(sent, NamedSharding(mesh, P("expert")))
    hidden = jax.nn.gelu(jnp.einsum("ecd,edf->ecf", sent, params["up"]))
    made = jnp.einsum("ecf,efd->ecd", hidden, params["down"])
    return jnp.einsum("tec,ecd->td", combine, made)


def main():
    count = len(jax.devices())
    mesh = jax.make_mesh((count,), ("expert",), (AxisType.Auto,))
    split, whole = NamedSharding(mesh, P("expert")), NamedSharding(mesh, P())
    params = jax.device_put(make(jax.random.key(0)), {"gate": whole, "up": split, "down": split})
    x = jax.device_put(jax.random.normal(jax.random.key(1), (TOKENS, WIDTH)), split)

    @jax.jit
    def loss(params, x):
        return ((layer(params, x, mesh) - x) ** 2).mean()

    for n in range(4):
        value, grads = jax.value_and_grad(loss)(params, x)
        params = jax.tree.map(lambda p, g: p - 0.5 * g, params, grads)
        print(f"step {n} loss {value:.6f} gate {jnp.abs(grads['gate']).sum():.6f}")


if __name__ == "__main__":
    main()
