"""Parking and waking threads of the pool: futexes, or condition variables."""

from __future__ import annotations

from weft.emit.llvm.pool.state import PoolState
from weft.native.function import native
from weft.native.libc import (
    pthread_cond_broadcast,
    pthread_cond_init,
    pthread_cond_wait,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_unlock,
    syscall,
)
from weft.native.memory import Member, Pointer, Struct, i32

# Values for a run as Python; texts override them for their target.
FUTEX = True  # whether the system has futexes
SYSTEM_CALL = 202
# FUTEX_WAIT and FUTEX_WAKE with FUTEX_PRIVATE_FLAG (128): the kernel then hashes the address alone
# and takes no reference to the mapping.
_WAIT, _WAKE = 128, 129  # of one process
_NUMBERS = {"x86_64": 202, "aarch64": 98}  # of Linux's system call


def sleep_constants(triple: str, futex: bool | None) -> dict[str, int]:
    """The constants of a target; `futex` says how to sleep, None that the system decides."""
    architecture = triple.partition("-")[0]
    if futex is None:
        futex = "linux" in triple and architecture in _NUMBERS
    return {"FUTEX": futex, "SYSTEM_CALL": _NUMBERS.get(architecture, 0)}


class FutexWord(Struct):
    """A word that threads sleep at."""

    value: Member[i32]


@native
def sleep(pool: PoolState, at: Pointer, value: i32, condition: Pointer) -> None:
    """Sleep while a word has a value."""
    if FUTEX:
        # May return early (a signal, or the value has changed): every caller looks again in a loop.
        syscall(SYSTEM_CALL, at, _WAIT, value, Pointer(0), Pointer(0), 0)
    else:
        word = FutexWord(at)
        pthread_mutex_lock(pool.mutex)
        while FutexWord.value.load(word, "seq_cst") == value:
            pthread_cond_wait(condition, pool.mutex)
        pthread_mutex_unlock(pool.mutex)


@native
def wake(pool: PoolState, at: Pointer, count: i32, condition: Pointer) -> None:
    """Wake so many threads that sleep at a word; all of them where there are no futexes."""
    if FUTEX:
        syscall(SYSTEM_CALL, at, _WAKE, count, Pointer(0), Pointer(0), 0)
    else:
        # The lock orders this after the look of a thread that is about to sleep.
        pthread_mutex_lock(pool.mutex)
        pthread_cond_broadcast(condition)
        pthread_mutex_unlock(pool.mutex)


@native
def prepare(pool: PoolState) -> None:
    """Initialize the mutex and the condition variables."""
    if not FUTEX:
        pthread_mutex_init(pool.mutex, Pointer(0))
        pthread_cond_init(pool.started, Pointer(0))
        pthread_cond_init(pool.finished, Pointer(0))
