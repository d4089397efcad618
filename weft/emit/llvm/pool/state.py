"""Shared state of the thread pool and its threads, in memory that the caller owns.

Fields that several threads write have cache lines of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from weft.native.memory import Items, Member, Pointer, Struct, i32, inline

MOST_RANGES = 16
# glibc: 40 or 48 and 48 bytes, by the architecture; Darwin: 64 and 48.
_LOCK_WORDS = 16  # more than a mutex or a condition variable takes on any system

# operands, scratch, begin, end: see Phase
KernelFunction: TypeAlias = Callable[[Pointer, Pointer, int, int], None]


class CommandRow(Struct, size=64):
    """A launch: a kernel function, its operands and tasks."""

    function: Member[KernelFunction]
    operands: Member[Pointer]
    tasks: Member[int]
    chunk: Member[int]  # tasks that a thread claims at a time
    scratch: Member[int]  # bytes that a thread needs


class CommandHead(Struct, size=64):
    """The header of a launch queue: its length, and the time of its last run."""

    count: Member[int]
    took: Member[int]  # nanoseconds of their launches, all threads together


class LaunchState(CommandRow):
    """The launch that runs on all threads."""

    chunks: Member[int]
    ranges: Member[int]  # those that its chunks are cut into


class ChunkRange(Struct, size=128):
    """Chunks of a launch, one after another: a thread begins with a range of its own."""

    left: Member[int]  # unclaimed chunks; late workers make it negative
    end: Member[int]  # the number after its last chunk


class ThreadState(Struct, size=128):
    """Per-thread state; the caller's is the first."""

    pool: Member[PoolState]
    scratch: Member[Pointer]
    scratch_bytes: Member[int]
    handle: Member[Pointer]  # the system's
    number: Member[int]  # 0: the caller's


class PoolState(Struct):
    """State that all threads share."""

    # 32 bits, because a futex compares a 32-bit word. It may wrap around: only equality is tested,
    # and a worker that misses a launch costs speed alone, since others claim its chunks.
    epoch: Member[i32] = inline(line=True)  # counts the launches; workers wait for it to change
    wanted: Member[i32]  # threads that the launch has chunks for; read with the epoch's line
    done: Member[i32] = inline(line=True)  # chunks that are finished
    launch: Member[LaunchState] = inline(LaunchState, line=True)
    sleepers: Member[i32] = inline(line=True)  # parked workers
    waiting: Member[i32] = inline(line=True)  # whether the caller is parked
    quit: Member[i32] = inline(line=True)  # tells workers to exit
    spins: Member[int] = inline(line=True)  # spin iterations before parking
    threads: Member[ThreadState]
    alone: Member[int]  # whether the caller's thread is the only one
    runner: Member[Pointer]  # the thread whose run has the workers, null if there is none
    workers: Member[i32]  # threads besides the caller's
    range_count: Member[int]
    waking: Member[int]  # nanoseconds of work from which waking threads pays off
    failed: Member[i32]  # whether a thread had no memory for its scratch
    mutex: Member[Items[int]] = inline(int, _LOCK_WORDS, line=True)  # where there are no futexes
    started: Member[Items[int]] = inline(int, _LOCK_WORDS, line=True)  # condition variables
    finished: Member[Items[int]] = inline(int, _LOCK_WORDS, line=True)
    busy: Member[int] = inline(line=True)  # nanoseconds that threads have spent on chunks
    ended: Member[int]  # when the last commands had run
    streak: Member[int]  # `busy` of commands that followed close upon each other
    # One counter for all chunks would be the most contended word of the pool; 16 ranges keep claims
    # mostly local, and an idle thread steals from the ranges of others.
    ranges: Member[ChunkRange] = inline(ChunkRange, MOST_RANGES, line=True)
