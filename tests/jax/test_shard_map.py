"""`shard_map`: unreduced values, and one product that is summed up twice."""

from __future__ import annotations

from tests.jax.door import run_on_weft

_OWED = """
import jax, jax.numpy as jnp, numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

A = np.arange(8, dtype=np.float32).reshape(2, 4)
B = np.arange(8, dtype=np.float32).reshape(4, 2)
grid = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)

def pieces(array):
    return [np.asarray(shard.data).tolist() for shard in array.addressable_shards]

with jax.set_mesh(grid):
    a, b = jax.device_put(A, P("x", "y")), jax.device_put(B, P("y", None))
    unreduced = P("x", None, unreduced={"y"})
    product = jax.jit(jax.shard_map(lambda a, b: lax.pcast(a @ b, "y", to="unreduced"),
                                    in_specs=(P("x", "y"), P("y", None)), out_specs=unreduced))
    made = product(a, b)
    assert made.sharding == NamedSharding(grid, unreduced)
    assert pieces(made) == [[[2, 3]], [[26, 31]], [[10, 19]], [[66, 79]]], pieces(made)
    assert (jax.reshard(made, P("x", None)) == A @ B).all()
    total = jax.jit(jax.shard_map(lambda c: lax.psum(c, "y"), in_specs=unreduced, out_specs=P("x")))
    assert (total(made) == A @ B).all()
    g = jax.jit(jax.grad(lambda a, b: jax.reshard(product(a, b), P("x", None)).sum()))(a, b)
    assert (g == np.ones((2, 2)) @ B.T).all()

# Seen by hand, an unreduced value is what each device has.
line = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Explicit,))
with jax.set_mesh(line):
    def kept(given, wanted):
        specs = dict(in_specs=given, out_specs=wanted)
        return jax.jit(jax.shard_map(lambda v: v, **specs, check_vma=False))
    unreduced = P(unreduced={"x"})
    same = kept(P(), unreduced)(jax.device_put(A, P()))
    assert pieces(same) == [A.tolist()] * 2
    assert pieces(kept(unreduced, P())(same)) == [A.tolist()] * 2
    halves = kept(P("x"), unreduced)(jax.device_put(A, P("x")))
    assert halves.shape == (1, 4) and pieces(halves) == [A[:1].tolist(), A[1:].tolist()]
    assert (kept(unreduced, P("x"))(halves) == A).all()

# A product that is summed over some devices, and over more of them.
cube = jax.make_mesh((2, 2, 2), ("x", "y", "z"), axis_types=(AxisType.Auto,) * 3)
C = np.arange(64, dtype=np.int32).reshape(8, 8)

def scattered(a, b):
    c = a @ b
    return (lax.psum_scatter(c, "y", scatter_dimension=0, tiled=True),
            lax.psum_scatter(c, ("z", "y"), scatter_dimension=0, tiled=True), lax.psum(c, "y"))
some, more, here = jax.jit(jax.shard_map(
    scattered, mesh=cube, in_specs=(P("z", "y"), P("y", None)),
    out_specs=(P(("z", "y")), P(("z", "y")), P("z"))))(C, C)
assert (some == C @ C).all() and (here == C @ C).all()
assert (more == (C @ C)[:4] + (C @ C)[4:]).all()

# A broadcast, also from a device whose number is computed: all bits arrive, those of -0.0 and NaN.
from jax._src.lax import parallel
sources = [2] + [jnp.int32(2)] * hasattr(parallel, "pbroadcast_dynamic_p")  # since JAX 0.12
D = np.array([np.nan, -0.0, 1, 2, np.inf, -0.0, 5, np.nan], np.float32)
line = jax.make_mesh((4,), ("x",), devices=jax.devices()[:4], axis_types=(AxisType.Auto,))
for given in (D, (D > 0), D.astype(jnp.bfloat16), np.arange(8, dtype=np.int8), D * 1j):
    for source in sources:
        spread = jax.shard_map(lambda v: lax.pbroadcast(v, "x", source), mesh=line,
                               in_specs=P("x"), out_specs=P("x"), check_vma=False)
        made = np.asarray(jax.jit(spread)(given))
        assert made.tobytes() == np.tile(given[4:6], 4).tobytes(), (given, made)
print("done")
"""


def test_shard_map() -> None:
    assert run_on_weft(_OWED) == "done\n"
