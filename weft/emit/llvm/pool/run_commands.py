"""The loop over a launch queue, and a kernel that copies bytes.

Waking a thread costs time. No thread is woken for less work than that, unless queues have run
back to back for some time: threads that are awake then stay awake. A run may have been preempted,
so it counts for at most twice the time of the previous one.

A loop inside of a kernel has handlers of signals called, and these may run commands in their turn:
such a run is nested. It leaves the threads and the scratch to the run around it.
"""

from __future__ import annotations

from weft.emit.llvm.pool.state import CommandHead, CommandRow, PoolState, ThreadState
from weft.emit.llvm.pool.threads import drop, launch, now, scratch
from weft.native.function import copy, native
from weft.native.memory import Member, Pointer, Struct, i32

STREAK = (
    4  # times `waking`: the work of commands that follow each other closely, from which it pays
)
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
    if pool.running != 0:
        return run_nested(pool, commands)
    pool.running = 1
    failed = run_outermost(pool, commands)
    pool.running = 0
    return failed


@native(attribute="noinline")
def run_nested(pool: PoolState, commands: CommandHead) -> i32:
    """Run commands in this thread alone, with scratch of its own."""
    before = PoolState.failed.load(pool, "seq_cst")
    thread = ThreadState.new()
    thread.pool = pool
    thread.scratch = Pointer(0)
    thread.scratch_bytes = 0
    PoolState.failed.store(pool, 0, "seq_cst")
    command = CommandRow(commands)
    for _ in range(commands.count):
        command = command.nth(1)
        if command.scratch <= thread.scratch_bytes or scratch(thread, command.scratch):
            command.function(command.operands, thread.scratch, 0, command.tasks)
    drop(thread)
    failed = PoolState.failed.load(pool, "seq_cst")
    PoolState.failed.store(pool, before, "seq_cst")
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
    worth = took > pool.waking or streak > STREAK * pool.waking
    count = commands.count
    command = CommandRow(commands)
    for _ in range(count):
        command = command.nth(1)
        tasks = command.tasks
        chunk = command.chunk
        if tasks <= chunk or alone:
            need = command.scratch
            if need > thread.scratch_bytes and not scratch(thread, need):
                return PoolState.failed.load(pool, "seq_cst")
            command.function(command.operands, thread.scratch, 0, tasks)
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
