"""The loop over a launch queue, and a kernel that copies bytes.

Waking a thread costs time. No thread is woken for less work than that, unless queues have run
back to back for some time: threads that are awake then stay awake. A run may have been preempted,
so it counts for at most twice the time of the previous one.

A run has all threads until it ends. A loop inside of a kernel has handlers of signals called, and
these may run commands in their turn: such a run is nested, and leaves the threads and the scratch
to the run around it. Native code that launches small programs holds the GIL, and does not wait for
another thread's run either.
"""

from __future__ import annotations

from weft.emit.llvm.pool.state import CommandHead, CommandRow, PoolState, ThreadState
from weft.emit.llvm.pool.threads import drop, grow, launch, scratch
from weft.native.function import copy, native, relax
from weft.native.libc import now, pthread_self
from weft.native.memory import Member, Pointer, Struct, i32

# A queue that runs once is not worth a wake-up below `waking`. A loop in Python over small queues
# is: its queues together are, and threads that were woken once stay awake between them.
STREAK = 4  # times `waking`: the work of consecutive queues from which waking threads pays off
PAUSE = 40_000  # nanoseconds between these: less than a thread looks for work before it sleeps
_LEAST = 1000  # nanoseconds that a run may count for


class CopyOperands(Struct):
    """The operands of a copy."""

    to: Member[Pointer]
    source: Member[Pointer]
    nbytes: Member[int]
    piece: Member[int]  # bytes that a task copies


@native
def run(pool: PoolState, commands: CommandHead) -> i32:
    """Run commands one after another; 0, or 1 if there was no memory for scratch."""
    me = pthread_self()
    # Monotonic: only this thread can have stored its own handle, so a stale value is another's.
    if PoolState.runner.load(pool, "monotonic") == me:
        return run_alone(commands)
    # Python runs one queue at a time: the threads are in use by a raw launch, which is short.
    while not claim(pool, me):
        relax()
    return run_claimed(pool, commands)


@native
def run_raw(pool: PoolState, commands: CommandHead) -> i32:
    """Run commands for native code: in this thread alone, where another run has the threads."""
    if not claim(pool, pthread_self()):
        return run_alone(commands)
    return run_claimed(pool, commands)


@native(attribute="alwaysinline")
def claim(pool: PoolState, me: Pointer) -> bool:
    """Take the threads for a run, unless another one has them."""
    # Acquire pairs with the release in `run_claimed`: scratch and ranges of the run before are
    # seen.
    return PoolState.runner.replace(pool, Pointer(0), me, "acquire", "monotonic")


@native
def run_claimed(pool: PoolState, commands: CommandHead) -> i32:
    """Run commands on the threads that this run has, and give them back."""
    # `pthread_self` is never null on the systems that are supported, so null can stand for "no
    # runner".
    failed = run_outermost(pool, commands)
    # Also after a failure: a pool whose runner stays set would make every later run spin in `run`.
    PoolState.runner.store(pool, Pointer(0), "release")
    return failed


@native(attribute="noinline")
def run_alone(commands: CommandHead) -> i32:
    """Run commands in this thread alone, with scratch of its own."""
    # On this function's stack: the outer run still uses the scratch of `pool.threads`, and may be
    # in the middle of a kernel that has values there.
    thread = ThreadState.new()
    thread.scratch = Pointer(0)
    thread.scratch_bytes = 0
    failed: i32 = 0
    command = CommandRow(commands)
    for _ in range(commands.count):
        command = command.nth(1)
        # A command that cannot run does not stop the others: the caller discards all results
        # anyway.
        if command.scratch <= thread.scratch_bytes or grow(thread, command.scratch):
            command.function(command.operands, thread.scratch, 0, command.tasks)
        else:
            failed = 1
    drop(thread)
    return failed


@native(attribute="alwaysinline")
def run_outermost(pool: PoolState, commands: CommandHead) -> i32:
    """Run commands on all threads, with their scratch."""
    thread = pool.threads
    alone = pool.alone != 0
    PoolState.failed.store(pool, 0, "seq_cst")
    PoolState.busy.store(pool, 0, "seq_cst")
    took = commands.took
    # Threads still spin after a queue that ended so recently: using them costs no wake-up.
    streak = pool.streak if now() - pool.ended < PAUSE else 0
    # Decided once for the whole queue: launches of one queue share the cost of waking, since
    # threads stay awake between them (`PAUSE`).
    worth = took > pool.waking or streak > STREAK * pool.waking
    count = commands.count
    command = CommandRow(commands)
    for _ in range(count):
        command = command.nth(1)
        tasks = command.tasks
        chunk = command.chunk
        # One chunk: the kernel is called here, without atomic operations and a wait.
        if tasks <= chunk or alone:
            need = command.scratch
            if need > thread.scratch_bytes and not scratch(thread, need):
                return PoolState.failed.load(pool, "seq_cst")
            command.function(command.operands, thread.scratch, 0, tasks)
        elif not worth and PoolState.sleepers.load(pool, "monotonic") == pool.workers:
            # All workers are parked: a launch costs more than its chunks may take.
            need = command.scratch
            if need > thread.scratch_bytes and not scratch(thread, need):
                return PoolState.failed.load(pool, "seq_cst")
            begun = now()
            command.function(command.operands, thread.scratch, 0, tasks)
            # No other thread is in this run: the atomic is for the type of the field alone.
            PoolState.busy.add(pool, now() - begun, "monotonic")
        else:
            launch(pool, thread, command, (tasks + chunk - 1) // chunk, worth)
    busy = PoolState.busy.load(pool, "seq_cst")
    # The estimate for the next run of this queue. It may double at most: time in which this process
    # was preempted would otherwise wake threads for tiny queues.
    commands.took = min(busy, max(took << 1, _LEAST))
    pool.streak = streak + busy
    pool.ended = now()
    return PoolState.failed.load(pool, "seq_cst")


@native
def copy_bytes(operands: CopyOperands, memory: Pointer, begin: int, end: int) -> None:
    """Copy bytes: a kernel."""
    low = begin * operands.piece
    high = min(end * operands.piece, operands.nbytes)
    copy(operands.to.plus(low), operands.source.plus(low), high - low)
