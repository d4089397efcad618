"""Memories and layouts through the door: asked for by name, told, and kept."""

from __future__ import annotations

from tests.jax.door import run_on_weft

HEAD = """
from functools import partial
from jax.ad_checkpoint import checkpoint_name
import numpy as np, jax, jax.numpy as jnp
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding
D = jax.devices()
A = np.arange(64, dtype=np.float32).reshape(8, 8)
mesh = Mesh(np.array(D).reshape(4, 2), ("x", "y"))
device = NamedSharding(mesh, P("x"), memory_kind="device")
host = device.with_memory_kind("pinned_host")
"""

MEMORIES = (
    HEAD
    + """
def check(array, whole, sharding):
    assert array.sharding == sharding, array.sharding
    for shard in array.addressable_shards:
        assert shard.data.sharding.memory_kind == sharding.memory_kind
        np.testing.assert_allclose(np.asarray(shard.data), whole[shard.index], rtol=1e-6)

on_host, on_device = jax.device_put(A, host), jax.device_put(A, device)
check(on_host, A, host)
check(jax.device_put(on_host, device), A, device)
check(jax.device_put(on_device, host), A, host)
for kind in ("pinned_host", "unpinned_host"):
    single = SingleDeviceSharding(D[2], memory_kind=kind)
    check(jax.device_put(on_device, single), A, single)
assert [m.kind for m in D[3].addressable_memories()] == ["device", "pinned_host", "unpinned_host"]
check(jax.jit(lambda a: a * 2, out_shardings=host)(A), A * 2, host)
check(jax.jit(lambda a: jax.device_put(a, device) * 2)(on_host), A * 2, device)
check(jax.jit(lambda a: a)(on_host), A, host)
store = jax.jit(lambda a: jax.device_put(a, host), donate_argnums=0)
check(store(jax.device_put(A, device)), A, host)
Space = jax.memory.Space
there = lambda a: jax.device_put(jax.device_put(a, Space.Device) * 2, Space.Host)
check(jax.jit(there)(on_host), A * 2, host)
assert jax.device_put(A, jax.memory.Space.Host).sharding.memory_kind == "pinned_host"

double = jax.jit(lambda a: jax.device_put(a, device) * 2, out_shardings=host)
compiled = double.lower(on_host).compile()
assert compiled.output_shardings == host and compiled.input_shardings[0] == (host,)
assert compiled.runtime_executable().get_output_memory_kinds() == [["pinned_host"]]

policy = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[], names_which_can_be_offloaded=["z"],
    offload_src="device", offload_dst="pinned_host")

@partial(jax.remat, policy=policy)
def offloads(x):
    return jnp.sin(checkpoint_name(jnp.sin(x), "z"))

found = jax.jit(jax.grad(lambda x: offloads(x).sum()))(A / 64)
np.testing.assert_allclose(found, np.cos(np.sin(A / 64)) * np.cos(A / 64), rtol=1e-5)

from jax.experimental import compute_on as places

def on_the_host(a):
    with places.compute_on("device_host"):
        b = a + 1
    return b * 2

call_on = places.compute_on
if hasattr(places, "compute_on2"):  # JAX 0.10, where the other is a context
    call_on = places.compute_on2
    np.testing.assert_array_equal(jax.jit(on_the_host)(A), (A + 1) * 2)
more = call_on(lambda a: a + 1, compute_type="device_host", out_memory_spaces=Space.Device)
np.testing.assert_array_equal(jax.jit(lambda a: more(a) * 2)(A), (A + 1) * 2)
try:
    jax.device_put(A, device.with_memory_kind("attic"))
except ValueError as error:
    print("Could not find memory" in str(error))
"""
)


def test_memories() -> None:
    assert run_on_weft(MEMORIES) == "True\n"


LAYOUTS = (
    HEAD
    + """
rows, columns = Layout((0, 1)), Layout((1, 0))
plain = jax.device_put(A, device)
assert plain.format.layout.major_to_minor == (0, 1)
inside, outside = Format(rows, device), Format(columns, device)
made = jax.jit(lambda a: a * 2, in_shardings=inside, out_shardings=outside)(A)
assert made.format.layout.major_to_minor == (1, 0)
np.testing.assert_array_equal(made, A * 2)
for shard in made.addressable_shards:
    np.testing.assert_array_equal(np.asarray(shard.data), 2 * A[shard.index])
np.testing.assert_array_equal(jax.jit(lambda a: a + 1)(made), A * 2 + 1)
put = jax.device_put(jnp.asarray(A), Format(columns, SingleDeviceSharding(D[0])))
assert put.format.layout.major_to_minor == (1, 0)
np.testing.assert_array_equal(put, A)
np.testing.assert_array_equal(np.from_dlpack(put), A)
import ctypes
there = (ctypes.c_float * A.size).from_address(put.unsafe_buffer_pointer())
assert [*there] == A.T.reshape(-1).tolist()
np.testing.assert_array_equal(jax.device_put(put, device), A)
compiled = jax.jit(lambda a, b: (a.T, b)).lower(A, A).compile()
formats = [*compiled.input_formats[0], *compiled.output_formats]
assert [f.layout.major_to_minor for f in formats] == [(0, 1)] * 4
any_ = Format(Layout.AUTO)
auto = jax.jit(lambda a: a.T, in_shardings=any_, out_shardings=any_)
compiled = auto.lower(jax.ShapeDtypeStruct(A.shape, A.dtype)).compile()
assert compiled.output_formats.layout.major_to_minor == (1, 0)
np.testing.assert_array_equal(compiled(A), A.T)
nested = jax.jit(lambda a: jnp.sin(jax.jit(lambda b: b.transpose(1, 2, 0))(a)) * 2 + 1)
left_open = jax.jit(lambda a: (nested(a), a.sum(0)), out_shardings=any_)
turned, summed = left_open(A.reshape(2, 4, 8))
assert turned.format.layout.major_to_minor == (2, 0, 1)
assert summed.format.layout.major_to_minor == (0, 1)
np.testing.assert_allclose(turned, np.sin(A.reshape(2, 4, 8).transpose(1, 2, 0)) * 2 + 1, rtol=1e-5)
try:
    jax.jit(lambda a: a, out_shardings=Format(Layout((0, 1), ((8, 128),)), device))(A)
except jax.errors.JaxRuntimeError as error:
    print("an order of dims" in str(error))
"""
)


def test_layouts() -> None:
    assert run_on_weft(LAYOUTS) == "True\n"
