"""Memory for values: given back when nothing refers to it, and no more kept than was used."""

from __future__ import annotations

import gc

import ml_dtypes
import numpy as np
import pytest

from tests.threads import in_threads
from weft.array import host
from weft.array.host import PAGE, SMALL, HostMemory, aligned_bytes, dense, is_dense
from weft.native.cpython import address_of

F32 = np.dtype(np.float32)
SIZE = 1 << 20


def taken(memory: HostMemory, nbytes: int = SIZE) -> np.ndarray:
    return memory.allocate((nbytes // 4,), F32, nbytes)


def test_memory_is_used_again():
    memory = HostMemory()
    first = taken(memory)
    where = address_of(first)
    del first
    assert memory.kept == SIZE and memory.used == 0
    assert address_of(taken(memory)) == where


def test_a_view_keeps_the_memory():
    memory = HostMemory()
    view = taken(memory).reshape(512, -1)[3:, ::2]
    view[...] = 7
    other = taken(memory)
    other[...] = 1
    assert memory.used == 2 * SIZE
    assert (view == 7).all()
    del view
    assert memory.used == SIZE


def test_no_more_is_kept_than_was_used():
    memory = HostMemory()
    small = [taken(memory, 64 * PAGE) for _ in range(4)]
    del small
    large = taken(memory, 1 << 28)
    del large
    assert memory.kept <= memory.most == 1 << 28
    rest = [taken(memory, PAGE * n) for n in range(64, 600)]
    del rest
    assert memory.kept <= max(memory.most, 1 << 26)


def test_sizes_that_nobody_asks_for_go_first():
    memory = HostMemory()
    old = taken(memory, 1 << 26)
    del old
    for _ in range(3):
        new = taken(memory, (1 << 26) - PAGE)
        del new
    waiting = {size: len(shelf.waiting) for size, shelf in memory.shelves.items()}
    assert waiting == {1 << 26: 0, (1 << 26) - PAGE: 1}
    memory.clear()
    assert memory.kept == 0 and not any(shelf.waiting for shelf in memory.shelves.values())


def test_parts_of_an_array_are_arrays():
    memory = HostMemory()
    for dtype in (np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16), np.dtype(bool)):
        whole = memory.place(np.arange(24).reshape(4, 6).T.astype(dtype))
        part = memory.view(whole, 4 * dtype.itemsize, (5, 2), dtype)
        assert is_dense(whole) and np.shares_memory(part, whole)
        assert np.array_equal(part.reshape(-1), whole.reshape(-1)[4:14])
        bits = memory.view(whole, 0, (whole.nbytes,), np.dtype(np.uint8))
        assert memory.address(bits) == memory.address(whole) == whole.ctypes.data
        memory.copy(np.zeros((5, 2), dtype), part)
        assert not whole.reshape(-1)[4:14].any()
    assert memory.view(whole, 24, (0, 3), dtype).shape == (0, 3)


def test_small_values_are_left_to_the_system():
    memory = HostMemory()
    made = memory.allocate((3, 4), F32, 48)
    assert made.shape == (3, 4) and memory.used == 0
    assert taken(memory, SMALL).ctypes.data % PAGE == 0


def test_more_than_the_machine_has_is_refused_before_it_is_mapped(monkeypatch):
    monkeypatch.setattr(host, "_installed", lambda: 1 << 40)
    monkeypatch.setattr(host, "pages", lambda size: pytest.fail("a system may map it"))
    with pytest.raises(MemoryError):
        HostMemory().allocate((1 << 46,), np.dtype(np.uint8), 1 << 46)


def test_threads_and_the_collector_may_give_back_at_any_time():
    memory = HostMemory()
    wrong: list[int] = []

    def work(number: int) -> None:
        for n in range(200):
            one, other = taken(memory), taken(memory, SIZE + PAGE * (n % 3))
            one[0], other[0] = number, -number
            cycle: list[object] = [one]
            cycle.append(cycle)
            if one[0] != number or other[0] != -number:
                wrong.append(number)

    in_threads(work, 4)
    gc.collect()
    assert not wrong
    assert memory.used == 0
    assert memory.kept == sum(s.size * len(s.waiting) for s in memory.shelves.values())


@pytest.mark.parametrize(
    "array, is_so",
    [
        (np.ones((3, 4)), True),
        (np.ones((3, 4)).T, False),
        (np.ones((3, 4))[:, ::2], False),
        (np.ones((3, 4))[1:], True),
        (np.broadcast_to(np.ones(4), (3, 4)), False),
        (np.ones((0, 4)), True),
        (np.ones((3, 1)).T, True),
        (np.ndarray((5,), np.float32, bytearray(24), 1), False),  # between two elements
        (np.ones(()), True),
    ],
)
def test_dense(array, is_so):
    assert is_dense(array) is is_so
    made = dense(array)
    assert is_dense(made) and np.array_equal(made, array)
    assert (made is array) is is_so
    assert address_of(array) == array.ctypes.data


def test_aligned_bytes():
    for size in (1, 9, 64, 1000):
        made = aligned_bytes(size)
        assert made.ctypes.data % 64 == 0 and made.size == size
