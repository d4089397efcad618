"""Loops as JAX writes them, and what is read after they have ended."""

from __future__ import annotations

from tests.jax.door import run_on_cpu, run_on_weft

LOOPS = """
import jax
import jax.numpy as jnp
import numpy as np

def first_round(x):
    def body(carried):
        i, first, y = carried
        return i + 1, jnp.array(False), jnp.where(first, y, 2 * y)

    _, first, y = jax.lax.while_loop(lambda c: c[0] < 3, body, (0, jnp.array(True), x))
    return y, first, jnp.array(False), jnp.array(0)

def checked(x):
    def body(carried):
        i, failed, seen = carried
        return i + 1, jnp.array(0), seen.at[i].set(x[i] + failed)

    _, failed, seen = jax.lax.while_loop(lambda c: c[0] < 4, body, (0, 1, jnp.zeros(6)))
    told = lambda y: jax.pure_callback(np.negative, jax.ShapeDtypeStruct(y.shape, y.dtype), y)
    kept = jax.lax.cond(failed > 0, told, lambda y: y, seen)
    back = jax.lax.fori_loop(0, 4, lambda i, g: g + kept[i] * x, jnp.zeros(4))
    return kept, back, failed, jnp.array(0), jnp.array(1)

for f, n in ((first_round, 3), (checked, 4)):
    print([np.asarray(y).tolist() for y in jax.jit(f)(jnp.arange(float(n)))])
"""


def test_what_a_loop_carries_on_may_be_read_after_it() -> None:
    assert run_on_weft(LOOPS, devices=1) == run_on_cpu(LOOPS, devices=1)
