"""The threads of the pool: workers that spin and park, and launches on all of them.

The chunks of a launch are cut into ranges. A thread begins with a range of its own, so that it
finds in its caches what it wrote in the launch before, and helps with the others then. A chunk is
claimed by counting its range down, and only then is the launch read: it stays as it is until all
claimed chunks are done, so a late worker gets nothing or a chunk of the launch that stands there.
"""

from __future__ import annotations

from weft.emit.llvm.pool.sleep import prepare, sleep, wake
from weft.emit.llvm.pool.state import (
    MOST_RANGES,
    ChunkRange,
    CommandRow,
    LaunchState,
    PoolState,
    ThreadState,
)
from weft.native.function import copy, native, relax, to_i32, to_int
from weft.native.libc import (
    free,
    now,
    posix_memalign,
    pthread_create,
    pthread_join,
)
from weft.native.memory import Pointer, i32

WAKE = 30_000  # nanoseconds that waking threads costs
_ALL = 0x7FFFFFFF
_PAGE = 4096
# Scratch comes in whole pages, so that a slightly larger need later does not allocate again.
_VECTOR = 64  # bytes that scratch is aligned to


@native
def scratch(thread: ThreadState, need: int) -> Pointer:
    """The scratch of a thread, of at least so many bytes; null if there is no memory."""
    if need <= thread.scratch_bytes:
        return thread.scratch
    # Not an error of this chunk alone: the flag is read once, after the launch, and the run fails.
    if not grow(thread, need):
        PoolState.failed.store(thread.pool, 1, "seq_cst")
    return thread.scratch


@native
def grow(thread: ThreadState, need: int) -> Pointer:
    """New scratch of a thread, of at least so many bytes; null if there is no memory."""
    # Freed first, not grown by realloc: the contents are dead, and copying them would touch pages
    # that the kernel is about to overwrite.
    old = thread.scratch
    thread.scratch = Pointer(0)
    thread.scratch_bytes = 0
    free(old)
    size = (need + (_PAGE - 1)) & -_PAGE
    if posix_memalign(ThreadState.scratch.of(thread), _VECTOR, size) != 0:
        return Pointer(0)
    thread.scratch_bytes = size
    return thread.scratch


@native
def drop(thread: ThreadState) -> None:
    """Free the scratch of a thread."""
    memory = thread.scratch
    thread.scratch = Pointer(0)
    thread.scratch_bytes = 0
    free(memory)


@native
def work(pool: PoolState, thread: ThreadState) -> None:
    """Run chunks of the launch until none is left: of the thread's own range, then of others."""
    launch = pool.launch
    # A late worker may read another launch's number: it then looks at too few ranges, which the
    # caller empties in any case, or at some that are empty.
    ranges = LaunchState.ranges.load(launch, "monotonic")
    number = thread.number % ranges
    counted: i32 = 0
    memory = Pointer(0)
    begun = 0
    for _ in range(ranges):
        chunks = pool.ranges.nth(number)
        # A plain look first: an atomic add on an exhausted range would pull its cache line away
        # from the threads that still work in it.
        while ChunkRange.left.load(chunks, "monotonic") > 0:
            claim = ChunkRange.left.add(chunks, -1, "seq_cst")
            if claim <= 0:
                break
            # Read after the claim, which acquires what `launch` released with the range: a late
            # worker of the previous launch sees the launch that its chunk belongs to.
            need = launch.scratch
            if counted == 0:
                begun = now()
                memory = scratch(thread, need)
            if memory or need == 0:
                low = (chunks.end - claim) * launch.chunk
                high = min(low + launch.chunk, launch.tasks)
                launch.function(launch.operands, memory, low, high)
            # Counted even without memory: the launch must end, and `failed` says why nothing ran.
            counted += 1
        number += 1
        if number == ranges:
            number = 0
    if counted == 0:
        return
    PoolState.busy.add(pool, now() - begun, "seq_cst")
    # The launch may change as soon as all chunks are counted.
    all_chunks = to_i32(launch.chunks)
    # One addition for all chunks of this thread, not one for each: the counter's cache line would
    # move between the cores with every chunk.
    done = PoolState.done.add(pool, counted, "seq_cst") + counted
    # `wait` stores `waiting` and then loads `done`, both seq_cst as here: one of the two sees the
    # other, so the caller never sleeps with all chunks done.
    if done == all_chunks and PoolState.waiting.load(pool, "seq_cst") != 0:
        wake(pool, PoolState.done.of(pool), 1, pool.finished)


@native
def worker(thread: ThreadState) -> Pointer:
    """The main function of a worker."""
    pool = thread.pool
    spins = pool.spins
    # The epoch starts at 0 as well, in zeroed memory: a worker that starts late sees any launch
    # before it as a change of the epoch.
    last: i32 = 0
    while True:
        seen = PoolState.epoch.load(pool, "seq_cst")
        spun = 0
        has_slept = False
        while seen == last and spun < spins:
            relax()
            spun += 1
            seen = PoolState.epoch.load(pool, "seq_cst")
        while seen == last:
            # Counted before sleeping, and the epoch is checked again by the system call itself:
            # `launch` changes the epoch and then reads `sleepers`, so it wakes this thread or the
            # sleep returns at once.
            PoolState.sleepers.add(pool, 1, "seq_cst")
            sleep(pool, PoolState.epoch.of(pool), last, pool.started)
            PoolState.sleepers.add(pool, -1, "seq_cst")
            has_slept = True
            seen = PoolState.epoch.load(pool, "seq_cst")
        last = seen
        if PoolState.quit.load(pool, "seq_cst") != 0:
            return Pointer(0)
        # A launch of few chunks has no use for all threads, and each that looks for a chunk takes
        # cache lines from those that have one. Which threads a wake-up reaches is the system's
        # choice, so these always look.
        if has_slept or thread.number < to_int(PoolState.wanted.load(pool, "monotonic")):
            work(pool, thread)


@native
def start(pool: PoolState, threads: ThreadState, count: int) -> int:
    """Start workers 1..count-1; how many threads there are then."""
    prepare(pool)
    threads.pool = pool
    pool.threads = threads
    pool.range_count = min(count, MOST_RANGES)
    # The caller is thread 0 and has no pthread; its scratch is used by single-task launches, too.
    started = 1
    while started < count:
        thread = threads.nth(started)
        thread.pool = pool
        thread.number = started
        if pthread_create(ThreadState.handle.of(thread), Pointer(0), worker, thread) != 0:
            break
        started += 1
    pool.alone = to_int(started == 1)
    pool.workers = to_i32(started - 1)
    # n threads save (n - 1) / n of the work's time, at the price of waking them.
    pool.waking = WAKE * started // max(started - 1, 1)
    return started


@native
def stop(pool: PoolState, threads: ThreadState, count: int) -> None:
    """Join all workers and free the scratch of all threads."""
    # Before the epoch: a worker that sees the new epoch must see `quit`, or it would look for work
    # in a launch that is over and go to sleep for good.
    PoolState.quit.store(pool, 1, "seq_cst")
    PoolState.epoch.add(pool, 1, "seq_cst")
    wake(pool, PoolState.epoch.of(pool), _ALL, pool.started)
    # Threads are joined before their scratch is freed: a worker may still be inside of `work`, at a
    # launch that it came too late for.
    for n in range(1, count):
        pthread_join(threads.nth(n).handle, Pointer(0))
        drop(threads.nth(n))
    drop(threads)


@native(attribute="noinline")
def launch(
    pool: PoolState, thread: ThreadState, command: CommandRow, chunks: int, worth: bool
) -> None:
    """One launch on all threads, the caller's included; parked ones are woken if `worth`."""
    copy(pool.launch, command, CommandRow.scratch.offset + CommandRow.scratch.size)
    pool.launch.chunks = chunks
    # Before any range opens: a late worker may claim a chunk as soon as its range is refilled.
    # `done` counts from 0 for each launch; the caller has waited for the last one's chunks, so
    # nothing adds to it any more.
    PoolState.done.store(pool, 0, "release")
    ranges = min(pool.range_count, chunks)
    # At most one range for each chunk: an empty range would be a cache line to look at for nothing.
    LaunchState.ranges.store(pool.launch, ranges, "monotonic")
    # Ranges differ by one chunk at most, and their order is that of the tasks: neighbouring tasks,
    # which often share cache lines, stay with one thread.
    begin = 0
    for number in range(ranges):
        end = chunks * (number + 1) // ranges
        part = pool.ranges.nth(number)
        part.end = end
        # Last: it publishes the launch and the range's end to the thread that claims from it.
        ChunkRange.left.store(part, end - begin, "release")
        begin = end
    # Ordered by the add below: a worker loads it after it has seen the new epoch. A stale value
    # costs a look for work at most.
    PoolState.wanted.store(pool, to_i32(min(chunks, _ALL)), "monotonic")
    PoolState.epoch.add(pool, 1, "seq_cst")
    sleepers = PoolState.sleepers.load(pool, "seq_cst")
    if sleepers > 0 and worth:
        # One chunk is the caller's own.
        wake(pool, PoolState.epoch.of(pool), min(to_i32(chunks) - 1, sleepers), pool.started)
    work(pool, thread)
    # The caller has worked, too, and looked at all ranges: a launch ends even if no worker wakes up
    # for it. What is left are chunks that workers have claimed.
    wait(pool, to_i32(chunks))


@native(attribute="alwaysinline")
def wait(pool: PoolState, chunks: i32) -> None:
    """Wait until all chunks of the launch are done."""
    spins = pool.spins
    spun = 0
    while PoolState.done.load(pool, "seq_cst") != chunks:
        relax()
        spun += 1
        if spun >= spins:
            PoolState.waiting.store(pool, 1, "seq_cst")
            done = PoolState.done.load(pool, "seq_cst")
            while done != chunks:
                sleep(pool, PoolState.done.of(pool), done, pool.finished)
                done = PoolState.done.load(pool, "seq_cst")
            PoolState.waiting.store(pool, 0, "seq_cst")
            return


@native
def spin(rounds: int) -> None:
    """Spin, to calibrate the spin count."""
    for _ in range(rounds):
        relax()
