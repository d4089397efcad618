"""Exported memory: read-only, and pinned against donation as long as a view is alive."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft
from weft.array.stream import DEFAULT
from weft.ir.types import DTYPES, DType
from weft.native.cpython import address_of

SIZES = (2, 100_000)  # of numpy's memory, and of the room's
TYPES = ("float32", "bfloat16")
WAYS = {"whole": weft.P(), "split": weft.P("d")}
MESH = weft.Mesh(d=2)


@cache
def programs(dtype: str, size: int, way: str, target: str) -> tuple[Any, Any]:
    """A program that makes an array in memory of Weft's own, and one that takes it over."""
    split = WAYS[way]
    given = {"mesh": MESH, "in_shardings": split, "out_shardings": split, "target": target}
    take_over = weft.compile(lambda x: x + x + x, donate_argnums=0, **given)
    return weft.compile(lambda x: x + x, **given), take_over


def computed(
    size: int, dtype: str = "float32", way: str = "whole", target: str = "llvm"
) -> tuple[weft.Array, Any]:
    """An array whose memory is Weft's own, and a program that takes it over."""
    make, take_over = programs(dtype, size, way, target)
    return make(np.ones(size, jnp.dtype(dtype))).wait(), take_over


def memory(array: weft.Array) -> int:
    """Where the elements lie."""
    return address_of(array.wait().stacked.data)


EXPORTS: dict[str, Callable[[weft.Array], Any]] = {
    "numpy": lambda x: np.asarray(x),
    "slice of a slice": lambda x: np.asarray(x)[1:][::-1],
    "transposed view": lambda x: x.numpy().reshape(-1, 1).T,
    "shard": lambda x: x.shards[0].data,
    "index": lambda x: x[:2],
    "JAX": lambda x: x.to_jax(),
    "put elsewhere": lambda x: weft.put(x, weft.P(), weft.Mesh(e=2)),
    "DLPack": lambda x: np.from_dlpack(x) if x.dtype != jnp.bfloat16 else x.numpy(),
    "JAX by DLPack": lambda x: jax.dlpack.from_dlpack(x) if x.dtype != jnp.bfloat16 else 0,
    "bytes": lambda x: np.frombuffer(memoryview(x.numpy().view(np.uint8)), np.uint8),
}


@pytest.mark.parametrize("target", ["llvm", "numpy"])
@pytest.mark.parametrize("way", WAYS)
def test_no_donation_changes_what_was_exported(way: str, target: str) -> None:
    for size in SIZES:
        for dtype in TYPES:
            for name, export in EXPORTS.items():
                made, donate = computed(size, dtype, way, target)
                seen = export(made)
                before = np.array(seen)
                after = donate(made).wait()
                same = np.asarray(seen).tobytes() == before.tobytes()
                assert same, f"{name} of {size} {dtype} has changed"
                assert np.all(np.asarray(after) == 6)


def test_views_are_read_only() -> None:
    for way in WAYS:
        made, _ = computed(2, way=way)
        views = [
            np.asarray(made),
            made.numpy(),
            made[1:],
            made.shards[1].data,
            np.from_dlpack(made),
        ]
        for view in views:
            assert not view.flags.writeable
            with pytest.raises(ValueError, match="read-only"):
                view[0] = 1
        assert np.array(made).flags.writeable  # a copy that was asked for


def test_memory_is_reused_without_an_export_and_after_the_last_view_is_gone() -> None:
    for size in SIZES:
        made, donate = computed(size)
        at = memory(made)
        assert memory(donate(made)) == at
        made, donate = computed(size)
        at, view = memory(made), np.asarray(made)[:1]
        held = view[:]
        del view
        after = donate(made)
        assert memory(after) != at
        del held
        made, donate = computed(size)
        at = memory(made)
        str(made), float(made[0]), np.asarray(made).sum()  # nothing is left of these
        assert memory(donate(made)) == at


def test_memory_is_not_reused_while_another_thread_runs_beside_the_queue() -> None:
    for beside in (0, 1):
        made, donate = computed(2)
        at = memory(made)
        DEFAULT.beside.extend([None] * beside)
        try:
            assert (memory(donate(made)) == at) == (not beside)
        finally:
            del DEFAULT.beside[:beside]


def test_deleted_arrays_export_nothing() -> None:
    made, donate = computed(2)
    donate(made)
    for export in EXPORTS.values():
        with pytest.raises(weft.WeftError, match="donated to a program"):
            export(made)


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads that interrupt each other all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def _least_and_most(view: Any) -> tuple[float, float]:
    return float(view.min()), float(view.max())


READS: dict[str, Callable[[Any], tuple[float, float]]] = {
    "numpy": lambda x: _least_and_most(np.asarray(x)),
    "index": lambda x: (float(x[0]), float(x[-1])),
}


@pytest.mark.parametrize("how", [*READS, "program"])
def test_threads_read_what_was_there_before_a_donation(how: str, restless: None) -> None:
    size, rounds = 20_000, 150
    fresh = weft.compile(lambda k: jnp.zeros(size) + k)
    donate = weft.compile(lambda x: x * 0 - 1, donate_argnums=0)
    both = weft.compile(lambda x: jnp.stack([x.min(), x.max()]))
    read = READS.get(how, lambda x: tuple(np.asarray(both(x)).tolist()))
    wrong: list[Any] = []
    shown: list[Any] = [None]
    done, begun = threading.Event(), [0]

    def watch() -> None:
        while not done.is_set():
            if shown[0] is None:
                continue
            array, expected = shown[0]
            begun[0] += 1
            try:
                found = read(array)
            except weft.WeftError as error:
                if "donated" not in str(error):
                    wrong.append(error)
                continue
            if found != (expected, expected):
                wrong.append((found, expected))

    threads = [threading.Thread(target=watch) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(1, rounds + 1):
        made = fresh(np.float32(number)).wait()
        before = begun[0]
        shown[0] = (made, float(number))
        while begun[0] == before:  # so that somebody is in the midst of it
            time.sleep(0)
        donate(made).wait()
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:3]


@pytest.mark.parametrize("dtype", sorted(DTYPES.values(), key=str), ids=str)
def test_every_type_is_exported(dtype: DType) -> None:
    given = np.arange(2).astype(dtype.numpy).reshape(2, 1)[:, ::-1]
    view = np.asarray(weft.put(given))
    assert view.dtype == given.dtype and view.tobytes() == given.tobytes()
    assert not view.flags.writeable
