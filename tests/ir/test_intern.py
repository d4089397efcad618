"""Interned objects are one in every thread, and in a child that was forked."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from weft.array.array import array_spec
from weft.array.stacked import kind_of
from weft.ir import intern
from weft.ir.dense import Dense
from weft.ir.types import F32, TensorType
from weft.mesh import Mesh, Sharding
from weft.mesh.sub_axes import sub_axes_of
from weft.ops.shape import Iota

MAKERS: dict[str, Callable[[int], Any]] = {
    "types": lambda n: TensorType((n, 7, 11), F32),
    "ops": lambda n: Iota(0, TensorType((n, 7, 13), F32)),
    "constants": lambda n: Dense(np.array([n, 0.5, -3.0])),
    "kinds": lambda n: kind_of(sub_axes_of(1, ()), (n, 7, 17), np.dtype("f")),
    "specs": lambda n: array_spec((n, 7, 19), F32, Sharding("", ()), Mesh()),
}


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads give way after a few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("what", MAKERS)
@pytest.mark.usefixtures("switching")
def test_threads_that_make_the_same_get_one_object(what: str) -> None:
    start = threading.Barrier(4)
    rows: list[list[Any]] = [[] for _ in range(4)]

    def make(row: list[Any]) -> None:
        for n in range(200):
            if n % 50 == 0:
                start.wait()
            row.append(MAKERS[what](10_000 + n))

    threads = [threading.Thread(target=make, args=(row,)) for row in rows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for column in zip(*rows, strict=True):
        assert len({*map(id, column)}) == 1


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_child_does_not_wait_for_a_thread_it_does_not_have() -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with intern._LOCK:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        TensorType((3, 9, 27, 81), F32)
        os._exit(7)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_what_a_cache_drops_is_the_same_object_as_long_as_it_is_in_use() -> None:
    made = intern.InternTable[tuple[object, ...], set[int]]().interned(lambda *key: {*key}, 1)
    first = made(1, 2)
    made(3, 4)  # drops it
    assert made(1, 2) is first and first == {1, 2}
