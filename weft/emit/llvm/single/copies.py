"""Box copies between buffers, split into tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from weft.emit.llvm.emitted import Emitted, Phase
from weft.emit.llvm.jit.processor import host
from weft.emit.llvm.writer.code import Writer, module_text
from weft.emit.llvm.writer.elements import address, bytes_of, copy_run, put, stream_run, take
from weft.emit.llvm.writer.nest import (
    TASK,
    LineTasks,
    function,
    larger,
    lines,
    moved,
    plus,
    pointers,
    smaller,
)
from weft.kernels.kernel import Operand
from weft.kernels.nest.loop_dims import LoopDim, merged
from weft.kernels.single_node import SingleNode, strides

LARGE = 1 / 4  # the share of the last cache from which non-temporal stores are used
_SHORT = 1 << 10  # bytes of a run that is too short for them
CopyRun = Callable[[Writer, str, str, "str | int", str], None]


def split_run(dims: Sequence[LoopDim]) -> tuple[list[LoopDim], int]:
    """A walk in two buffers as outer dims and the length of the contiguous run at each point."""
    found = merged(dims)
    if found and found[-1].steps == (1, 1):
        return found[:-1], found[-1].size
    return found, 1


def copy_tasks(dims: Sequence[LoopDim], size: int) -> tuple[LineTasks, int]:
    """The tasks of a copy, and the run at each point of their lines."""
    outer, run = split_run(dims)
    if run * size > TASK or not outer:
        return lines([*outer, LoopDim(run, (1, 1))], 2 * size), 1
    return lines(outer, 2 * size * run), run


def copy_function(
    name: str,
    dims: Sequence[LoopDim],
    size: int,
    buffers: tuple[int, int],
    starts: tuple[int, int] = (0, 0),
    *,
    unless_same: bool = False,
) -> tuple[Writer, LineTasks]:
    """A function that copies a box between operands, from given start elements.

    With `unless_same` it is a no-op if both operands are one buffer.
    """
    tasks, run = copy_tasks(dims, size)
    kind = f"i{8 * size}"
    code = function(name)
    found = pointers(code, max(buffers) + 1)
    source, target = found[buffers[0]], found[buffers[1]]
    if unless_same:
        leave(code, code.let(f"icmp eq ptr {source}, {target}"))
    with tasks.each(code) as (offsets, begin, end):
        a, b = (plus(code, o, n) for o, n in zip(offsets, starts, strict=True))
        nbytes = size * math.prod(d.size for d in dims)
        copy = run_copier(nbytes, size * (tasks.line.size if run == 1 else run))
        copy_line(code, tasks.line, run, (source, target), (a, b), (begin, end), (kind, copy))
    return code, tasks


def run_copier(total: int, run: int) -> CopyRun:
    """The copy routine for runs of so many bytes: non-temporal if the total exceeds the caches."""
    is_large = total >= LARGE * host().caches.last
    # Non-temporal stores spare the read for ownership and the caches; a short run would leave its
    # write-combining buffers half full.
    return stream_run if is_large and run > _SHORT else copy_run


def leave(code: Writer, condition: str) -> None:
    """Return early under a condition."""
    out, on = code.fresh("out"), code.fresh("on")
    code.do(f"br i1 {condition}, label %{out}, label %{on}")
    code.start(out)
    code.do("ret void")
    code.start(on)


def copy_whole(kernel: SingleNode, source: int, target: int, name: str) -> tuple[Writer, Phase]:
    """A function that copies an operand to one of the same local shape, unless they alias."""
    a, b = kernel.operands[source], kernel.operands[target]
    dims = box(kernel, a, b, b.shape[kernel.lead :])
    code, made = copy_function(name, dims, bytes_of(b), (source, target), unless_same=True)
    return code, made.phase(name)


def copy_line(
    code: Writer,
    line: LoopDim,
    run: int,
    buffers: tuple[str, str],
    offsets: tuple[str, str],
    piece: tuple[str, str],
    how: tuple[str, CopyRun],
) -> None:
    """Copy the runs along a piece of a line."""
    begin, end = piece
    source, target = buffers
    kind, copy = how
    if run == 1 and line.steps == (1, 1):
        a, b = moved(code, offsets, begin, (1, 1))
        count = code.let(f"sub nsw i64 {end}, {begin}")
        copy(code, address(code, target, b, kind), address(code, source, a, kind), count, kind)
        return
    with code.loop(begin, end) as loop:
        a, b = moved(code, offsets, loop.index, line.steps)
        if run == 1:
            put(code, take(code, source, a, kind), target, b, kind)
        else:
            places = address(code, target, b, kind), address(code, source, a, kind)
            copy(code, *places, run, kind)


def box(
    kernel: SingleNode, source: Operand, target: Operand, sizes: Sequence[int]
) -> list[LoopDim]:
    """The walk over all devices and a box of these sizes, in two operands."""
    sizes = (*kernel.devices, *sizes)
    a, b = strides(source.shape), strides(target.shape)
    return [LoopDim(n, pair) for n, pair in zip(sizes, zip(a, b, strict=True), strict=True)]


def fused_phase(name: str, parts: Sequence[tuple[Writer, LineTasks]]) -> Emitted:
    """One phase that runs the tasks of several functions in sequence."""
    parts = [part for part in parts if part[1].tasks]
    if len(parts) < 2:
        return Emitted(
            module_text(*[code for code, _ in parts]),
            tuple([tasks.phase(code.name) for code, tasks in parts]),
        )
    code = function(name)
    first = 0
    for part, tasks in parts:
        last = first + tasks.tasks
        begin = larger(code, code.let(f"sub nsw i64 %begin, {first}"), 0)
        end = smaller(code, code.let(f"sub nsw i64 %end, {first}"), tasks.tasks)
        with code.when(code.let(f"icmp slt i64 {begin}, {end}")):
            code.do(f"call void @{part.name}(ptr %operands, ptr %scratch, i64 {begin}, i64 {end})")
        first = last
    # Tasks of the parts cost about as much; the smallest chunk suits the most expensive ones.
    chunk = min(tasks.chunk for _, tasks in parts)
    return Emitted(module_text(*[part for part, _ in parts], code), (Phase(name, first, chunk),))
