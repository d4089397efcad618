"""The plugin's arrays in the memory of a device: what is copied there, shared, and waited for.

Two toy devices stand for a GPU: one whose kernels are enqueued on memory that the host cannot
read, and PyTorch's memory, which is exchanged by DLPack.
"""

from __future__ import annotations

import importlib.util

import pytest

from tests.jax.door import REFUSED, run_on_weft, start

HEAD = f"""{REFUSED}
import gc, threading, time
from tests.run.device_target import DeviceTarget, Enqueued, TorchTarget
from weft import targets
for made in (DeviceTarget, Enqueued, TorchTarget):
    targets.BUILT_IN[made.name] = made
import numpy as np, jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from weft.array.memory import DeviceBuffer
from weft.jax.plugin import the_plugin
D = jax.devices()
A = np.arange(64, dtype=np.float32).reshape(8, 8)
mesh = Mesh(np.array(D).reshape(4, 2), ("x", "y"))
on = lambda *spec: NamedSharding(mesh, P(*spec))
memory = the_plugin().client.home.memory
at = lambda array: array.addressable_data(0).unsafe_buffer_pointer()
zero = jax.jit(lambda a: a * 0, donate_argnums=0)
"""

STAYS = (
    HEAD
    + """
def copies(call):
    before = memory.copied_in, memory.copied_out
    made = jax.block_until_ready(call())
    return made, (memory.copied_in - before[0], memory.copied_out - before[1])

def step(w, x):
    loss, grad = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
    return w - 0.1 * grad, loss

# Put once, trained in place, and read once.
train = jax.jit(step, donate_argnums=0)
(w, x), moved = copies(lambda: jax.device_put((A / 64, A + 1)))
assert moved == (2, 0), moved
w, loss = train(w, x)
where = lambda: {place for place, size in memory.alive.items() if size == A.nbytes}
places = where()
def several(w):
    for _ in range(3):
        w, loss = train(w, x)
    return w, loss
(w, loss), moved = copies(lambda: several(w))
assert moved == (0, 0) and where() == places, (moved, places, where())
_, moved = copies(lambda: np.asarray(loss))
assert moved == (0, 1), moved
wanted = A / 64
with jax.default_device(jax.devices("cpu")[0]):
    for _ in range(4):
        wanted, value = jax.jit(step)(wanted, A + 1)
np.testing.assert_allclose(w, wanted, rtol=1e-5)
np.testing.assert_allclose(loss, value, rtol=1e-5)

# Sharded and replicated: what is equal on all devices is put and computed once.
split = jax.device_put(A, on("x", "y"))
crossed = jax.jit(lambda a: a.T @ a, out_shardings=on("y", "x"))
product, moved = copies(lambda: crossed(split))
assert moved == (0, 0), moved
np.testing.assert_allclose(product, A.T @ A)
again, moved = copies(lambda: crossed(product) + product.T)  # other axes, other stacks
assert moved == (0, 0), moved
np.testing.assert_allclose(again, (A.T @ A).T @ (A.T @ A) + (A.T @ A).T)
large = np.ones((64, 128), np.float32)
everywhere = jax.device_put(large, on())
assert len({s.data.unsafe_buffer_pointer() for s in everywhere.addressable_shards}) == 1
summed, moved = copies(lambda: jax.jit(lambda a: a.sum(0))(everywhere))
assert moved == (0, 0) and np.asarray(summed).tolist() == [64] * 128
by_hand = jax.shard_map(lambda a: jax.lax.psum(a, "x"), mesh=mesh, in_specs=P("x", "y"),
                        out_specs=P(None, "y"))
totals, moved = copies(lambda: jax.jit(by_hand)(split))
assert moved == (0, 0), moved
np.testing.assert_allclose(totals, A.reshape(4, 2, 8).sum(0))

# One shard, which begins anywhere, as an argument of its own; and on another device.
odd = jax.device_put(np.arange(24, dtype=np.float32), NamedSharding(mesh, P(("x", "y")))) * 2
plus = jax.jit(lambda a: a + 1)
for n, shard in enumerate(odd.addressable_shards):
    plus(shard.data)  # compiled for this device: the constant is put
    single, moved = copies(lambda: plus(shard.data))
    assert moved == (0, 0), moved
    assert np.asarray(single).tolist() == [6 * n + 1, 6 * n + 3, 6 * n + 5]
other, moved = copies(lambda: jax.device_put(w, D[3]))
assert moved == (0, 0) and other.devices() == {D[3]} and at(other) == at(w)
_, moved = copies(lambda: w.copy())
assert moved == (0, 0), moved

# Memories of the host are the host's.
host, moved = copies(lambda: jax.device_put(split, split.sharding.with_memory_kind("pinned_host")))
assert moved == (0, 8), moved
_, moved = copies(lambda: np.asarray(host))
assert moved == (0, 0), moved
result = jax.jit(lambda a: a * 2, out_shardings=on("x").with_memory_kind("pinned_host"))(host)
np.testing.assert_array_equal(result, A * 2)

# What no kernel computes, and Python's functions, go by way of the host.
sort = jax.jit(lambda a: jnp.sort(a * 2, axis=1) + 1)
made, moved = copies(lambda: sort(w))
assert min(moved) > 0, moved
np.testing.assert_allclose(made, np.sort(np.asarray(w) * 2, 1) + 1, rtol=1e-6)
called = jax.jit(lambda a: jax.pure_callback(lambda a: np.asarray(a) + 1, a, a * 2) * 3)
np.testing.assert_allclose(called(w), (np.asarray(w) * 2 + 1) * 3, rtol=1e-6)
doubled = jax.jit(lambda a: jax.lax.while_loop(lambda a: a.sum() < 1e6, lambda a: a * 2, a))
assert 1e6 <= doubled(x).sum() < 2e6
host_program = jax.jit(lambda a: a + 1, compiler_options={"weft_target": "numpy"})
np.testing.assert_array_equal(host_program(split) * 1, A + 1)

# Deletion frees it; a reader that has asked keeps what it reads.
del split, crossed, product, again, by_hand, totals, odd, shard, other, host, result, summed
del everywhere, made, single
gc.collect()
big = jax.device_put(np.ones((1 << 16,), np.float32)) * 3
live = [*memory.alive.values()].count(big.nbytes)
big.delete()
gc.collect()
until = time.monotonic() + 10
while [*memory.alive.values()].count(1 << 18) == live and time.monotonic() < until:
    the_plugin().handles.drain()  # a thread of JAX's drops what it has waited for
assert [*memory.alive.values()].count(1 << 18) < live
refused(lambda: big + 1, "deleted")
stats = D[0].memory_stats()
assert 0 < stats["bytes_in_use"] <= stats["peak_bytes_in_use"], stats
refused(lambda: jnp.ones(2).__dlpack__(), "a device's memory")
print("done")
"""
)


def test_arrays_stay_on_the_device() -> None:
    assert run_on_weft(STAYS, WEFT_TARGET="enqueued").splitlines()[-1] == "done"


READY = (
    HEAD
    + """
class Holding:  # a kernel that ends when it is told to
    calls_host, is_ready = False, True
    def __init__(self):
        self.go = threading.Event()
        memory.stream.enqueue(self)
    def __call__(self):
        assert self.go.wait(30)
    def abandon(self, error):
        raise error

add = jax.jit(lambda a: a + 1)
donating = jax.jit(lambda a: a + 1, donate_argnums=0)
triple = jax.jit(lambda a: a * 3)
for f in (add, triple, donating, zero):
    f(f(jax.device_put(A)))  # compiled before the device is held: constants are put
x = add(add(jax.device_put(A)))
x.block_until_ready()
held = Holding()
one = add(x)
two = donating(one)  # enqueued, and not waited for
assert not two.is_ready() and not add(x).is_ready() and one.is_deleted()
two.copy_to_host_async()
waited = []
threads = [threading.Thread(target=lambda: waited.append(two.block_until_ready()))
           for _ in range(3)]
for thread in threads:
    thread.start()
read = threading.Thread(target=lambda: waited.append(np.asarray(two)))
read.start()
three = donating(triple(two))
time.sleep(0.1)
assert not waited and not three.is_ready()
held.go.set()
for thread in (*threads, read):
    thread.join(30)
assert len(waited) == 4 and two.is_ready()
np.testing.assert_array_equal(three, (A + 4) * 3 + 1)
for _ in range(200):  # asked for while the device computes them, or before, or after
    x = donating(x)
    if x.is_ready():
        x.block_until_ready()
np.testing.assert_array_equal(x, A + 202)

# Donated while a copy to the host waits: the copy is of what was there.
held = Holding()
y = add(x)
y.copy_to_host_async()
z = zero(y)
held.go.set()
np.testing.assert_array_equal(z, A * 0)

# Errors of a device are raised where its results are read.
class Failing:
    is_ready = False
    def wait(self):
        raise RuntimeError("the device is gone")
record, memory.stream.record = memory.stream.record, Failing
failed = add(x)
memory.stream.record = record
refused(failed.block_until_ready, "the device is gone")
print("done")
held = Holding()
last = add(x)
threading.Timer(0.3, held.go.set).start()
last.is_ready()  # the process ends when the device is done
"""
)


def test_readiness_is_that_of_the_device() -> None:
    made = run_on_weft(READY, timeout=60, WEFT_TARGET="enqueued")
    assert made.splitlines()[-1] == "done"


EXCHANGED = (
    HEAD
    + """
import torch
from jax.dlpack import from_dlpack

# In, without a copy; not written over, and alive as long as it is read.
tensor = torch.arange(1000.0)
array = from_dlpack(tensor)
assert at(array) == tensor.data_ptr() and array.devices() == {D[0]}
kept = array * 2
zero(array).block_until_ready()
assert float(tensor.sum()) == 499500 and float(kept.sum()) == 999000
array = from_dlpack(torch.ones(1000))
gc.collect()
taken = [torch.zeros(1000) for _ in range(50)]
assert array.sum() == 1000
assert at(from_dlpack(tensor, copy=True)) != tensor.data_ptr()
refused(lambda: from_dlpack(tensor[1:], copy=False), "requires a copy")
np.testing.assert_array_equal(from_dlpack(tensor[1:]), tensor[1:])
turned = from_dlpack(torch.arange(6).reshape(2, 3).T)
np.testing.assert_array_equal(turned, [[0, 3], [1, 4], [2, 5]])
for dtype in (torch.bfloat16, torch.float16, torch.int8, torch.bool, torch.complex64):
    given = torch.ones((2, 3), dtype=dtype)
    array = from_dlpack(given)
    assert at(array) == given.data_ptr() and np.asarray(array).shape == (2, 3), dtype
    back = torch.from_dlpack(array)
    assert back.data_ptr() == given.data_ptr() and back.dtype == dtype
with jax.enable_x64(True):
    given = torch.arange(6, dtype=torch.float64)
    assert at(from_dlpack(given)) == given.data_ptr()
for shape in ((), (0,), (2, 0, 3)):
    assert from_dlpack(torch.ones(shape)).shape == torch.from_dlpack(jnp.ones(shape)).shape == shape

# Out, without a copy.
array = jnp.arange(1000.0) + 1
view = torch.from_dlpack(array)
assert view.data_ptr() == at(array)
array.delete()
churned = [jnp.zeros(1000) + n for n in range(8)]
assert float(view.sum()) == 500500
array = jnp.arange(1000.0) + 1
view = torch.from_dlpack(array)
zero(array).block_until_ready()
assert float(view.sum()) == 500500 and array.is_deleted()
split = jax.device_put(A, on("x", "y"))
assert torch.from_dlpack(split.addressable_shards[3].data).tolist() == A[2:4, 4:].tolist()
refused(lambda: torch.from_dlpack(split), "")
print("done")
"""
)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_memory_is_exchanged_with_torch() -> None:
    assert run_on_weft(EXCHANGED, WEFT_TARGET="tensors").splitlines()[-1] == "done"


def test_a_target_that_cannot_run_says_what_to_install() -> None:
    hidden = "import sys; sys.modules['triton'] = None\nimport jax\njax.numpy.ones(2) + 1"
    done = start(hidden, "weft", devices=1, timeout=60, WEFT_TARGET="triton")
    assert done.returncode and "pip install 'weft[gpu]'" in done.stderr, done.stderr


SAME = """
import jax, jax.numpy as jnp, numpy as np
import weft
from weft.array.torch_memory import TorchMemory
from weft.jax.plugin import the_plugin

def step(w, x):
    loss, grad = jax.value_and_grad(lambda w: jnp.mean(jax.nn.softmax(x @ w) ** 2))(w)
    return w - 0.1 * grad, loss

w, x = np.linspace(-1, 1, 12, dtype="f").reshape(4, 3), np.ones((5, 4), "f")
compiled = weft.compile(step, w, x, target="triton")
jitted, ours, theirs = jax.jit(step, donate_argnums=0), jax.device_put(w), w
assert isinstance(the_plugin().client.home.memory, TorchMemory)
for _ in range(3):
    (ours, loss), (theirs, other) = jitted(ours, x), compiled(theirs, x)
    assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()
    assert np.asarray(loss).tobytes() == np.asarray(other).tobytes()
print("done")
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_numbers_are_those_of_the_triton_target() -> None:
    made = run_on_weft(SAME, devices=2, WEFT_TARGET="triton", TRITON_INTERPRET="1")
    assert made.splitlines()[-1] == "done"
