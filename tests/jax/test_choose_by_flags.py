"""Products with flags: what is masked is 0, were it NaN, as on JAX's own devices."""

from __future__ import annotations

from tests.jax.door import run_on_cpu, run_on_weft

PRODUCTS = """
import jax, numpy as np
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((8,), ("x",))
put = lambda x: jax.device_put(x, NamedSharding(mesh, P("x")))
numbers = np.array([[np.nan, 2.0], [-np.inf, -0.0], [3.0, np.inf], [np.nan, np.nan]] * 2)
flags = np.array([[False, True], [False, True], [False, False], [True, False]] * 2)

def several(x, flag):
    return x * flag, flag * x, x * (x > 0), (2 * x) * flag.astype(x.dtype)

for dtype in ("float32", "complex64", "bfloat16", "int32"):
    with np.errstate(invalid="ignore"):
        x = numbers.astype(dtype)
    for y in jax.jit(several)(put(x), put(flags))[: 2 if dtype == "complex64" else 4]:
        print(dtype, np.asarray(y).real.tolist())
print(jnp.inf * jnp.logical_xor(0, False), jnp.sum(jnp.array([jnp.nan, 1]) * jnp.arange(2)))

@jax.jit
def masked_mean(x, flag):
    return jax.grad(lambda x: jnp.sum(jnp.log(x) * flag) / jnp.sum(flag))(x)

print(masked_mean(put(np.ones((8, 2), "float32") * 4), put(flags)).tolist())
"""


def test_a_product_with_a_flag_is_a_choice() -> None:
    assert run_on_weft(PRODUCTS) == run_on_cpu(PRODUCTS)
