"""Copies of windows at dynamic indices: gather and dynamic slices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from weft.emit.llvm.emitted import Emitted, Phase
from weft.emit.llvm.single.copies import copy_whole, run_copier
from weft.emit.llvm.single.gather_elements import IndexedDim, gather_elements, gathers_elements
from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.code import Writer, module_text
from weft.emit.llvm.writer.elements import address, bytes_of, put, take
from weft.emit.llvm.writer.nest import (
    TASK,
    function,
    larger,
    lines,
    moved,
    plus,
    pointers,
    smaller,
    times,
)
from weft.emit.llvm.writer.vector import Vectors
from weft.kernels.kernel import Operand
from weft.kernels.nest.loop_dims import LoopDim, merged
from weft.kernels.single_node import SingleNode, strides
from weft.ops.index import Gather, TorchIndexSelect, Windows, gather_windows
from weft.ops.slicing import DynamicSlice, DynamicUpdateSlice
from weft.records import dataclass

# The dynamic offset: computed from the buffers and the offsets at a point.
IndexShift = Callable[[Writer, list[str], list[str]], str]


@dataclass(frozen=True, slots=True)
class Moving:
    """A copy between two buffers, one of them at a dynamic index."""

    dims: tuple[LoopDim, ...]  # with strides in every buffer
    source: int
    target: int
    shifted: int  # the buffer of the two that is indexed dynamically
    shift: IndexShift
    size: int  # bytes of an element


def read_index(code: Writer, base: str, offset: str | int, operand: Operand) -> str:
    """An element of an integer buffer as an i64, saturated."""
    (value,) = storage.load(Vectors(code, 1), base, offset, operand.dtype)
    signed = operand.dtype.kind == "int"
    if value.kind != "i64":
        return code.let(f"{'sext' if signed else 'zext'} {value.typed} to i64")
    if signed:
        return value.text
    # As a signed number it would be negative, and clamp to 0 instead of the limit.
    return code.call("i64", "llvm.umin.i64", ("i64", value.text), ("i64", str(2**63 - 1)))


def clamped(code: Writer, index: str, limit: int) -> str:
    """An index clamped to 0..limit."""
    if limit <= 0:
        return "0"
    return smaller(code, larger(code, index, 0), limit)


def move_windows(name: str, moving: Moving) -> tuple[Writer, Phase]:
    """A function that copies windows in the longest contiguous runs."""
    pair = (moving.source, moving.target)
    count = len(moving.dims[0].steps) if moving.dims else max(pair) + 1
    outer, run = _split(moving.dims, pair)
    none = (0,) * count
    unit = tuple([int(n in pair) for n in range(count)])
    # A run of more than a task is cut itself; otherwise a task has several runs.
    is_long = run * moving.size > TASK
    if is_long:
        tasks = lines([*outer, LoopDim(run, unit)], 2 * moving.size)
    else:
        # 8 bytes for the index that each run reads.
        tasks = lines(outer or [LoopDim(1, none)], 2 * moving.size * run + 8)
    code = function(name)
    buffers = pointers(code, count)
    kind = f"i{8 * moving.size}"
    nbytes = moving.size * math.prod(d.size for d in moving.dims)
    copy = run_copier(nbytes, run * moving.size)

    def move(offsets: list[str], length: str | int) -> None:
        shift = moving.shift(code, buffers, offsets)
        offsets = list(offsets)
        offsets[moving.shifted] = plus(code, offsets[moving.shifted], shift)
        source, target = (address(code, buffers[n], offsets[n], kind) for n in pair)
        if length == 1:
            put(code, take(code, source, 0, kind), target, 0, kind)
        else:
            copy(code, target, source, length, kind)

    with tasks.each(code) as (offsets, begin, end):
        if is_long:
            length = code.let(f"sub nsw i64 {end}, {begin}")
            move(moved(code, offsets, begin, unit), length)
        else:
            with code.loop(begin, end) as loop:
                move(moved(code, offsets, loop.index, tasks.line.steps), run)
    return code, tasks.phase(name)


def _split(dims: Sequence[LoopDim], pair: tuple[int, int]) -> tuple[list[LoopDim], int]:
    """The outer dims, and the length of the run that is contiguous in both buffers.

    A dim without dynamic indices is part of a run if it is contiguous.
    """
    fused = merged(dims)
    if fused:
        steps = fused[-1].steps
        rest = [s for n, s in enumerate(steps) if n not in pair]
        if steps[pair[0]] == steps[pair[1]] == 1 and not any(rest):
            # A stride in the index buffer would mean another window at each element.
            return fused[:-1], fused[-1].size
    return fused, 1


# Gather


def gather(kernel: SingleNode) -> Emitted:
    """Windows of the operand, one run at a time, in the order of the result."""
    match kernel.op:
        case Gather(dimension_numbers=dims, slice_sizes=sizes):
            return _gather(kernel, gather_windows(dims), sizes)
        case TorchIndexSelect() as op:
            return _gather(kernel, *_selected(kernel, op))
    raise AssertionError(f"{kernel.op.name} gathers nothing")


def _selected(kernel: SingleNode, op: TorchIndexSelect) -> tuple[Windows, tuple[int, ...]]:
    """An index_select as a gather: its dimension numbers and window sizes."""
    shape, rows = (o.shape[kernel.lead :] for o in kernel.inputs)
    dim = op.dim % len(shape)
    shared = tuple(range(op.batch_dims % (len(rows) + 1) if op.batch_dims < 0 else op.batch_dims))
    added = len(rows) - len(shared)
    rank = len(shape) - 1 + added
    offsets = [d for d in range(rank) if d >= len(shared) and not dim <= d < dim + added]
    windows = Windows(tuple(offsets), (dim,), shared, shared, (dim,), len(rows))
    return windows, tuple([1 if d == dim or d in shared else n for d, n in enumerate(shape)])


def _gather(kernel: SingleNode, windows: Windows, sizes: tuple[int, ...]) -> Emitted:
    source, indices, out = kernel.operands
    if not out.size:
        return Emitted("", ())
    dims = window_dims(kernel, windows, (source, indices, out))
    lead = kernel.lead
    room = [n - size for n, size in zip(source.shape[lead:], sizes, strict=True)]
    outer, run = _split(dims, (0, 2))
    if run == 1 and gathers_elements(outer, bytes_of(out)):
        pointed = _pointed(windows, source, indices, lead, room)
        return gather_elements(kernel.name, outer, (source, indices, out), pointed)
    shift = gathered_shift(windows, source, indices, lead, room)
    moving = Moving(tuple(dims), 0, 2, 0, shift, bytes_of(out))
    code, phase = move_windows(kernel.name, moving)
    return Emitted(module_text(code), (phase,))


def window_dims(
    kernel: SingleNode, windows: Windows, operands: tuple[Operand, Operand, Operand]
) -> list[LoopDim]:
    """The walk over devices and `slices`, with strides in the operand, the indices and them."""
    source, indices, slices = operands
    lead = kernel.lead
    a, b, c = (strides(o.shape) for o in operands)
    dims = [LoopDim(n, (a[d], b[d], c[d])) for d, n in enumerate(kernel.devices)]
    rank = len(source.shape) - lead
    operand_dims = iter(windows.operand_dims(rank))
    rows = iter([d for d in range(len(indices.shape) - lead) if d != windows.vector])
    batching = dict(zip(windows.indices_batching, windows.operand_batching, strict=True))
    for dim, size in enumerate(slices.shape[lead:]):
        step = c[lead + dim]
        if dim in windows.window:
            dims.append(LoopDim(size, (a[lead + next(operand_dims)], 0, step)))
            continue
        row = next(rows)
        along = batching.get(row)
        # A batching dim walks in operand and indices at once.
        own = 0 if along is None else a[lead + along]
        dims.append(LoopDim(size, (own, b[lead + row], step)))
    return dims


def _pointed(
    windows: Windows, source: Operand, indices: Operand, lead: int, room: Sequence[int]
) -> list[IndexedDim]:
    """The indexed dims in which a window has room to move."""
    steps = strides(source.shape)
    vector = windows.vector + lead
    step = strides(indices.shape)[vector] if vector < len(indices.shape) else 0
    return [
        IndexedDim(steps[lead + dim], room[dim], n * step)
        for n, dim in enumerate(windows.start_map)
        if room[dim] > 0
    ]


def gathered_shift(
    windows: Windows, source: Operand, indices: Operand, lead: int, room: Sequence[int]
) -> IndexShift:
    """The start of a window, clamped to stay inside."""
    pointed = _pointed(windows, source, indices, lead, room)

    def shift(code: Writer, buffers: list[str], offsets: list[str]) -> str:
        total = "0"
        for one in pointed:
            index = read_index(code, buffers[1], plus(code, offsets[1], one.at), indices)
            place = clamped(code, index, one.limit)
            total = plus(code, total, times(code, place, one.step))
        return total

    return shift


# Dynamic slices


def dynamic_slice(kernel: SingleNode) -> Emitted:
    """A box of the operand, at scalar start indices."""
    op, out = kernel.op, kernel.operands[-1]
    assert isinstance(op, DynamicSlice)
    if not out.size:
        return Emitted("", ())
    moving = _boxed(kernel, 0, len(kernel.operands) - 1, 0, op.slice_sizes)
    code, phase = move_windows(kernel.name, moving)
    return Emitted(module_text(code), (phase,))


def _boxed(
    kernel: SingleNode, source: int, target: int, shifted: int, sizes: Sequence[int]
) -> Moving:
    """A box copied between two operands, one of them at scalar start indices."""
    operands, lead = kernel.operands, kernel.lead
    steps = [strides(o.shape) for o in operands]
    dims = [LoopDim(n, tuple([s[d] for s in steps])) for d, n in enumerate(kernel.devices)]
    pair = (source, target)
    for dim, size in enumerate(sizes):
        own = [s[lead + dim] if n in pair else 0 for n, s in enumerate(steps)]
        dims.append(LoopDim(size, tuple(own)))
    whole = operands[shifted].shape[lead:]
    first = len(operands) - 1 - len(whole)  # the scalars precede the result

    def shift(code: Writer, buffers: list[str], offsets: list[str]) -> str:
        total = "0"
        for dim, (size, room) in enumerate(zip(sizes, whole, strict=True)):
            # A box without room to move starts at 0, whatever the index.
            if room - size <= 0:
                continue
            at = first + dim
            index = read_index(code, buffers[at], offsets[at], operands[at])
            place = clamped(code, index, room - size)
            total = plus(code, total, times(code, place, steps[shifted][lead + dim]))
        return total

    return Moving(tuple(dims), source, target, shifted, shift, bytes_of(operands[target]))


def dynamic_update_slice(kernel: SingleNode) -> Emitted:
    """The operand copied, unless it aliases the result; then the update stored into it."""
    op, out = kernel.op, kernel.operands[-1]
    assert isinstance(op, DynamicUpdateSlice)
    if not out.size:
        return Emitted("", ())
    last = len(kernel.operands) - 1
    codes, phases = [], []
    copy, phase = copy_whole(kernel, 0, last, f"{kernel.name}_copy")
    codes.append(copy)
    phases.append(phase)
    update = kernel.operands[1]
    if update.size:
        moving = _boxed(kernel, 1, last, last, update.shape[kernel.lead :])
        code, phase = move_windows(kernel.name, moving)
        codes.append(code)
        phases.append(phase)
    return Emitted(module_text(*codes), tuple(phases))
