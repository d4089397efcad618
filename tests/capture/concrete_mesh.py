"""Run as a script: functions that name a mesh of real devices, compiled by Weft and by JAX."""

from __future__ import annotations

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import weft
from tests.tolerance import assert_close


def main() -> None:
    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(kind,) * 2)
        pin = jax.lax.with_sharding_constraint if kind is AxisType.Auto else jax.sharding.reshard

        def fn(x, mesh=mesh, pin=pin):
            y = jax.jit(jnp.sin)(pin(x, NamedSharding(mesh, P("model"))))
            y = pin(y, NamedSharding(mesh, P("data")))
            add = jax.shard_map(
                lambda a: jax.lax.psum(a, "data"), mesh=mesh, in_specs=P("data"), out_specs=P()
            )
            return add(y)

        whole = np.arange(32, dtype=np.float32).reshape(8, 4)
        x = jax.device_put(whole, NamedSharding(mesh, P("data", "model")))
        for given in (mesh, None, weft.Mesh(data=2, model=4)):
            compiled = weft.compile(fn, x, mesh=given)
            text = compiled.text("captured")
            assert '{sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>' in text, text
            assert_close(np.asarray(compiled(x)), np.asarray(jax.jit(fn)(x)), 8, least=1.0)
    print("equal")


if __name__ == "__main__":
    main()
