"""IFRT's arrays, as jaxlib makes them of Weft's buffers: remapped, copied, deleted, poisoned."""

from __future__ import annotations

from tests.jax.door import REFUSED, run_on_weft

ARRAYS = f"""{REFUSED}
import numpy as np, jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding
from jaxlib import _jax
D = jax.devices()
A = np.arange(64, dtype=np.float32).reshape(8, 8)

def over(devices):
    return NamedSharding(Mesh(np.array(devices), ("x",)), P("x"))

split, turned, other = over(D[:4]), over(D[3::-1]), over(D[4:])
array = jax.device_put(A, split)

# Remapped: the same shards, in another order, and nothing is copied.
moved = _jax.reorder_shards(array, turned, _jax.ArrayCopySemantics.REUSE_INPUT)
backwards = A.reshape(4, 2, 8)[::-1].reshape(8, 8)
np.testing.assert_array_equal(moved, backwards)
assert [s.device.id for s in moved.addressable_shards] == [3, 2, 1, 0]
where = [{{s.data.unsafe_buffer_pointer() for s in a.addressable_shards}} for a in (array, moved)]
assert where[0] == where[1]
for shard in moved.addressable_shards:
    np.testing.assert_array_equal(shard.data, backwards[shard.index])
np.testing.assert_array_equal(jax.jit(lambda a: a * 2)(moved), backwards * 2)

# Copied in one call, from different devices to different devices.
lists = [s._internal_device_list for s in (other, split)]
copies = _jax.batched_copy_array_to_devices_with_sharding(
    [array, jax.device_put(A + 1, other)], lists, [other, split],
    [_jax.ArrayCopySemantics.ALWAYS_COPY] * 2)
for n, (copy, sharding) in enumerate(zip(copies, (other, split))):
    assert copy.sharding == sharding
    np.testing.assert_array_equal(copy, A + n)

# Deleted twice; an error in the place of an array, also of one without elements.
array.delete()
array.delete()
assert array.is_deleted()
refused(lambda: jax.device_put(array, other), "deleted")
for shape in ((8,), (0,), ()):
    kind = jax.ShapeDtypeStruct(shape, np.float32, sharding=SingleDeviceSharding(D[0]))
    lost = _jax._make_error_array(D[0].client, kind, "it was lost")
    for use in (lambda a: a, lambda a: jax.device_put(a, D[5]), jax.jit(lambda a: a + 1)):
        refused(lambda: np.asarray(use(lost)), "it was lost")
    refused(lost.block_until_ready, "it was lost")

# Devices by number.
assert D[0].client.device_from_local_hardware_id(3) == D[3]
refused(lambda: D[0].client.device_from_local_hardware_id(99), "device 99")
print("done")
"""


def test_arrays_of_jaxlib() -> None:
    assert run_on_weft(ARRAYS) == "done\n"
