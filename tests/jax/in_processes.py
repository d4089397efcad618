"""What each process of `jax.distributed` runs: global arrays and programs over all processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback, multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import weft
from weft.jax.buffers.client import the_client
from weft.jax.joining import the_cluster

Array = np.ndarray[Any, Any]


def host(array: Any) -> Array:
    """A global array, gathered from all processes."""
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def on(mesh: Mesh, *spec: Any) -> NamedSharding:
    return NamedSharding(mesh, P(*spec))


def devices() -> Mesh:
    """Process by process along x, the devices of one along y."""
    mine = len(jax.local_devices())
    return Mesh(np.array(jax.devices()).reshape(-1, mine), ("x", "y"))


def check_devices() -> None:
    index, count = jax.process_index(), jax.process_count()
    owners = [d.process_index for d in jax.devices()]
    assert owners == sorted(owners) and {*owners} == {*range(count)}
    assert jax.local_devices() == [d for d in jax.devices() if d.process_index == index]
    assert [d.local_hardware_id for d in jax.local_devices()] == [*range(owners.count(index))]
    assert float(jnp.arange(4.0).sum()) == 6  # on a device of its own


def check_arrays() -> None:
    mesh, index = devices(), jax.process_index()
    rows = np.arange(12, dtype=np.float32).reshape(4, 3) + 100 * index
    x = jax.make_array_from_process_local_data(on(mesh, ("x", "y")), rows)
    assert x.shape == (8, 3) and not x.is_fully_addressable
    for shard in x.addressable_shards:
        assert shard.device.process_index == index
        first = (shard.index[0].start or 0) - 4 * index
        np.testing.assert_array_equal(shard.data, rows[first : first + 2])
    want = np.concatenate([rows - 100 * index, rows - 100 * index + 100])
    np.testing.assert_array_equal(host(x), want)
    put = jax.device_put(want, on(mesh, "y"))
    np.testing.assert_array_equal(host(jax.device_put(put, on(mesh, None, None))), want)
    back = jax.jit(lambda x: x[::-1] * 2, out_shardings=on(mesh, "y", None))(x)
    np.testing.assert_array_equal(host(back), want[::-1] * 2)
    whole = jax.jit(lambda x: x.T @ x, out_shardings=on(mesh))(x)
    np.testing.assert_array_equal(whole, want.T @ want)  # is replicated: no gathering


def check_utilities() -> None:
    index = jax.process_index()
    assert multihost_utils.process_allgather(np.array([index])).tolist() == [[0], [1]]
    assert multihost_utils.broadcast_one_to_all(np.array([index + 7])).tolist() == [7]
    multihost_utils.sync_global_devices("here")
    multihost_utils.assert_equal(np.ones(3))
    mesh = devices()
    made = multihost_utils.host_local_array_to_global_array(np.full((2, 2), index), mesh, P("x"))
    assert made.shape == (4, 2)
    local = multihost_utils.global_array_to_host_local_array(made, mesh, P("x"))
    assert np.asarray(local).tolist() == [[index] * 2] * 2


def check_orders_of_devices() -> None:
    """Meshes whose minor axis runs over processes, and programs on a device of each."""
    want = np.arange(32, dtype=np.float32).reshape(4, 8)
    crossed = Mesh(devices().devices.T, ("y", "x"))
    every_second = Mesh(devices().devices[:, 0], ("x",))
    for mesh, spec in ((crossed, ("y", "x")), (crossed, (("x", "y"),)), (every_second, ("x",))):
        x = jax.device_put(want, on(mesh, *spec))
        made = jax.jit(lambda x: jnp.sin(x) @ x.T, out_shardings=on(mesh))(x)
        np.testing.assert_allclose(made, np.sin(want) @ want.T, rtol=1e-5)
        np.testing.assert_array_equal(host(x), want)


def check_collectives() -> None:
    mesh, count = devices(), len(jax.devices())
    want = np.arange(4 * count, dtype=np.int32).reshape(count, 4)
    x = jax.device_put(want, on(mesh, ("x", "y")))

    def shard(x: Any) -> Any:
        around = jax.lax.ppermute(x, ("x", "y"), [(n, (n + 1) % count) for n in range(count)])
        total = jax.lax.psum(x, ("x", "y"))
        most = jax.lax.pmax(x, "x")
        apart = jax.lax.all_to_all(x, ("x", "y"), 1, 0, tiled=True)
        every = jax.lax.all_gather(x, "y", axis=0, tiled=True)
        return around, total, most, apart, every.sum(0, keepdims=True) + jax.lax.axis_index("x")

    spec = P(("x", "y"))
    mapped = jax.shard_map(shard, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    around, total, most, apart, every = map(host, jax.jit(mapped)(x))
    np.testing.assert_array_equal(around, np.roll(want, 1, 0))
    np.testing.assert_array_equal(total, np.tile(want.sum(0), (count, 1)))
    by_process = want.reshape(2, -1, 4)
    np.testing.assert_array_equal(most, np.tile(by_process.max(0), (2, 1)))
    np.testing.assert_array_equal(apart.reshape(4, -1), want.T)
    sums = by_process.sum(1, keepdims=True) + np.arange(2)[:, None, None]
    np.testing.assert_array_equal(every, np.repeat(sums, count // 2, 1).reshape(count, 4))


def check_callbacks() -> None:
    """The process of the first device calls once for all; results are sent, and failures, too."""
    x = jax.device_put(np.arange(8, dtype=np.float32), on(devices(), "x"))
    calls: list[float] = []
    shown: list[float] = []

    def called(value: Any) -> Array:
        calls.append(float(value))
        if value < 0:
            raise ValueError("no more data")
        return np.float32(value + len(calls))

    out = jax.ShapeDtypeStruct((), np.float32)

    @jax.jit
    def twice(x: Any) -> Any:
        jax.debug.callback(lambda most: shown.append(float(most)), x.max())
        two = [io_callback(called, out, total) for total in (x.sum(), 2 * x.sum())]
        return sum(two), jax.pure_callback(lambda x: np.asarray(x)[::-1], x, x)

    total, turned = twice(x)
    assert float(total) == 28 + 56 + 1 + 2  # sent to the process that did not call
    np.testing.assert_array_equal(host(turned), np.arange(8)[::-1])
    jax.effects_barrier()
    first = jax.process_index() == 0
    assert (shown, sorted(calls)) == (([7], [28, 56]) if first else ([], []))
    said = "no more data" if first else "the Python function failed in the process of device 0"
    with pytest.raises(jax.errors.JaxRuntimeError, match=said):
        jax.block_until_ready(jax.jit(lambda x: io_callback(called, out, x.sum()))(-x))
    np.testing.assert_array_equal(host(x + 1), np.arange(8) + 1)


def check_programs_of_some_processes() -> None:
    """A process without a device of a program goes through it, and has no shard of the result."""
    mine = jax.process_index() == 1
    there = Mesh(jax.local_devices(process_index=1), ("y",))
    want = np.arange(16, dtype=np.float32).reshape(4, 4)
    x = jax.device_put(want, on(there, "y"))
    step = jax.jit(lambda x: (x @ x.T, x.sum()))
    for _ in range(3):  # native code takes over
        made, total = step(x)
        jax.block_until_ready(made)
        assert len(made.addressable_shards) == len(total.addressable_shards) == 2 * mine
        assert made.sharding.device_set == {*there.devices.flat}
    if mine:
        np.testing.assert_allclose(made, want @ want.T)
        assert float(total) == want.sum()
    x.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        step(x)


def check_training() -> None:
    """Donated state in steps with a loop; equal to one device."""
    mesh = devices()

    def step(state: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            h = jax.lax.fori_loop(0, 3, lambda _, h: jnp.tanh(h @ w["a"]), x)
            return ((h @ w["b"]) ** 2).mean()

        value, grads = jax.value_and_grad(loss)(state)
        return jax.tree.map(lambda w, g: w - 0.1 * g, state, grads), value

    keys = jax.random.split(jax.random.key(0), 3)
    state = {"a": jax.random.normal(keys[0], (8, 8)), "b": jax.random.normal(keys[1], (8, 4))}
    state = jax.tree.map(np.asarray, state)
    x = np.asarray(jax.random.normal(keys[2], (8, 8)))
    alone, parted = jax.jit(step), jax.jit(step, donate_argnums=0)
    split = {"a": on(mesh, None, "y"), "b": on(mesh, "y", None)}
    there, data = jax.device_put(state, split), jax.device_put(x, on(mesh, "x"))
    here = state
    for _ in range(4):
        here, wanted = alone(here, x)
        there, value = parted(there, data)
        np.testing.assert_allclose(value, wanted, rtol=1e-5)
    for name, array in there.items():
        np.testing.assert_allclose(host(array), here[name], rtol=1e-4, atol=1e-5)


def check_sums() -> None:
    """Small sums run without Python, unless a process is late; donated state and all kinds."""
    mesh, index, count = devices(), jax.process_index(), len(jax.devices())
    axes = ("x", "y")

    def step(state: Any, x: Any, y: Any) -> Any:
        total, mean = jax.lax.psum(x, axes)[0], jax.lax.pmean(y, axes)[0]
        return state + total, x + 1, mean * 2

    specs = (P(), P(axes), P(axes))
    mapped = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=(P(), P(axes), P()))
    stepped = jax.jit(mapped, donate_argnums=(0, 1))
    smallest = jax.jit(lambda x: x.min())
    rows = np.arange(3 * count, dtype=np.int32).reshape(count, 3)
    floats = np.sin(rows, dtype=np.float32)
    want, state = np.zeros(3, np.int32), jax.device_put(np.zeros(3, np.int32), on(mesh))
    x, y = jax.device_put(rows, on(mesh, axes)), jax.device_put(floats, on(mesh, axes))
    cluster = the_cluster(the_client().processes)
    shared = cluster.wire.shared
    assert shared is not None
    before, natives = cluster.coordination.activity.steps, shared.state.steps
    for n in range(40):
        if n % 16 == 8 + index:
            time.sleep(0.01)  # later than native code waits
        state, x, mean = stepped(state, x, y)
        assert int(smallest(x)) == n + 1
        want = want + (rows + n).sum(0)
        np.testing.assert_array_equal(state, want)
    np.testing.assert_allclose(mean, 2 * floats.mean(0), rtol=1e-6)
    assert cluster.coordination.activity.steps - before == 80
    if count == jax.process_count():
        assert 0 < shared.state.steps - natives < 80


def check_checkpoints() -> None:
    """Each process writes its shards; another sharding reads them."""
    mesh, folder = devices(), os.environ["CHECKPOINT"]
    want = np.arange(64, dtype=np.float32).reshape(8, 8)
    spread = {"a": on(mesh, "y", "x"), "b": on(mesh, None, "y"), "c": on(mesh)}
    state = {name: jax.device_put(want + n, s) for n, (name, s) in enumerate(spread.items())}
    saved = weft.save_state({**state, "step": 7}, folder, background=True)
    saved.wait()
    like = {"a": jax.ShapeDtypeStruct((8, 8), np.float32, sharding=on(mesh, ("x", "y")))}
    found = weft.load_state(folder, like)
    np.testing.assert_array_equal(host(found["a"]), want)


def check_compiled_alone() -> None:
    """What only one process compiles makes nobody wait."""
    mesh = devices()
    if jax.process_index() == 0:
        given = jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=on(mesh, "x"))
        made = jax.jit(lambda x: (x @ x.T).sum()).lower(given).compile()
        assert "all_reduce" in made.as_text() or "all-reduce" in made.as_text()


def check_other_programs() -> None:
    """A program that is another one elsewhere is found before its first collective."""
    mesh, index = devices(), jax.process_index()
    x = jax.device_put(np.ones((8, 2), np.float32), on(mesh, "x"))
    with pytest.raises(jax.errors.JaxRuntimeError, match="differs between workers"):
        jax.block_until_ready(jax.jit(lambda x: (x * (index + 2)).sum())(x))


def killed() -> None:
    """The other process fails at its next collective."""
    mesh = devices()
    x = jax.device_put(np.ones((8, 2), np.float32), on(mesh, "x"))
    total = jax.jit(lambda x: x.sum())
    assert float(total(x)) == 16
    if jax.process_index() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    print(float(total(x)))


CHECKS = {name[6:]: check for name, check in globals().items() if name.startswith("check_")}


def main(*names: str) -> None:
    if os.environ.get("UNEVEN"):
        os.environ["WEFT_DEVICES"] = str(2 - int(os.environ["RANK"]))
    jax.distributed.initialize()
    for name in names or CHECKS:
        (killed if name == "killed" else CHECKS[name])()
        print(name, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
