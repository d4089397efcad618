"""Arrays of which a process has some shards: what it knows of them, puts, computes and refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.tolerance import assert_close
from weft.array import Array, devices, put
from weft.errors import WeftError
from weft.executable.process import Process
from weft.mesh import Mesh, P
from weft.run.in_memory import Mailboxes

MESH = Mesh(data=2, model=4)
X = np.arange(8 * 12, dtype=np.float32).reshape(8, 12)


def processes(count: int, per_process: int = 1) -> tuple[Mailboxes, list[Process]]:
    """Processes that are threads, by their first devices, where these follow each other."""
    boxes = Mailboxes()
    return boxes, [boxes.process(n * per_process) for n in range(count)]


def run(boxes: Mailboxes, work: Callable[[Process], Any], made: list[Process]) -> list[Any]:
    """What every process gives."""
    return boxes.run([partial(work, process) for process in made])


def alone(device: int) -> Process:
    """A process that never meets others."""
    return Mailboxes().process(device)


@pytest.mark.parametrize(
    ("stacked", "device", "places", "index"),
    [
        (["model"], 5, (4, 5, 6, 7), 1),
        (["data"], 2, (2, 6), 2),
        ([], 6, (6,), 6),
        (["model:(2)2"], 6, (6, 7), 3),
        (["model:(1)2", "data"], 3, (1, 3, 5, 7), 1),
    ],
)
def test_a_process_holds_its_own_shards(stacked, device, places, index):
    for spec in (P("data", "model"), P("model"), P(None, "data"), P(("model", "data")), P()):
        array = put(X, spec, MESH, stacked=stacked, process=alone(device))
        whole = put(X, spec, MESH)
        assert array.shape == X.shape and array.sharding == whole.sharding
        assert not array.is_fully_addressable and whole.is_fully_addressable
        assert array.is_fully_replicated is whole.is_fully_replicated is (spec == P())
        assert tuple(d.id for d in array.addressable_devices) == places
        assert {d.process_index for d in array.addressable_devices} == {index}
        assert len(array.shards) == 8
        for shard, expected in zip(array.shards, whole.shards, strict=True):
            assert shard.index == expected.index and shard.device.id == expected.device.id
            if shard.device.id in places:
                assert np.array_equal(shard.data, expected.data)
            else:
                assert shard.data is None and shard.device.process_index != index
        found = [shard.device.id for shard in array.addressable_shards]
        assert tuple(found) == places


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_together_they_hold_the_whole(data):
    axes = ["data", "model", "model:(1)2", "model:(2)2"]
    stacked = data.draw(st.lists(st.sampled_from(axes), max_size=2, unique=True))
    if len({axis.split(":")[0] for axis in stacked}) < len(stacked) and "model" in stacked:
        stacked = ["model"]
    shape = tuple(data.draw(st.lists(st.integers(0, 9), min_size=2, max_size=2)))
    spec = data.draw(st.sampled_from([P("model"), P("data", "model"), P(("model", "data")), P()]))
    whole = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    seen, owners = np.full(shape, -1, np.int32), {}
    for device in devices(MESH, stacked=stacked):
        array = put(whole, spec, MESH, stacked=stacked, process=alone(device.id))
        assert device in array.addressable_devices or array.is_fully_addressable
        for shard in array.addressable_shards:
            seen[shard.index] = shard.data
            owners.setdefault(shard.device.id, set()).add(shard.device.process_index)
    assert np.array_equal(seen, whole)
    assert sorted(owners) == [*range(8)] and all(len(found) == 1 for found in owners.values())


def test_the_whole_of_an_array_is_had_where_it_is():
    replicated = put(X, P(), MESH, stacked=["data"], process=alone(3))
    assert np.array_equal(np.asarray(replicated), X)
    split = put(X, P("model"), MESH, stacked=["data"], process=alone(3))
    for ask in (np.asarray, Array.numpy, np.from_dlpack, lambda x: x[0], lambda x: put(x, P())):
        with pytest.raises(WeftError) as refused:
            ask(split)
        assert str(refused.value) == (
            "error: this array is not fully addressable: process 3 has 2 of 8 devices, and the "
            'array is split over all as <mesh<["data"=2, "model"=4]>, [{"model"}, {}]>\n'
            "help: read addressable_shards, call gathered() on all workers, or have the program "
            "replicate it: out_shardings=P()"
        )
    copy = split.copy()
    assert not np.shares_memory(copy.addressable_shards[0].data, X)
    assert np.array_equal(copy.addressable_shards[1].data, split.addressable_shards[1].data)


def test_a_process_has_to_say_which_it_is():
    with pytest.raises(WeftError, match="does not know which devices"):
        put(X, P("data"), MESH, stacked=["model"])
    with pytest.raises(WeftError, match="device 9, which is not in the mesh"):
        put(X, P("data"), MESH, stacked=["model"], process=alone(9))
    with pytest.raises(WeftError, match="cannot be stacked"):
        put(X, P(), Mesh(x=6), stacked=["x:(1)2", "x:(2)3", "x:(1)3"], process=alone(0))
    assert put(X, P("data"), MESH, stacked=["data", "model"]).is_fully_addressable


def test_devices_of_permuted_meshes():
    mesh = Mesh((("x", 2), ("y", 2)), device_ids=[3, 1, 2, 0])
    assert [(d.id, d.process_index) for d in devices(mesh, stacked=["y"])] == [
        (3, 0), (1, 0), (2, 1), (0, 1),
    ]  # fmt: skip
    array = put(X, P("x"), mesh, stacked=["y"], process=alone(0))
    assert [(s.device.id, s.index[0]) for s in array.addressable_shards] == [
        (2, slice(4, 8)),
        (0, slice(4, 8)),
    ]


def step(x: Any, w: Any) -> Any:
    import jax.numpy as jnp

    h = jnp.tanh(x @ w)
    return h, (h * h).sum(), h.sum(0)


@pytest.mark.parametrize("target", ["numpy", "llvm"])
@pytest.mark.parametrize(
    ("stacked", "first"), [((), range(8)), (("model",), (0, 4)), (("data",), range(4))], ids=str
)
def test_compiled_functions_take_and_give_arrays_in_every_process(stacked, first, target):
    pytest.importorskip("jax")
    shardings = {"in_shardings": (P("data"), P(None, "model"))}
    shardings["out_shardings"] = (P("data", "model"), P(), P("model"))
    w = np.linspace(-1, 1, 12 * 8, dtype=np.float32).reshape(12, 8)
    options = {"mesh": MESH, "target": target, **shardings}
    expected = weft.compile(step, X / 96, w, **options)(X / 96, w)
    boxes, _ = processes(0)

    def work(process: Process) -> Any:
        mine = {"stacked": stacked, "process": process}
        x = put(X / 96, P("data"), MESH, **mine)
        function = weft.compile(step, X / 96, w, **options, **mine)
        first, *_ = function(x, w)  # whole arguments are split as the program takes them
        return (first, *function(x, put(w, P(None, "model"), MESH, **mine)))

    made = [boxes.process(device) for device in first]
    for results in run(boxes, work, made):
        assert not any(array.is_fully_addressable for array in results)
        for array, theirs in zip(results, (expected[0], *expected), strict=True):
            pieces = {shard.device.id: shard for shard in theirs.shards}
            assert len(array.addressable_shards) == 8 // len(first)
            for shard in array.addressable_shards:
                assert shard.index == pieces[shard.device.id].index
                assert_close(shard.data, pieces[shard.device.id].data, 1 << 8)
        assert_close(np.asarray(results[2]), np.asarray(expected[1]), 1 << 8)  # replicated
        with pytest.raises(WeftError, match="not fully addressable"):
            np.asarray(results[0])


def test_arrays_of_another_process_are_not_taken():
    pytest.importorskip("jax")
    mine = {"stacked": ["model"], "process": alone(0)}
    double = weft.compile(lambda x: x * 2, X, mesh=MESH, in_shardings=P("data"), **mine)
    assert not double(put(X, P("data"), MESH, **mine)).is_fully_addressable
    theirs = put(X, P("data"), MESH, stacked=["model"], process=alone(4))
    with pytest.raises(WeftError, match="not fully addressable: process 1"):
        double(theirs)
    (shard, *_) = double(put(X, P("data"), MESH)).addressable_shards  # whole: it takes its own
    assert np.array_equal(shard.data, 2 * X[:4])
