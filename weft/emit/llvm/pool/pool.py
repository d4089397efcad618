"""The thread pool: started at first use, parked while there is no work."""

from __future__ import annotations

import ctypes
import functools
import signal
import threading
import time
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from weft.emit.llvm.jit.engine import NativeLibrary
from weft.emit.llvm.jit.processor import host
from weft.emit.llvm.pool.call import NO_MEMORY
from weft.emit.llvm.pool.state import PoolState, ThreadState
from weft.emit.llvm.pool.text import POOL_FUNCTIONS, call_text, pool_text
from weft.emit.llvm.pool.thread_count import thread_count
from weft.errors import WeftError
from weft.native.cpython import reads_objects
from weft.native.forks import fork_tracked

_SPIN_SECONDS = 50e-6  # how long a thread spins before it sleeps


class _Functions:
    """The functions of the pool's text."""

    def __init__(self, futex: bool | None) -> None:
        names = [function.name for function in POOL_FUNCTIONS]
        text = pool_text(host().triple, futex=futex)
        self._library = NativeLibrary(text, names)
        start, stop, run, spin, copy, repeat, run_raw = self._library.addresses.values()
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self.start = ctypes.CFUNCTYPE(number, pointer, pointer, number)(start)
        self.stop = ctypes.CFUNCTYPE(None, pointer, pointer, number)(stop)
        self.run = ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer)(run)
        self.spin = ctypes.CFUNCTYPE(None, number)(spin)
        self.copy = copy
        self.run_at, self.run_raw_at = run, run_raw
        self.repeat = ctypes.CFUNCTYPE(number, *[pointer] * 5, number)(repeat)

    @functools.cached_property
    def call(self) -> Callable[[int, int, int, int], int]:
        """The native function that runs commands on the stacks of tuples."""
        assert reads_objects(), "this Python keeps stacks where native code finds them"
        self._call = NativeLibrary(call_text(host().triple), ["call"])
        call_type = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
        return call_type(self._call.addresses["call"])


@functools.cache
def functions(futex: bool | None = None) -> _Functions:
    """The pool's functions; `futex` says how threads sleep, None that the system decides."""
    return _Functions(futex)


class Pool:
    """Threads that wait for commands, and the memory that kernels use while they run.

    Several Python threads may run commands: one after another. In a forked child the threads are
    gone, and are started again.
    """

    def __init__(self, threads: int | None = None, *, futex: bool | None = None) -> None:
        self._wanted, self._futex = threads, futex
        self._state = self._threads = self._shared = aligned(0)
        self._state_at = self._threads_at = self._shared_at = 0
        self.lock = threading.RLock()  # held while commands run
        self._count = 0  # threads that are there, the caller's among them; 0 before they start
        _POOLS.add(self)

    @property
    def threads(self) -> int:
        """How many threads run commands, the caller's among them."""
        with self.lock:
            return self._count or self._start()

    def run(self, commands: int) -> None:
        """Run the commands at an address."""
        with self.lock:
            if not self._count:
                self._start()
            failed = self._run(self._state_at, commands)
        if failed:
            raise _no_memory()

    def run_shared(self, commands: int, nbytes: int, place: Callable[[int], None]) -> None:
        """Run commands that need shared bytes; `place` gets the address of these."""
        with self.lock:
            if not self._count:
                self._start()
            # Held by a name: a nested run may replace `self._shared` by a larger block while this
            # one runs.
            shared = self._share(nbytes, place)
            failed = self._run(self._state_at, commands)
            del shared
        if failed:
            raise _no_memory()

    @property
    def run_at(self) -> int:
        """The address of the native function that runs commands."""
        return functions(self._futex).run_at

    @property
    def run_raw_at(self) -> int:
        """The address of the function that runs commands for native code, which holds the GIL."""
        return functions(self._futex).run_raw_at

    @property
    def state_at(self) -> int:
        """The address of the pool state, the first argument of these functions."""
        with self.lock:
            if not self._count:
                self._start()
            return self._state_at

    def call(
        self,
        descriptor: int,
        inputs: int,
        outputs: int,
        nbytes: int = 0,
        place: Callable[[int], None] | None = None,
    ) -> int:
        """Run commands on the stacks of two tuples, by the `StacksCall` at `descriptor`.

        `place` gets the address of shared bytes, if they need any. Not 0 if the stacks do not
        match the descriptor, and nothing has run.
        """
        with self.lock:
            if not self._count:
                self._start()
            shared = None if place is None else self._share(nbytes, place)
            answer = self._call(self._state_at, descriptor, inputs, outputs)
            del shared
        if answer == NO_MEMORY:
            raise _no_memory()
        return answer

    def repeat(self, loop: Sequence[int], nbytes: int, place: Callable[[int], None]) -> int:
        """Run commands while a test holds; returns the number of rounds.

        `loop` has the arguments of the native loop: the addresses of test, work, verdict and moves,
        and the most rounds.
        """
        with self.lock:
            if not self._count:
                self._start()
            shared = self._share(nbytes, place) if nbytes else None
            rounds: int = functions(self._futex).repeat(self._state_at, *loop)
            del shared
        if rounds < 0:
            raise _no_memory()
        return rounds

    def _share(self, nbytes: int, place: Callable[[int], None]) -> npt.NDArray[np.uint8]:
        """The shared bytes; a run holds them, since one that is nested may need more."""
        if nbytes > self._shared.nbytes:
            self._shared = aligned(nbytes)
            self._shared_at = address(self._shared)
        place(self._shared_at)
        return self._shared

    def close(self) -> None:
        """End the threads and free their memory; later commands run in the calling thread."""
        with self.lock:
            if self._count:
                functions(self._futex).stop(self._state_at, self._threads_at, self._count)
            # A pool that is used after `close` (by a finalizer at exit, say) must not start threads
            # again.
            self._wanted = 1
            self._count = 0

    def __del__(self) -> None:
        self.close()  # threads read what would be gone

    def forked(self) -> None:
        """In a forked child: start threads at the next run, with the old ones' memory."""
        # A new lock: the parent's may have been held by a thread that does not exist in the child.
        self.lock = threading.RLock()
        self._count = 0

    def _start(self) -> int:
        native = functions(self._futex)
        wanted = self._wanted or thread_count()
        # New zeroed memory at every start: after a fork the old state has the parent's epoch, its
        # counts of sleepers and perhaps a runner.
        self._state = aligned(PoolState.SIZE)
        if self._threads.nbytes < ThreadState.SIZE * wanted:
            self._threads = aligned(ThreadState.SIZE * wanted)
        self._state_at, self._threads_at = address(self._state), address(self._threads)
        PoolState(self._state_at).spins = _spins(native)
        self._run = native.run
        if reads_objects():
            self._call = native.call
        # Signals are for Python's threads: those that start here inherit that they are blocked.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._count = int(native.start(self._state_at, self._threads_at, wanted))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if self._count < wanted:
            warnings.warn(
                f"the system gives weft {self._count} of {wanted} threads", RuntimeWarning, 4
            )
        return self._count


def _no_memory() -> WeftError:
    return WeftError(
        "there is not enough memory for the scratch of a kernel",
        help="give the process more memory, or set WEFT_THREADS lower",
    )


@functools.cache
def _spins(functions: _Functions) -> int:
    """The spin iterations that take as long as a thread spins before it parks."""
    rounds = 1000
    took = []
    for _ in range(3):
        begin = time.perf_counter()
        functions.spin(rounds)
        took.append(time.perf_counter() - begin)
    # The minimum: a run that was preempted would make threads park too early.
    return max(1, int(rounds * _SPIN_SECONDS / min(took)))


def aligned(nbytes: int) -> npt.NDArray[np.uint8]:
    """Zeroed bytes that begin at a multiple of 128."""
    # 128, not 64: some processors prefetch cache lines in pairs, so that neighbouring lines
    # contend, too.
    memory = np.zeros(nbytes + 128, np.uint8)
    begin = -memory.ctypes.data % 128
    return memory[begin : begin + nbytes]


def address(memory: npt.NDArray[np.uint8]) -> int:
    """The address of the first byte."""
    return int(memory.ctypes.data)


_POOLS = fork_tracked(Pool.close, Pool.forked)
_THE_POOL = Pool()


def the_pool() -> Pool:
    """The pool of this process."""
    return _THE_POOL


@functools.cache
def lone_pool() -> Pool:
    """A pool without worker threads, for commands that run in the calling thread."""
    return Pool(1)
