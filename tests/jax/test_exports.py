"""Exports through the door: what others read of an array stays as it is when that is donated."""

from __future__ import annotations

from tests.jax.door import run_on_weft

EXPORTED = """
import ctypes, gc
import numpy as np, jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
split = NamedSharding(Mesh(jax.devices(), "d"), P("d"))
donate = jax.jit(lambda x: x * 2 + 1, donate_argnums=0)
def at(x):
    return np.ctypeslib.as_array((ctypes.c_float * x.size).from_address(x.unsafe_buffer_pointer()))
one = [np.asarray, np.from_dlpack, at, jnp.from_dlpack, lambda x: np.asarray(x)[1:][::-1],
       lambda x: jax.device_put(x, jax.devices()[1]), lambda x: x.addressable_shards[0].data]
many = [np.asarray, lambda x: x.addressable_shards[1].data,
        lambda x: at(x.addressable_shards[1].data)]
for size in (16, 100_000):
    for ways, where in ((one, jax.devices()[0]), (many, split)):
        for way in ways:
            for again in range(4):  # native code takes over after some calls
                x = jax.device_put(jnp.arange(size, dtype=jnp.float32), where) + 1
                seen = way(x)
                before = np.array(seen)
                y = donate(x).block_until_ready()
                assert x.is_deleted()
                if not isinstance(seen, jax.Array) or not seen.is_deleted():
                    np.testing.assert_array_equal(np.asarray(seen), before)
                np.testing.assert_array_equal(y, np.arange(1, size + 1) * 2 + 1)
                for refused in (np.asarray, lambda x: x.addressable_shards[0].data):
                    try:
                        refused(x)
                    except Exception as error:
                        assert "deleted" in str(error), error
                    else:
                        raise AssertionError("a deleted array was exported")
assert not np.asarray(jnp.ones(3)).flags.writeable
x = jnp.zeros(1_000_000) + 1
assert np.asarray(donate(x)).sum() == 3e6
print("ok")
"""

THREADS = """
import sys, threading, time
import numpy as np, jax, jax.numpy as jnp
sys.setswitchinterval(1e-5)
size = 20_000
fresh = jax.jit(lambda k: jnp.zeros(size) + k)
donate = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
both = jax.jit(lambda x: jnp.stack([x.min(), x.max()]))
def of(array):
    return array.min(), array.max()
reads = [lambda x: tuple(np.asarray(both(x))), lambda x: of(np.asarray(x))]
wrong, shown, done, begun = [], [None], threading.Event(), [0]
def watch(read):
    while not done.is_set():
        if shown[0] is None:
            continue
        array, expected = shown[0]
        begun[0] += 1
        try:
            found = read(array)
        except Exception as error:
            if "delete" not in str(error) and "donated" not in str(error):
                wrong.append(error)
            continue
        if found != (expected, expected):
            wrong.append((found, expected))
threads = [threading.Thread(target=watch, args=(read,)) for read in reads]
[thread.start() for thread in threads]
for number in range(1, 60):
    made = fresh(np.float32(number)).block_until_ready()
    before, shown[0] = begun[0], (made, number)
    while begun[0] == before:
        time.sleep(0)
    donate(made).block_until_ready()
done.set()
[thread.join() for thread in threads]
assert not wrong, wrong[:3]
print("ok")
"""


def test_no_donation_changes_what_was_exported():
    assert run_on_weft(EXPORTED, devices=2).endswith("ok\n")


def test_threads_read_what_was_there_before_a_donation():
    assert run_on_weft(THREADS, devices=1).endswith("ok\n")
