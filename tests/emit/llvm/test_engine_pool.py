"""The thread pool: every task runs once, whoever calls, and also after a fork."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.emit.llvm.small_kernels import (
    affine,
    count,
    doubled_through_scratch,
    reversed_through_shared,
)
from weft.array.stacked import Stacked, kind_of
from weft.emit.llvm.jit.engine import load
from weft.emit.llvm.jit.machine_code import assembly
from weft.emit.llvm.jit.processor import Processor
from weft.emit.llvm.pool.commands import CommandList
from weft.emit.llvm.pool.pool import Pool, lone_pool, the_pool
from weft.emit.llvm.pool.state import PoolState
from weft.emit.llvm.pool.text import pool_text
from weft.emit.llvm.pool.thread_count import _allowed, thread_count
from weft.errors import Unsupported, WeftError
from weft.mesh.sub_axes import SubAxes


@pytest.fixture(scope="module", params=[(1, True), (2, True), (5, True), (3, False)])
def pool(request):
    """Pools of several sizes; with futexes, and with condition variables as other systems have."""
    threads, futex = request.param
    if not sys.platform.startswith("linux"):
        futex = False
    made = Pool(threads, futex=futex)
    assert made.threads == threads
    yield made
    made.close()


def at(array):
    return array.ctypes.data


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40)), min_size=1, max_size=20),
    st.integers(1, 4),
)
def test_every_task_runs_once(pool, sizes, runs):
    commands = CommandList(pool)
    counted = []
    for (tasks, _), loaded in zip(sizes, load([count(*size) for size in sizes]), strict=True):
        counted.append(np.zeros(tasks + 1, np.int64))
        commands.kernel(loaded, [0, at(counted[-1])])
    for _ in range(runs):
        commands.run()
    for done in counted:
        assert (done[:-1] == runs).all() and done[-1] == 0


@given(st.lists(st.integers(1, 200), min_size=1, max_size=60), st.integers(1, 9))
def test_commands_run_in_order(pool, plus, chunk):
    """A chain in which every command reads what the one before wrote."""
    size = 64
    values = [np.arange(size, dtype=np.int64)]
    values += [np.zeros(size, np.int64) for _ in plus]
    commands = CommandList(pool)
    for n, loaded in enumerate(load([affine(size, chunk, times=2, plus=p) for p in plus])):
        commands.kernel(loaded, [at(values[n]), at(values[n + 1])])
    commands.run()
    expected = values[0]
    for p in plus:
        expected = expected * 2 + p
    np.testing.assert_array_equal(values[-1], expected)


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=6))
def test_threads_have_their_own_scratch(pool, words):
    x = np.arange(200)
    commands, outs = CommandList(pool), []
    for loaded in load([doubled_through_scratch(200, 1, 8 * w) for w in words]):
        outs.append(np.zeros(200, np.int64))
        commands.kernel(loaded, [at(x), at(outs[-1])])
    commands.run()
    for out in outs:
        np.testing.assert_array_equal(out, 2 * x)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=5))
def test_shared_bytes(pool, sizes):
    commands, outs, keep = CommandList(pool), [], []
    for size, loaded in zip(
        sizes, load([reversed_through_shared(s, 3) for s in sizes]), strict=True
    ):
        keep.append(np.arange(size))
        outs.append(np.zeros(size, np.int64))
        commands.kernel(loaded, [at(keep[-1]), at(outs[-1])])
    for _ in range(2):
        commands.run()
    for x, out in zip(keep, outs, strict=True):
        np.testing.assert_array_equal(out, x[::-1])


@given(st.integers(0, 1_200_000))
def test_copies(pool, size):
    x = np.random.default_rng(size).integers(0, 255, size, np.uint8)
    y, z = np.zeros(size + 1, np.uint8), np.zeros(size + 1, np.uint8)
    commands = CommandList(pool)
    first = commands.copy(at(y), at(x), size)
    commands.copy(at(z), at(y), size)
    commands.run()
    assert (z[:-1] == x).all() and z[-1] == 0
    commands.pointers[first] = at(z)  # now to z, and then y (as it was) over it
    y[:] = 9
    commands.run()
    assert (z[:-1] == 9).all() and z[-1] == 0


def test_pointers_can_move(pool):
    (loaded,) = load([affine(10, 2, plus=1)])
    x, y, z = np.arange(10), np.zeros(10, int), np.zeros(10, int)
    commands = CommandList(pool)
    begin = commands.kernel(loaded, [at(x), at(y)])
    commands.run()
    commands.pointers[begin + 1] = at(z)
    y[:] = 0
    commands.run()
    assert not y.any() and (z == x + 1).all()


def test_callers_take_turns(pool):
    """Many Python threads run commands on one pool, with scratch and shared bytes."""
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(30):
            size = int(rng.integers(1, 400))
            kernels = [reversed_through_shared(size, 5), doubled_through_scratch(size, 3, 800)]
            first, second = load(kernels)
            x, y, z = rng.integers(0, 9, size), np.zeros(size, int), np.zeros(size, int)
            commands = CommandList(pool)
            commands.kernel(first, [at(x), at(y)])
            commands.kernel(second, [at(y), at(z)])
            commands.run()
            if (z != 2 * x[::-1]).any():
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_raw_launches_meet_others(pool):
    """Native code that holds the GIL launches on a pool that other threads run commands on."""
    kernels = load([count(64, 1), doubled_through_scratch(64, 1, 4096)])
    x = np.arange(64)

    def commands():
        made, counted, doubled = CommandList(pool), np.zeros(65, np.int64), np.zeros(64, int)
        made.kernel(kernels[0], [0, at(counted)])
        made.kernel(kernels[1], [at(x), at(doubled)])
        return made, counted, doubled

    own, by_python, by_native = [], 300, 3000
    threads = []
    for _ in range(2):
        made, counted, doubled = commands()
        own.append((counted, doubled, by_python))
        run = made.run
        threads.append(threading.Thread(target=lambda run=run: [run() for _ in range(by_python)]))
    made, counted, doubled = commands()
    own.append((counted, doubled, by_native))
    raw = made.raw_launch(None)
    assert raw.state == pool.state_at, "there are enough chunks to divide"
    launch = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(raw.run)
    for thread in threads:
        thread.start()
    assert not any(launch(raw.state, raw.commands) for _ in range(by_native))
    for thread in threads:
        thread.join()
    for counted, doubled, runs in own:
        assert (counted[:-1] == runs).all() and (doubled == 2 * x).all()


def test_few_chunks_are_launched_on_one_thread(pool):
    (loaded,) = load([count(6, 3)])
    counted = np.zeros(7, np.int64)
    commands = CommandList(pool)
    commands.kernel(loaded, [0, at(counted)])
    raw = commands.raw_launch(None)
    assert raw.state == lone_pool().state_at
    launch = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(raw.run)
    assert launch(raw.state, raw.commands) == 0
    assert counted.tolist() == [1] * 6 + [0]


@pytest.mark.long
def test_a_hundred_thousand_launches():
    """More threads than cores, so that they sleep, wake and come late at every place."""
    for threads, futex in ((2, True), (9, True), (4, False)):
        pool = Pool(threads, futex=futex if sys.platform.startswith("linux") else False)
        rng = np.random.default_rng(threads)
        commands, counted = CommandList(pool), []
        for _ in range(500):
            tasks, chunk = int(rng.integers(1, 60)), int(rng.integers(1, 6))
            counted.append(np.zeros(tasks, np.int64))
            commands.kernel(load([count(tasks, chunk)])[0], [0, at(counted[-1])])
        for n in range(80):
            if n % 10 == 9:
                time.sleep(0.001)
            commands.run()
        assert all((done == 80).all() for done in counted)
        pool.close()


def test_no_memory_for_scratch(pool):
    for chunk in (1, 50):
        (loaded,) = load([doubled_through_scratch(50, chunk, 1 << 60)])
        x, y = np.arange(50), np.zeros(50, int)
        commands = CommandList(pool)
        commands.kernel(loaded, [at(x), at(y)])
        with pytest.raises(WeftError, match="not enough memory for the scratch"):
            commands.run()
        assert not y.any()
    (loaded,) = load([doubled_through_scratch(50, 1, 800)])
    commands = CommandList(pool)
    commands.kernel(loaded, [at(x), at(y)])
    commands.run()
    assert (y == 2 * x).all()


def test_idle_threads_sleep(pool):
    (loaded,) = load([count(100)])
    done = np.zeros(100, int)
    commands = CommandList(pool)
    commands.kernel(loaded, [0, at(done)])
    commands.run()
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - before < 0.1
    for _ in range(20):  # and they wake
        commands.run()
    assert (done == 21).all()


def test_threads_are_not_woken_for_little(pool):
    """Nor is anything left undone while they sleep."""
    if pool.threads == 1:
        pytest.skip("nobody sleeps")
    commands = CommandList(pool)
    (loaded,) = load([count(64, 8)])
    counted = np.zeros(65, np.int64)
    commands.kernel(loaded, [0, at(counted)])
    commands.run()
    takes = commands._sealed[0, 1:2].view(np.int64)
    for n in range(2, 8):
        deadline = time.monotonic() + 5
        while asleep(pool) < pool.threads - 1 and time.monotonic() < deadline:
            time.sleep(0.001)
        takes[0] = 0  # nanoseconds: as if that were known
        commands.run()
        assert (counted[:-1] == n).all()
        assert asleep(pool) == pool.threads - 1
    takes[0] = 1 << 40
    commands.run()  # this wakes some, which then sleep again
    assert (counted[:-1] == 8).all() and takes[0] < 1 << 40


def asleep(pool):
    return PoolState(pool._state_at).sleepers


def test_stacks_are_found_in_tuples(pool):
    sub_axes = SubAxes((1,))
    commands = CommandList(pool)
    (loaded,) = load([affine(64, 8, times=2, plus=5)])
    start = commands.kernel(loaded, [0, 0])
    kind = kind_of(sub_axes, (1, 64), np.dtype(np.int64))
    run = commands.on_stacks([(kind, [start])], [(kind, [start + 1])])
    for n in range(5):
        given = Stacked(np.arange(n, n + 64).reshape(1, 64), sub_axes)
        made = Stacked(np.zeros((1, 64), np.int64), sub_axes, kind=kind)
        assert not run((given,), (made,)) and not made.data.any()  # its kind is not known
        assert not run((None,), (made,)) and not run((given.data,), (made,))
        given.located()
        assert run((given,), (made,))
        np.testing.assert_array_equal(made.data, 2 * given.data + 5)


def test_a_closed_pool_runs_in_its_caller():
    pool = Pool(3)
    (loaded,) = load([count(100)])
    done = np.zeros(100, int)
    commands = CommandList(pool)
    commands.kernel(loaded, [0, at(done)])
    commands.run()
    pool.close()
    commands.run()
    pool.close()
    assert (done == 2).all() and pool.threads == 1


FORK = """
import os, sys, threading, time
import numpy as np
from tests.emit.llvm.small_kernels import affine, count
from weft.emit.llvm.pool.commands import CommandList
from weft.emit.llvm.jit.engine import load
from weft.emit.llvm.pool.pool import the_pool

(loaded,) = load([count(500, 3)])
done = np.zeros(500, int)
commands = CommandList()
commands.kernel(loaded, [0, done.ctypes.data])
commands.run()

stop = False
def busy():
    mine = np.zeros(500, int)
    own = CommandList()
    own.kernel(loaded, [0, mine.ctypes.data])
    rounds = 0
    while not stop:
        own.run()
        load([affine(4, plus=rounds % 50)])
        rounds += 1
    assert (mine == rounds).all()

thread = threading.Thread(target=busy)
thread.start()
children = []
for n in range(6):
    child = os.fork()
    if child == 0:
        for _ in range(20):
            commands.run()
        (fresh,) = load([affine(8, plus=1000 + n)])
        x, y = np.arange(8), np.zeros(8, int)
        more = CommandList()
        more.kernel(fresh, [x.ctypes.data, y.ctypes.data])
        more.run()
        good = (done == 21).all() and (y == x + 1000 + n).all()
        os._exit(0 if good else 1)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
stop = True
thread.join()
commands.run()
assert (done == 2).all()
assert codes == [0] * 6, codes
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked_children_have_threads_of_their_own(tmp_path):
    _script(FORK, tmp_path, WEFT_THREADS="3")


AT_EXIT = """
import threading
import numpy as np
from tests.emit.llvm.small_kernels import count
from weft.emit.llvm.pool.commands import CommandList
from weft.emit.llvm.jit.engine import load

(loaded,) = load([count(5000, 1)])
done = np.zeros(5000, int)
commands = CommandList()
commands.kernel(loaded, [0, done.ctypes.data])
def busy():
    while True:
        commands.run()
threading.Thread(target=busy, daemon=True).start()
commands.run()
print("end")
"""


def test_the_interpreter_ends_while_threads_run(tmp_path):
    for _ in range(3):
        assert _script(AT_EXIT, tmp_path, WEFT_THREADS="3") == "end\n"


def _script(text, folder, **environment):
    where = os.environ | {"WEFT_CACHE": str(folder / "cache")} | environment
    line = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(text)]
    done = subprocess.run(line, env=where, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_how_many_threads(monkeypatch, tmp_path):
    monkeypatch.setenv("WEFT_THREADS", "7")
    assert thread_count() == 7
    monkeypatch.delenv("WEFT_THREADS")
    assert 1 <= thread_count() <= (os.cpu_count() or 1)
    if hasattr(os, "sched_getaffinity"):  # the cores of this process, and of no other
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0} if process == 0 else {})
        assert thread_count() == 1
    quota = tmp_path / "cpu.max"
    for text, cores in (("150000 100000\n", 2), ("max 100000\n", 1 << 16), ("", 1 << 16)):
        quota.write_text(text)
        assert _allowed(quota) == cores
    monkeypatch.setenv("WEFT_THREADS", "0")
    with pytest.raises(WeftError, match="WEFT_THREADS='0' is invalid"):
        thread_count()


def test_there_is_one_pool():
    assert the_pool() is the_pool()


@pytest.mark.parametrize(
    ("triple", "sleeps"),
    [
        ("x86_64-unknown-linux-gnu", "syscall"),
        ("aarch64-unknown-linux-gnu", "syscall"),
        ("arm64-apple-macosx14.0.0", "pthread_cond_wait"),
        ("riscv64-unknown-linux-gnu", "pthread_cond_wait"),
    ],
)
def test_the_pool_is_written_for_any_system(triple, sleeps):
    try:
        assert sleeps in assembly(pool_text(triple), Processor(triple))
    except Unsupported:
        pytest.skip("this LLVM has no such target")
