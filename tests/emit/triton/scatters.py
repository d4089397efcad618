"""Functions of JAX that scatter, with their arguments, and products of groups of rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

RNG = np.random.default_rng(3)


def f(*shape):
    return RNG.standard_normal(shape).astype("f")


def i(low, high, *shape):
    return RNG.integers(low, high, shape).astype("i")


SCATTERS = {
    "rows set": (lambda x, t, y: x.at[t].set(y), (f(9, 5), np.array([7, 1, 20], "i"), f(3, 5))),
    "rows added": (lambda x, t, y: x.at[t].add(y), (f(9, 5), i(-9, 12, 6), f(6, 5))),
    "elements": (lambda x, t, u: x.at[t, u].add(2), (f(9, 5), i(0, 9, 7), i(0, 5, 7))),
    "windows": (lambda x, t: x.at[:, t].set(3), (f(4, 9, 3), np.array([2, 5], "i"))),
    "batches": (
        lambda x, t, y: jax.vmap(lambda x, t, y: x.at[t].add(y))(x, t, y),
        (f(3, 9), i(0, 9, 3, 4), f(3, 4)),
    ),
    "booleans": (lambda x, t: (x > 0).at[t].set(True), (f(9), np.array([2, 5], "i"))),
    "short integers": (
        lambda x, t: x.at[t].set(jnp.uint16(7)),
        (i(0, 9, 9).astype("H"), np.array([2, 5], "i")),
    ),
    "slice": (
        lambda x, y, t: jax.lax.dynamic_update_slice(x, y, (t[0], t[1])),
        (f(6, 7), f(2, 3), np.array([5, -4], "i")),
    ),
    "narrow": (
        lambda x, t, y: x.at[t].add(y),
        (jnp.asarray(f(9, 5), jnp.bfloat16), i(0, 9, 6), jnp.asarray(f(6, 5), jnp.bfloat16)),
    ),
}


def experts(x, w, sizes, g):
    """A ragged dot and its gradients."""
    made, pull = jax.vjp(lambda x, w: jax.lax.ragged_dot(x, w, sizes), x, w)
    return made, *pull(g)
