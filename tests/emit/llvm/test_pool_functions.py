"""The pool's functions as Python and as machine code: the same on the same records."""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.native.machine import Machine, machine
from weft.array.stacked import Stacked, kind_of
from weft.emit.llvm.pool import sleep as sleeping
from weft.emit.llvm.pool.call import UNFIT, StackObject, StackPlan, StacksCall, call, place
from weft.emit.llvm.pool.repeat import Rotation, move, repeat
from weft.emit.llvm.pool.run_commands import CopyOperands, copy_bytes, run
from weft.emit.llvm.pool.state import CommandHead, CommandRow, PoolState, ThreadState
from weft.emit.llvm.pool.threads import drop, scratch, start, stop, work, worker
from weft.mesh.sub_axes import SubAxes
from weft.native.cpython import PyTuple
from weft.native.libc import pthread_create, pthread_join
from weft.native.memory import Items, Pointer, address, i8


@functools.cache
def code() -> Machine:
    return machine(move, copy_bytes, place, call, run, start, stop, scratch, drop, repeat, work)


# Values that change places


@st.composite
def rotations(draw: Any) -> tuple[int, int, int, list[int], list[int], list[int]]:
    levels, buffers = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    following = draw(st.integers(0, buffers - 1))
    now = draw(st.lists(st.integers(1, 99), min_size=levels, max_size=levels))
    places = draw(st.lists(st.integers(1, 99), min_size=buffers, max_size=buffers))
    counts = draw(st.lists(st.integers(0, 3), min_size=levels + 1, max_size=levels + 1))
    return levels, buffers, following, now, places, counts


def moved(function: Any, rotation: Any, rounds: int) -> list[list[int]]:
    levels, buffers, following, now, places, counts = rotation
    operands = (ctypes.c_int64 * max(1, sum(counts)))()
    at = [ctypes.addressof(operands) + 8 * n for n in range(sum(counts))]
    said = Rotation.words(levels=levels, buffers=buffers, next=following)
    said = [*said, *now, *places, *counts, *at]
    held = (ctypes.c_int64 * len(said))(*said)
    seen = []
    for _ in range(rounds):
        end = function(Items[int](ctypes.addressof(held)))
        assert address(end) - ctypes.addressof(held) == 8 * len(said)
        seen.append([*held[: len(said) - len(at)], *operands])
    return seen


@given(rotations())
def test_values_change_places(rotation):
    rounds = moved(code().move, rotation, 5)
    assert rounds == moved(move, rotation, 5)
    # And as it is meant: what is read on a level was written so many rounds before.
    levels, buffers, following, now, places, _ = rotation
    for n, line in enumerate(rounds):
        written = [places[(following + k) % buffers] for k in range(n + 1)]
        expected = [*reversed(written), *now][:levels]
        assert line[3 : 3 + levels] == expected
        assert line[2] == (following + n + 1) % buffers


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 5))
def test_copies(nbytes, piece, begin):
    tasks = -(-nbytes // piece)
    for function in (code().copy_bytes, copy_bytes):
        source, to = np.arange(nbytes + 1, dtype=np.uint8), np.zeros(nbytes + 1, np.uint8)
        operands = CopyOperands.new()
        operands.to, operands.source = Pointer(to.ctypes.data), Pointer(source.ctypes.data)
        operands.nbytes, operands.piece = nbytes, piece
        first = min(begin, tasks - 1)
        function(operands, Pointer(0), first, tasks)
        assert (to[first * piece : nbytes] == source[first * piece : nbytes]).all()
        assert not to[: first * piece].any() and to[-1] == 0


# Stacks in tuples


def stack(kind: Any, n: int) -> Stacked:
    return Stacked(np.full(kind.shape, n, np.int64), kind.sub_axes, kind=kind)


@given(st.lists(st.integers(0, 3), max_size=4), st.integers(-1, 4), st.booleans())
def test_stacks_are_placed(places, wrong, as_arrays):
    kinds = [kind_of(SubAxes((1,)), (1, n + 1), np.dtype(np.int64)) for n in range(len(places))]
    stacks = tuple([stack(kind, n) for n, kind in enumerate(kinds)])
    if 0 <= wrong < len(stacks):
        stacks[wrong].kind = None
    if as_arrays:  # numpy arrays of one device, every second one
        stacks = tuple([s.data[0] if s.kind and n % 2 else s for n, s in enumerate(stacks)])
    results = []
    for function in (code().place, place):
        operands = (ctypes.c_int64 * 16)()
        said, at = [], ctypes.addressof(operands)
        for kind, count in zip(kinds, places, strict=True):
            dtype, size = id(kind.dtype), kind.shape[1]
            said += [*StackPlan.words(kind=id(kind), dtype=dtype, rank=1, operands=count), size]
            said += [at + 8 * (len(said) % 16)] * count
        held = (ctypes.c_uint64 * max(1, len(said)))(*said)
        plan = StackPlan(ctypes.addressof(held))
        types = StacksCall.new()
        types.type, types.arrays = Pointer(id(Stacked)), Pointer(id(np.ndarray))
        end = function(PyTuple(id(stacks)), len(stacks), types, plan)
        results.append((end and address(end) - ctypes.addressof(held), [*operands]))
    assert results[0] == results[1]
    assert bool(results[0][0] == 8 * len(said)) == (not 0 <= wrong < len(stacks))
    assert StackObject.kind.offset != StackObject.data.offset


def test_a_stack_of_another_kind_is_refused():
    kind = kind_of(SubAxes((1,)), (1, 2), np.dtype(np.int64))
    given, made = (stack(kind, 1),), ()
    said = StacksCall.words(type=id(Stacked), inputs=1, outputs=0)
    said += StackPlan.words(kind=id(kind) + 8, operands=0)
    held = (ctypes.c_uint64 * len(said))(*said)
    for function in (code().call, call):
        at = Pointer(0), StacksCall(ctypes.addressof(held)), PyTuple(id(given)), PyTuple(id(made))
        assert function(*at) == UNFIT


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 3), np.float32),
        np.zeros((3, 2), np.int64),
        np.zeros((6,), np.int64),
        np.zeros((2, 6), np.int64)[:, ::2],
        np.zeros((2, 3), ">i8"),
        np.zeros(49, np.int8)[1:].view(np.int64).reshape(2, 3),
        np.zeros((2, 3), np.int64).view(np.recarray),
        None,
    ],
)
def test_an_array_that_is_no_stack_is_refused(array):
    kind = kind_of(SubAxes((1,)), (1, 2, 3), np.dtype(np.int64))
    said = StacksCall.words(type=id(Stacked), arrays=id(np.ndarray), inputs=1, outputs=0)
    said += [*StackPlan.words(kind=id(kind), dtype=id(kind.dtype), rank=2, operands=0), 2, 3]
    held, given, made = (ctypes.c_uint64 * len(said))(*said), (array,), ()
    for function in (code().call, call):
        at = Pointer(0), StacksCall(ctypes.addressof(held)), PyTuple(id(given)), PyTuple(id(made))
        assert function(*at) == UNFIT


# Commands, on one thread and on several


class Pooled:
    """Memory of a pool and its threads, and commands that count."""

    def __init__(self, count: int, spins: int) -> None:
        self.pool, self.threads = PoolState.new(), ThreadState.new(count)
        self.count, self.pool.spins = count, spins
        self.done = np.zeros(64, np.int64)
        self.seen: set[int] = set()
        self.lock = threading.Lock()
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_size_t] * 2, *[ctypes.c_int64] * 2)
        self.kernel = kind(self.counted)

    def counted(self, operands: int, memory: int, begin: int, end: int) -> None:
        with self.lock:
            assert operands == 77
            self.done[begin:end] += 1
            self.seen.add(threading.get_ident())
            if memory:
                ctypes.c_int64.from_address(memory).value = begin

    def commands(self, rows: list[tuple[int, int, int]]) -> CommandHead:
        at = ctypes.cast(self.kernel, ctypes.c_void_p).value or 0
        said = CommandHead.words(count=len(rows), took=1 << 40)
        for tasks, chunk, need in rows:
            said += CommandRow.words(
                function=at, operands=77, tasks=tasks, chunk=chunk, scratch=need
            )
        self.rows = (ctypes.c_int64 * len(said))(*said)
        return CommandHead(ctypes.addressof(self.rows))


command_rows = st.lists(
    st.tuples(st.integers(0, 64), st.integers(1, 9), st.sampled_from([0, 8, 5000])), max_size=4
)


@contextmanager
def python_threads():
    """Threads of Python's and a condition in place of the system's."""
    started: list[threading.Thread] = []
    changed = threading.Condition()

    def create(handle, attributes, main, thread):
        made = threading.Thread(target=main, args=(ThreadState(address(thread)),), daemon=True)
        started.append(made)
        made.start()
        return 0

    def join(handle, result):
        started.pop(0).join()
        return 0

    def sleep(pool, at, value, condition):
        with changed:
            changed.wait_for(lambda: Items[int](at)[0] & 0xFFFFFFFF != value, 0.05)

    def wake(pool, at, count, condition):
        with changed:
            changed.notify_all()

    with ExitStack() as stack:
        stack.enter_context(pthread_create.replaced(create))
        stack.enter_context(pthread_join.replaced(join))
        stack.enter_context(sleeping.sleep.replaced(sleep))
        stack.enter_context(sleeping.wake.replaced(wake))
        yield


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("spins", [0, 50])
@settings(max_examples=8)
@given(rows=command_rows)
def test_every_chunk_runs_once(count, spins, rows):
    expected = np.zeros(64, np.int64)
    for tasks, _, _ in rows:
        expected[:tasks] += 1
    made = Pooled(count, spins)
    assert code().start(made.pool, made.threads, count) == count
    for n in range(1, 4):
        assert code().run(made.pool, made.commands(rows)) == 0
        assert (made.done == n * expected).all()
    code().stop(made.pool, made.threads, count)
    assert made.threads.scratch_bytes == 0

    model = Pooled(count, spins)
    with python_threads():
        assert start(model.pool, model.threads, count) == count
        assert run(model.pool, model.commands(rows)) == 0
        assert (model.done == expected).all()
        stop(model.pool, model.threads, count)
    assert worker.external is False
    for name in ("alone", "range_count", "quit", "failed", "waiting"):
        assert getattr(made.pool, name) == getattr(model.pool, name), name


def test_the_last_chunk_wakes_the_caller():
    """The caller sleeps while another thread is in its chunk, and goes on after it."""
    made, begun = Pooled(2, 0), threading.Event()

    def kernel(operands: int, memory: int, begin: int, end: int) -> None:
        made.counted(operands, memory, begin, end)
        if threading.current_thread() is caller:
            assert begun.wait(60)
        else:
            begun.set()
            while not made.pool.waiting:
                time.sleep(0.001)
            time.sleep(0.01)  # from the mark to the system call

    made.kernel = type(made.kernel)(kernel)
    assert code().start(made.pool, made.threads, 2) == 2
    rows = made.commands([(2, 1, 0)])
    caller = threading.Thread(target=code().run, args=(made.pool, rows), daemon=True)
    caller.start()
    caller.join(60)
    assert not caller.is_alive() and len(made.seen) == 2 and made.pool.waiting == 0
    code().stop(made.pool, made.threads, 2)


@pytest.mark.parametrize("own", [0, 1, 2])
def test_a_thread_helps_with_all_ranges(own):
    """It begins with its own range, and goes on with those before it, too."""
    for function in (code().work, work):
        made = Pooled(1, 0)
        made.threads.number = own
        launch, ranges = made.pool.launch, made.pool.ranges
        head = made.commands([(64, 8, 0)])
        ctypes.memmove(address(launch), address(head.nth(1)), CommandRow.SIZE)
        launch.chunks, launch.ranges = 8, 3
        for n, (left, end) in enumerate([(2, 2), (3, 5), (3, 8)]):
            ranges.nth(n).left, ranges.nth(n).end = left, end
        function(made.pool, made.threads)
        assert (made.done == 1).all() and made.pool.done == 8
        assert [ranges.nth(n).left for n in range(3)] == [0, 0, 0]


def test_scratch_grows_and_may_lack():
    for functions in (code(), None):
        take, give = (functions.scratch, functions.drop) if functions else (scratch, drop)
        made = Pooled(1, 0)
        made.threads.pool = made.pool
        first = take(made.threads, 100)
        assert first and made.threads.scratch_bytes == 4096
        assert take(made.threads, 4096) == first
        assert take(made.threads, 5000) and made.threads.scratch_bytes == 8192
        assert not take(made.threads, 1 << 60) and made.pool.failed == 1
        assert made.threads.scratch_bytes == 0
        give(made.threads)


@pytest.mark.parametrize("rounds, limit, expected", [(3, 10, 3), (5, 2, 2), (0, 4, 0)])
def test_loops_end(rounds, limit, expected):
    for function in (code().repeat, repeat):
        made = Pooled(1, 0)
        code().start(made.pool, made.threads, 1)
        verdict = (ctypes.c_int8 * 1)(1)
        ran = [0]

        def test(*_: int, ran=ran, verdict=verdict) -> None:
            verdict[0] = int(ran[0] < rounds)

        def body(*_: int, ran=ran) -> None:
            ran[0] += 1

        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_size_t] * 2, *[ctypes.c_int64] * 2)
        held = []
        for kernel in (test, body):
            made.kernel = kind(kernel)
            held.append((made.commands([(1, 1, 0)]), made.rows, made.kernel))
        moves = (ctypes.c_int64 * 1)(0)
        given = Items[i8](ctypes.addressof(verdict)), Items[int](ctypes.addressof(moves))
        assert function(made.pool, held[0][0], held[1][0], *given, limit) == expected
        assert ran == [expected]
        code().stop(made.pool, made.threads, 1)
