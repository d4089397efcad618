"""Functions of the C library that native code calls, and the monotonic clock."""
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Callable

from weft.native.function import extern, native
from weft.native.memory import Member, Pointer, Struct, i32


class TimeSpec(Struct):
    """C's `struct timespec`."""

    seconds: Member[int]
    nanoseconds: Member[int]


@extern
def malloc(nbytes: int) -> Pointer:
    """Allocate memory; null on failure."""


@extern
def aligned_alloc(alignment: int, nbytes: int) -> Pointer:
    """Allocate aligned memory; null on failure. `nbytes` is a multiple of the alignment."""


@extern
def posix_memalign(into: Pointer, alignment: int, nbytes: int) -> i32:
    """Store the address of aligned memory at `into`; 0 on success."""


@extern
def free(memory: Pointer) -> None:
    """Free memory; null is allowed."""


@extern
def clock_gettime(clock: i32, into: Pointer) -> i32:
    """Store the time of a clock at `into`, a `TimeSpec`."""


@extern
def pause() -> i32:
    """Sleep until a signal comes."""


@extern
def sched_yield() -> i32:
    """Let other threads and processes have this core."""


@extern(fixed=1)
def syscall(
    number: int, at: Pointer, op: i32, value: i32, timeout: Pointer, other: Pointer, last: i32
) -> int:
    """The futex system call of Linux, through the variadic `syscall`."""


@extern
def write(file: i32, begin: Pointer, count: int) -> int:
    """Write bytes to a file; their number, or -1."""


@extern
def pthread_self() -> Pointer:
    """The handle of this thread."""


@extern
def pthread_create(
    handle: Pointer, attributes: Pointer, main: Callable[..., Pointer], argument: Pointer
) -> i32:
    """Start a thread; 0 on success."""


@extern
def pthread_join(handle: Pointer, result: Pointer) -> i32:
    """Wait until a thread has ended."""


@extern
def pthread_mutex_init(mutex: Pointer, attributes: Pointer) -> i32:
    """Initialize a mutex."""


@extern
def pthread_mutex_lock(mutex: Pointer) -> i32:
    """Lock a mutex."""


@extern
def pthread_mutex_unlock(mutex: Pointer) -> i32:
    """Unlock a mutex."""


@extern
def pthread_cond_init(condition: Pointer, attributes: Pointer) -> i32:
    """Initialize a condition variable."""


@extern
def pthread_cond_wait(condition: Pointer, mutex: Pointer) -> i32:
    """Unlock a mutex, sleep until the condition is signalled, and lock it again."""


@extern
def pthread_cond_broadcast(condition: Pointer) -> i32:
    """Wake all threads that wait for a condition."""


# CLOCK_MONOTONIC on Linux; lowered text gets the target's number instead (`clock_constants`).
CLOCK = 1
_DARWINS_CLOCK = 6
_SECOND = 1_000_000_000  # nanoseconds


def clock_constants(triple: str) -> dict[str, int]:
    """The constants of a target that `now` is lowered with."""
    return {"CLOCK": _DARWINS_CLOCK if "apple" in triple else CLOCK}


@native
def now() -> int:
    """A monotonic time in nanoseconds."""
    time = TimeSpec.new()
    clock_gettime(CLOCK, time)
    return time.seconds * _SECOND + time.nanoseconds
