"""Task functions of a plan: from a task number to the loops inside of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.emit.llvm.loops.loops import Loops
from weft.emit.llvm.loops.plan import LoopPlan
from weft.emit.llvm.loops.transpose_tiles import (
    transpose_back,
    transpose_functions,
    transpose_tiles,
)
from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.nest import PARAMS, divided, function, plus, pointers, smaller, times
from weft.kernels.kernel import Store


def tasks_text(
    plan: LoopPlan, name: str, operands: int, shared: Sequence[int]
) -> tuple[list[Writer], int]:
    """The functions that run tasks begin..end of a plan, and the scratch bytes they need.

    Operands beyond the first ones are at offsets in the workspace. Non-temporal stores need aligned
    operands: the function checks them when called, and falls back to a variant with plain stores.
    """
    extra = [] if plan.transposed is None else transpose_functions(plan.kernel, plan.transposed)
    steps = plan.kernel.steps
    # Never past the caches into the workspace: the next stage reads it.
    ours = {n for n, s in enumerate(steps) if isinstance(s, Store) and s.operand < operands}
    plan = replace(plan, streams=plan.streams & ours)
    if not plan.streams:
        code = function(name, excess_precision=plan.kernel.excess_precision)
        _, scratch = _tasks(plan, code, operands, shared)
        return [*extra, code], scratch
    excess = plan.kernel.excess_precision
    plain, streaming = (
        Writer(f"{name}_{way}", PARAMS, internal=True, excess_precision=excess)
        for way in ("plain", "past")
    )
    _, scratch = _tasks(replace(plan, streams=frozenset()), plain, operands, shared)
    _tasks(plan, streaming, operands, shared)
    inner = function(name)
    buffers = pointers(inner, operands)
    stored = [step for n, step in enumerate(plan.kernel.steps) if n in plan.streams]
    bits = "0"
    for operand in sorted({s.operand for s in stored if isinstance(s, Store)}):
        address = inner.let(f"ptrtoint ptr {buffers[operand]} to i64")
        bits = address if bits == "0" else inner.let(f"or i64 {bits}, {address}")
    loose = inner.let(f"and i64 {bits}, 63")
    names = ", ".join(PARAMS)
    for way, how in ((streaming, "eq"), (plain, "ne")):
        with inner.when(inner.let(f"icmp {how} i64 {loose}, 0")):
            inner.do(f"call void @{way.name}({names})")
    return [*extra, plain, streaming, inner], scratch


def _tasks(
    plan: LoopPlan, code: Writer, operands: int, shared: Sequence[int]
) -> tuple[Writer, int]:
    buffers = pointers(code, operands + bool(shared))
    if shared:
        # The workspace is the pointer after the operands'.
        base = buffers.pop()
        buffers += [code.let(f"getelementptr i8, ptr {base}, i64 {at}") for at in shared]
    loops = Loops(plan, code, buffers)
    sinks = [n for n, step in enumerate(plan.kernel.steps) if isinstance(step, Store)]
    if not plan.tasks:
        loops.run(sinks)
    elif plan.transposed is None and len(plan.tasks) == 1 and plan.tasks[0][1] > 1:
        # Consecutive tasks are one long loop.
        ((factor, block),) = plan.tasks
        last = smaller(code, times(code, "%end", block), plan.kernel.factors[factor].size)
        loops.bounds[factor] = (times(code, "%begin", block), last)
        loops.run(sinks)
    else:
        if plan.transposed is None:
            loops.read_ahead()
        with code.loop("%begin", "%end") as task:
            _at_task(loops, task.index)
            _run_between(loops, sinks, [f for f, block in plan.tasks if block == 1])
    if plan.streams:
        # non-temporal stores are weakly ordered: make them visible to other threads
        code.do("fence seq_cst")
    return code, loops.at.most_scratch


def _run_between(loops: Loops, sinks: list[int], factors: list[int]) -> None:
    """Run a task, with specialized code on either side where a guard of a task factor changes."""
    if not factors:
        _run_transposed(loops, sinks)
        return
    factor, *rest = factors
    cuts = loops.cuts(factor, sinks)
    if not cuts:
        _run_between(loops, sinks, rest)
        return
    at, code = loops.at, loops.code
    for first, end in loops.segments(factor, cuts):
        above = code.let(f"icmp sge i64 {at.index[factor]}, {first}")
        below = code.let(f"icmp slt i64 {at.index[factor]}, {end}")
        with code.when(code.let(f"and i1 {above}, {below}")):
            known = dict(at.known)
            _run_between(loops, sinks, rest)
            at.known = known


def _run_transposed(loops: Loops, sinks: list[int]) -> None:
    """Run a task with transposed tiles: gathered before it, written back after it."""
    transposed, room = loops.plan.transposed, loops.at.scratch
    if transposed is None:
        loops.run(sinks)
    else:
        transpose_tiles(loops, transposed)
        loops.run(sinks)
        transpose_back(loops, transposed)
        loops.at.scratch = room


def _at_task(loops: Loops, number: str) -> None:
    """Open the task factors at the task of a number."""
    plan, code = loops.plan, loops.code
    for n, (factor, block) in reversed(list(enumerate(plan.tasks))):
        size = plan.kernel.factors[factor].size
        number, index = divided(code, number, -(-size // block)) if n else ("0", number)
        if block > 1:
            loops.bounds[factor] = _block(code, index, block, size)
        else:
            loops.at.index[factor], loops.at.ranges[factor] = index, (0, size)
        if plan.cut is not None and factor == 0:
            cut, block = plan.cut
            loops.bounds[cut] = _block(code, index, block, plan.kernel.factors[cut].size)


def _block(code: Writer, number: str, block: int, size: int) -> tuple[str, str]:
    """The begin and end of a block."""
    low = times(code, number, block)
    return low, smaller(code, plus(code, low, block), size)
