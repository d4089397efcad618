"""IFRT's documented behaviours of arrays and executions, of those that Weft has."""

from __future__ import annotations

import copy
import gc
import re
import threading
from pathlib import Path

import numpy as np
import pytest

import weft
from weft import Mesh, P
from weft.array.array import Array
from weft.array.stream import HostStream
from weft.colocated import colocated
from weft.errors import WeftError
from weft.run import run

MESH = Mesh(x=2, y=2)
ONE = np.arange(16, dtype=np.float32).reshape(4, 4)
ADD = """
module @add {
  func.func @main(%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<0x4xf32>) {
    %0 = stablehlo.add %a, %b : tensor<4x4xf32>
    %1 = stablehlo.slice %0 [0:0, 0:4] : (tensor<4x4xf32>) -> tensor<0x4xf32>
    return %0, %1 : tensor<4x4xf32>, tensor<0x4xf32>
  }
}
"""


@pytest.fixture(scope="module")
def add():
    return weft.compile(ADD)


def poisoned(like: Array) -> Array:
    """An error in the place of an array (MakeErrorArrays)."""
    return Array.of(None, like.spec).failed(ValueError("lost"))


@pytest.mark.parametrize(
    "given",
    [ONE[::-1], ONE[:, ::-1], ONE.T, np.broadcast_to(ONE[:1], (4, 4)), np.ones((4, 8, 4))[:, 3]],
    ids=["negative", "negative minor", "permuted", "stride 0", "gaps"],
)
def test_host_buffers_of_any_strides(given):
    made = weft.put(given, P("x", "y"), MESH)
    np.testing.assert_array_equal(made, given)
    for shard in made.addressable_shards:
        np.testing.assert_array_equal(shard.data, given[shard.index])


@pytest.mark.parametrize("shape", [(), (0, 4), (1,), (5, 3)])
def test_uneven_and_empty_shards_are_disassembled_and_assembled(shape):
    given = np.arange(np.prod(shape, dtype=int), dtype=np.int32).reshape(shape)
    spec = P(*["x"][: len(shape)])
    made = weft.put(given, spec, MESH)
    whole = np.full(shape, -1, np.int32)
    for shard in made.addressable_shards:
        assert shard.data.shape == whole[shard.index].shape
        whole[shard.index] = shard.data
    np.testing.assert_array_equal(whole, given)


def test_delete_is_idempotent_and_final(add):
    made = weft.put(ONE, P("x"), MESH)
    made.delete()
    made.delete()
    uses = (
        weft.Array.wait,
        weft.Array.block_until_ready,
        np.asarray,
        copy.deepcopy,
        lambda a: a + 1,
        lambda a: weft.put(a, P(), MESH),
        lambda a: add(a, ONE),
        colocated(lambda a: a),
    )
    for use in uses:
        with pytest.raises(WeftError, match="this array was deleted"):
            use(made)
    assert made.shape == (4, 4) and made.mesh == MESH  # metadata outlives it


def test_an_error_propagates_through_copies_programs_and_to_the_host(add):
    bad = poisoned(weft.put(ONE, P("x"), MESH))
    with pytest.raises(ValueError, match="lost"):
        np.asarray(weft.put(bad, P("y"), MESH))
    single = weft.put(ONE)
    results = add(poisoned(single), single)
    assert [r.shape for r in results] == [(4, 4), (0, 4)]
    for result in (*results, *add(results[0], single)):  # of no elements, too
        with pytest.raises(ValueError, match="lost"):
            np.asarray(result)
    np.testing.assert_array_equal(add(single, single)[0], 2 * ONE)


def test_ready_means_all_results(add):
    """A run's results become ready together, after its arguments."""
    first, second = add(ONE, ONE)
    first.wait()
    assert second.is_ready


def test_arrays_outlive_their_program():
    made = weft.compile(ADD)(ONE, ONE)[0]
    gc.collect()
    np.testing.assert_array_equal(made, 2 * ONE)


def test_one_array_may_be_two_arguments_and_is_donated_once():
    step = weft.compile(lambda a, b: a + b, ONE, ONE, donate_argnums=0)
    x = weft.put(ONE)
    y = weft.put(ONE)
    np.testing.assert_array_equal(step(x, y), 2 * ONE)
    assert x.is_deleted and not y.is_deleted
    with pytest.raises(WeftError, match="donated"):
        step(x, y)


def test_one_stream_keeps_program_order_and_two_are_concurrent(add):
    seen: list[str] = []
    streams = [HostStream("one"), HostStream("two")]
    gate = threading.Event()

    class Task:
        calls_host = True
        is_ready = True

        def __init__(self, name: str, waits: bool = False) -> None:
            self.name, self.waits = name, waits

        def __call__(self) -> None:
            if self.waits:
                gate.wait(30)
            seen.append(self.name)

        def abandon(self, error: BaseException) -> None:
            raise error

    streams[0].enqueue(Task("one, first", waits=True))
    streams[0].enqueue(Task("one, second"))
    made = run(add.program.local, ONE, ONE, stream=streams[1])[0]
    np.testing.assert_array_equal(made, 2 * ONE)  # though the first stream is blocked
    assert seen == []
    gate.set()
    streams[0].record().wait()
    assert seen == ["one, first", "one, second"]


def test_device_ids_are_unique_and_lists_keep_their_order():
    devices = weft.devices(MESH)
    assert [d.id for d in devices] == sorted({d.id for d in devices})
    assert {d.process_index for d in devices} == {0}
    made = weft.put(ONE, P(("y", "x")), MESH)
    starts = {s.device.id: s.index[0].start for s in made.addressable_shards}
    assert starts == {0: 0, 1: 2, 2: 1, 3: 3}  # y is the major axis of the split


def test_logical_values_do_not_depend_on_the_sharding():
    for spec in (P(), P("x"), P(None, "y"), P(("x", "y")), P("y", "x")):
        assert weft.put(ONE, spec, MESH).tobytes() == ONE.tobytes()


def test_the_table_names_tests_that_exist():
    """docs/ifrt.md: every row is shown by a test, or says what is missing."""
    tests = Path(__file__).parents[1]
    page = (tests.parent / "docs/ifrt.md").read_text()
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", page)
    assert len(named) > 60
    for file, name in named:
        assert f"def {name}(" in (tests / file).read_text(), f"{file}::{name}"
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert all("::test_" in row or " none: " in row or "shown by" in row for row in rows)
