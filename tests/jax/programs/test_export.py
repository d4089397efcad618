"""`jax.export`: programs for Weft, for several platforms, of many shapes, inside of others."""

from __future__ import annotations

import importlib.util

import pytest

from tests.jax.door import run_on_weft

_SOURCE = """
import jax, jax.numpy as jnp, numpy as np
from jax import export
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

x = jnp.arange(8.0)
mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))
split = NamedSharding(mesh, P("i"))
xs = jax.device_put(x, split)
f = jax.jit(lambda a: jnp.sin(a) @ a)

made = export.export(f)(x)
assert made.platforms == ("weft",)
assert made.call(x) == f(x)
assert np.allclose(jax.jit(lambda a: made.call(a) * 2)(x), f(x) * 2)
assert np.allclose(jax.grad(made.call)(x), jax.grad(f)(x), atol=1e-5)
both = export.export(f, platforms=["cpu", "weft"])(x)
assert np.allclose(jax.jit(both.call)(x), f(x))
choose = jax.jit(lambda a: jax.lax.platform_dependent(
    a, cpu=lambda a: a + 1, weft=lambda a: a + 2, default=lambda a: a + 3))
for platforms, added in ((["cpu", "weft", "tpu"], 2), (["weft"], 2)):
    assert (export.export(choose, platforms=platforms)(x).call(x) == x + added).all()
assert (choose(x) == x + 2).all()
# What was exported for CPUs runs as it does there, unless it calls a routine of JAX's CPU.
named = jax.jit(lambda a: jax.lax.platform_dependent(
    a, cpu=lambda a: a + 1, tpu=lambda a: a + 2, default=lambda a: a + 3))
for platforms in (["cpu"], ["cpu", "tpu"], ["tpu", "cpu"]):
    assert (export.export(named, platforms=platforms)(x).call(x) == x + 1).all()
assert (named(x) == x + 1).all()
for platforms, call, problem in (
    (["tpu"], f, "exported for platforms '('tpu',)' but it is used on '('weft',)'"),
    (["cpu"], lambda a: jnp.linalg.eigvalsh(jnp.outer(a, a)), "lapack_ssyevd_ffi"),
):
    other = export.export(jax.jit(call), platforms=platforms)(x)
    try:
        other.call(x)
    except (ValueError, RuntimeError) as error:
        assert problem in str(error), error
    else:
        raise AssertionError("a program for another platform ran")

(b,) = export.symbolic_shape("b")
shapes = export.export(jax.jit(lambda a: a.reshape(-1, 2).sum(0) * a.shape[0]))(
    jax.ShapeDtypeStruct((2 * b, 4), jnp.float32))
for n in (2, 4, 6):
    assert (shapes.call(jnp.ones((n, 4))) == 2 * n * n).all()
try:
    shapes.call(jnp.ones((3, 4)))
except ValueError as error:
    assert "Division had remainder 1" in str(error), error
else:
    raise AssertionError("an odd size was taken")

center = jax.jit(lambda a: a - a.mean(), in_shardings=split, out_shardings=split)
centered = export.export(center)(xs)
assert centered.nr_devices == 8
assert centered.call(xs).sharding.is_equivalent_to(split, 1)
total = export.export(jax.jit(jax.shard_map(lambda a: jax.lax.psum(a, "i"), mesh=mesh,
                                            in_specs=P("i"), out_specs=P())))(xs)
assert total.call(xs) == 28
keys = export.export(jax.jit(lambda k: jax.random.normal(k, (3,))))(jax.random.key(0))
assert (keys.call(jax.random.key(1)) == jax.random.normal(jax.random.key(1), (3,))).all()
with jax.enable_x64(True):
    wide = export.export(jax.jit(lambda a: a / 3))(np.arange(3.0))
    assert wide.call(np.arange(3.0)).dtype == np.float64
matrix = jnp.eye(4) * 3 + 0.1
qr = export.export(jax.jit(jnp.linalg.qr))(matrix)
assert np.allclose(qr.call(matrix)[1], jnp.linalg.qr(matrix)[1])
stack = jnp.stack([matrix, matrix * 2, matrix @ matrix])
n, size = export.symbolic_shape("n, size")
for decompose in (jnp.linalg.qr, jnp.linalg.eigh, jnp.linalg.inv, jax.lax.linalg.schur,
                  jax.lax.linalg.tridiagonal, lambda a: jax.lax.linalg.svd(a, compute_uv=False)):
    decompose = jax.jit(decompose)
    any_size = export.export(decompose)(jax.ShapeDtypeStruct((n, size, size), jnp.float32))
    jax.tree.map(np.testing.assert_array_equal, any_size.call(stack), decompose(stack))

# Exported for one device, with a mesh of one, and called on all of them.
one = jax.make_mesh((1,), ("i",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
alone = NamedSharding(one, P("i"))
kept = export.export(jax.jit(lambda a: jax.lax.with_sharding_constraint(a, alone) * 2))(x)
assert kept.nr_devices == 1 and (kept.call(xs) == x * 2).all()
print("done")
"""


def test_export() -> None:
    assert run_on_weft(_SOURCE) == "done\n"


_BYTES = """
import jax, jax.numpy as jnp, numpy as np
from jax import export

x = jnp.arange(8.0)
f = jax.jit(lambda a: jnp.sin(a) @ a)
made = export.deserialize(export.export(f)(x).serialize(vjp_order=1))
assert made.platforms == ("weft",) and made.call(x) == f(x)
assert np.allclose(jax.grad(made.call)(x), jax.grad(f)(x), atol=1e-5)
matrix = jnp.eye(4) * 3 + 0.1
upper = jax.jit(lambda a: jnp.linalg.qr(a)[1])
stored = export.export(upper, platforms=["cpu", "weft"])(matrix).serialize()
assert np.allclose(export.deserialize(stored).call(matrix), upper(matrix))
print("done")
"""


@pytest.mark.skipif(importlib.util.find_spec("flatbuffers") is None, reason="no flatbuffers")
def test_exported_as_bytes() -> None:
    assert run_on_weft(_BYTES) == "done\n"
