"""Arrays through the door: made, copied, donated, deleted, and what others hold of them."""

from __future__ import annotations

from tests.jax.door import REFUSED, run_on_weft

HEAD = f"""{REFUSED}
import copy, gc, pickle
import numpy as np, jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
D = jax.devices()
A = np.arange(64, dtype=np.float32).reshape(8, 8)
mesh = Mesh(np.array(D).reshape(4, 2), ("x", "y"))

def on(*spec):
    return NamedSharding(mesh, P(*spec))

def churn(size):
    return [jnp.zeros(size) + n for n in range(8)]  # takes memory that is free
"""

MADE = (
    HEAD
    + """
split = on("x", "y")
indices = split.addressable_devices_indices_map(A.shape)
pieces = [jax.device_put(A[index], device) for device, index in indices.items()]
whole = jax.make_array_from_single_device_arrays(A.shape, split, pieces)
np.testing.assert_array_equal(whole, A)
np.testing.assert_array_equal(whole.sum(1), A.sum(1))
np.testing.assert_array_equal(jax.make_array_from_process_local_data(split, A), A)
refused(lambda: jax.device_put(np.zeros(7), on("x")), "evenly divide")
for shape in ((), (0,), (8, 0), (2, 1, 2, 1, 2, 1, 2, 1, 2, 1)):
    array = jax.device_put(np.ones(shape, np.float32), on(*([None] * len(shape))))
    assert array.shape == shape and np.asarray(array + 1).sum() == 2 * np.prod(shape)
for name in "bool int8 uint16 int32 float16 bfloat16 complex64 float8_e4m3fn".split():
    given = np.arange(8).astype(jnp.dtype(name))
    back = np.asarray(jax.device_put(jax.device_put(given, on("x")), D[3]))
    assert back.dtype == given.dtype and back.tobytes() == given.tobytes()
half = jnp.arange(7).astype(jnp.int4)
assert np.asarray(jax.device_put(half, D[1])).astype(int).tolist() == [*range(7)]
np.testing.assert_array_equal(pickle.loads(pickle.dumps(whole)), A)

# Changes of what was put are not seen.
given = A.copy()
array = jax.device_put(given, on("x"))
given[:] = 0
np.testing.assert_array_equal(array, A)

# Copies are in memory of their own; the same put onto many devices is there once.
array = jnp.asarray(A) + 1
for other in (jnp.array(array, copy=True), copy.deepcopy(array), array.copy()):
    assert other.unsafe_buffer_pointer() != array.unsafe_buffer_pointer()
large = np.ones((64, 64), np.float32)
everywhere = jax.device_put(large, on())
assert len({s.data.unsafe_buffer_pointer() for s in everywhere.addressable_shards}) == 1
large[:] = 2
assert np.asarray(jax.device_put(large, D[1])).sum() == 2 * np.asarray(everywhere).sum() == 8192

# Pieces that were put one by one move into the whole that a program takes: no memory is doubled.
from weft.array.host import HOST_MEMORY
big = np.ones((8, 1 << 20), np.float32)
array = jax.device_put(big, NamedSharding(mesh, P(("x", "y"))))
before = HOST_MEMORY.used
total = jax.jit(lambda a: a.sum(1))(array)
total.block_until_ready()
assert HOST_MEMORY.used - before < big.nbytes // 4, (HOST_MEMORY.used, before)
np.testing.assert_array_equal(total, big.sum(1))
for shard in array.addressable_shards:
    np.testing.assert_array_equal(np.asarray(shard.data), big[shard.index])
print("done")
"""
)


def test_made_put_and_copied() -> None:
    # JAX 0.11 and later print the line of a sharding that they refuse.
    assert run_on_weft(MADE).splitlines()[-1] == "done"


DONATED = (
    HEAD
    + """
add = jax.jit(lambda a: a + 1, donate_argnums=0)
array = jax.device_put(A, on("x"))
assert add(array).sum() == A.sum() + 64 and array.is_deleted()
refused(lambda: array + 1, "deleted")
refused(lambda: np.asarray(array), "deleted")

zero = jax.jit(lambda a: a * 0, donate_argnums=0)
array = jnp.arange(100000.0) + 1
view, elsewhere, copied = np.asarray(array), jax.device_put(array, D[1]), jnp.copy(array)
zero(array).block_until_ready()
for held in (view, elsewhere, copied):
    np.testing.assert_array_equal(held, np.arange(100000) + 1)

# Where pieces were put one by one and some of them are held.
put = jax.device_put(np.ones((8, 5000), np.float32), on(("x", "y")))
jax.jit(lambda a: a + 1)(put)
held = jax.device_put(put.addressable_shards[3].data, D[0])
seen = np.asarray(put.addressable_shards[2].data)
zero(put).block_until_ready()
assert np.asarray(held).sum() == seen.sum() == 5000

twice = jax.jit(lambda a, b: (a + b, a * b), donate_argnums=(0, 1))
same = jnp.ones((8, 8))
refused(lambda: twice(same, same), "donate the same buffer twice")
refused(lambda: jax.jit(lambda a, b: a + b, donate_argnums=0)(same, same), "previously donated")
refused(lambda: jax.jit(lambda a, b: a + b, donate_argnums=1)(same, same), "also used by the same")
assert not same.is_deleted()

# What no result can have the memory of stays.
many = [jax.device_put(A, on(*spec)) for spec in (("x",), ("y",), ())]
jax.jit(lambda a, b, c: (a + 1, b * 2, c.sum()), donate_argnums=(0, 1, 2))(*many)
assert [array.is_deleted() for array in many] == [True, True, False]
other = jax.device_put(A, on("x", "y"))
turned = jax.jit(jnp.transpose, donate_argnums=0)(other)
assert other.is_deleted()
np.testing.assert_array_equal(turned, A.T)
array = jax.device_put(A, on("x", "y"))
for _ in range(20):
    array = add(array)
np.testing.assert_array_equal(array, A + 20)
print("done")
"""
)


def test_donation() -> None:
    assert run_on_weft(DONATED) == "done\n"


DELETED = (
    HEAD
    + """
array = jnp.arange(100000.0) + 1
view = np.asarray(array)
total = view.sum()
array.delete()
churned = churn(100000)
assert view.sum() == total
refused(lambda: array + 1, "deleted")
array = jax.device_put(np.arange(800000, dtype=np.float32).reshape(8, -1), on(("x", "y"))) * 2
views = [np.asarray(shard.data) for shard in array.addressable_shards]
sums = [view.astype(float).sum() for view in views]
del array
gc.collect()
churned = churn(800000)
assert [view.astype(float).sum() for view in views] == sums
array = jax.device_put(A, on("x"))
array.addressable_shards[0].data.delete()
refused(lambda: np.asarray(array), "deleted")
array = jax.device_put(A, on("x", "y"))
array.copy_to_host_async()
np.testing.assert_array_equal(array, A)
refused(lambda: jax.jit(lambda a, b: a + b)(jax.device_put(A, D[0]), jax.device_put(A, D[1])),
        "incompatible devices")
from jax._src.lib import _jax
kind = jax.ShapeDtypeStruct((8,), np.float32, sharding=jax.sharding.SingleDeviceSharding(D[0]))
failed = _jax._make_error_array(D[0].client, kind, "it was lost")
refused(lambda: np.asarray(failed), "it was lost")
refused(lambda: np.asarray(failed + 1), "it was lost")
stats = D[0].memory_stats()
assert 0 < stats["bytes_in_use"] <= min(stats["peak_bytes_in_use"], stats["pool_bytes"]), stats
used = lambda: np.array([d.memory_stats()["bytes_in_use"] for d in D])
before, add = used(), jax.jit(lambda a: a + 1, donate_argnums=0)
one = jnp.ones(1000)  # small arrays, large ones, and both after calls of Python and of native code
np.testing.assert_array_equal(used() - before, [4000] + 7 * [0])
same = jax.device_put(np.ones(1000, np.float32), on())
large, kept = jax.device_put(np.ones((8, 1 << 15), np.float32), on(("x", "y"))), []
for n in range(4):
    np.testing.assert_array_equal(used() - before, [4000 * (n + 2) + (1 << 17)]
                                  + 7 * [4000 * (n + 1) + (1 << 17)])
    one, same, large = add(one), add(same), add(large)
    kept.append(same + 1)
aside = jax.device_put(large, large.sharding.with_memory_kind("pinned_host"))
same.delete()
del large, kept
np.testing.assert_array_equal(used() - before, [4000] + 7 * [0])
one.delete()
assert (used() == before).all()
with jax.default_device(D[5]):
    assert (jnp.ones(3) + 1).devices() == {D[5]}
print("done")
"""
)


def test_deletion_leaves_what_others_hold() -> None:
    assert run_on_weft(DELETED) == "done\n"


MANY = """
import numpy as np, jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()).reshape(16, 16), ("x", "y"))
whole = np.arange(256 * 32, dtype=np.float32).reshape(256, 32)
split = jax.device_put(whole, NamedSharding(mesh, P(("x", "y"))))
crossed = jax.device_put(split, NamedSharding(mesh, P("y", "x")))
np.testing.assert_array_equal(split, whole)
np.testing.assert_array_equal(crossed, whole)
many = [split] * 30
results = jax.jit(lambda *arrays: [a * n for n, a in enumerate(arrays)])(*many)
for n, result in enumerate(results):
    np.testing.assert_array_equal(result, whole * n)
    assert result.sharding == split.sharding
print("done")
"""


def test_many_devices() -> None:
    assert run_on_weft(MANY, devices=256) == "done\n"
