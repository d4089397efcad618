"""A mixture of experts in JAX whose tokens travel to the devices of their experts and back.

Every device has some tokens and some experts. `dispatched` sends each token to the devices of its
experts by `jax.lax.ragged_all_to_all`; `gathered` only says where things are, and its rows are
summed and gathered. Run it to see what each of them sends on four devices.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import weft

TOKENS, WIDTH, HIDDEN, EXPERTS, CHOSEN = 64, 32, 64, 8, 2
AXIS = "expert"
SPECS = {"router": P(), "up": P(AXIS), "down": P(AXIS)}


def routed(x, router):
    """The chosen experts of every token, and their weights."""
    weights, chosen = lax.top_k(jax.nn.softmax(x @ router), CHOSEN)
    return weights / weights.sum(-1, keepdims=True), chosen


def products(rows, up, down, sizes):
    """Rows in groups, one for each expert, through both matrices of the expert."""
    return lax.ragged_dot(jax.nn.silu(lax.ragged_dot(rows, up, sizes)), down, sizes)


def gathered(parameters, x):
    """All tokens in the order of their experts."""
    weights, chosen = routed(x, parameters["router"])
    order = jnp.argsort(chosen.reshape(-1))
    sizes = jnp.bincount(chosen.reshape(-1), length=EXPERTS)
    made = products(x[order // CHOSEN], parameters["up"], parameters["down"], sizes)
    rows = jnp.zeros_like(made).at[order].set(made)
    return (rows.reshape(*chosen.shape, -1) * weights[..., None]).sum(1)


def dispatched(parameters, x):
    """The same, with every device sending the rows of its own tokens."""
    share = jax.shard_map(_on_device, in_specs=(SPECS, P(AXIS)), out_specs=P(AXIS), check_vma=False)
    return share(parameters, x)


def _on_device(parameters, x):
    devices, here = lax.axis_size(AXIS), lax.axis_index(AXIS)
    weights, chosen = routed(x, parameters["router"])
    order = jnp.argsort(chosen.reshape(-1))
    rows = x[order // CHOSEN]
    # counts[sender, receiver, expert]: a few integers, which every device gets
    own = jnp.bincount(chosen.reshape(-1), length=EXPERTS)
    counts = lax.all_gather(own, AXIS).reshape(devices, devices, -1)
    sends = counts.sum(-1)
    to, back = _before(sends, 0), _before(sends, 1)
    there = (back[here], sends[here], to[here], sends[:, here])
    room = jnp.zeros((devices * len(rows), rows.shape[1]), rows.dtype)  # if all tokens came here
    got = lax.ragged_all_to_all(rows, room, *there, axis_name=AXIS)
    # they lie by sender, and are sorted by expert
    mine = counts[:, here]
    kind = jnp.searchsorted(jnp.cumsum(mine), jnp.arange(len(got)), side="right")
    by_expert = jnp.argsort(jnp.where(kind < mine.size, kind % mine.shape[1], mine.shape[1]))
    made = products(got[by_expert], parameters["up"], parameters["down"], mine.sum(0))
    made = jnp.zeros_like(made).at[by_expert].set(made)
    home = (to[:, here], sends[:, here], back[:, here], sends[here])
    made = lax.ragged_all_to_all(made, jnp.zeros_like(rows), *home, axis_name=AXIS)
    rows = jnp.zeros_like(made).at[order].set(made)
    return (rows.reshape(*chosen.shape, -1) * weights[..., None]).sum(1)


def _before(sizes, dim):
    """The sums of the sizes before each one."""
    return jnp.cumsum(sizes, dim) - sizes


def gathered_loss(parameters, x):
    return (gathered(parameters, x) ** 2).mean()


def dispatched_loss(parameters, x):
    return (dispatched(parameters, x) ** 2).mean()


def example():
    """Parameters and tokens."""
    random = np.random.default_rng(0)
    shapes = {
        "router": (WIDTH, EXPERTS),
        "up": (EXPERTS, WIDTH, HIDDEN),
        "down": (EXPERTS, HIDDEN, WIDTH),
    }
    parameters = {name: random.standard_normal(s).astype("f") / 4 for name, s in shapes.items()}
    return parameters, random.standard_normal((TOKENS, WIDTH)).astype("f")


def compiled(function):
    """A function of the parameters and the tokens on four devices."""
    specs = {name: weft.P(*spec) for name, spec in SPECS.items()}
    shardings = (specs, weft.P(AXIS))
    return weft.compile(function, *example(), mesh=weft.Mesh(expert=4), in_shardings=shardings)


def main() -> None:
    expected, sent = gathered(*example()), {}
    for function in (gathered, dispatched):
        program, name = compiled(function), function.__name__
        error = np.abs(np.asarray(program(*example())) - expected).max()
        assert error < 1e-4, f"{name}: {error}"
        sent[name] = sum(row.bytes * row.count for row in program.collectives())
        print(f"{name:12s} {sent[name]:8.0f} bytes sent by a device, error {error:.0e}")
    assert sent["dispatched"] < sent["gathered"] / 8


if __name__ == "__main__":
    main()
