"""Elements that are moved and not looked at: copies of boxes, concatenation, padding, reversal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.emit.llvm.code import Code, module_text
from weft.emit.llvm.nest import (
    TASK,
    Along,
    Lines,
    divided,
    function,
    larger,
    lines,
    merged,
    moved,
    plus,
    pointers,
    smaller,
    times,
    vectors_and_rest,
    walk,
)
from weft.kernels.alone import Alone, strides
from weft.kernels.emitted import Emitted, Phase
from weft.kernels.kernel import Operand
from weft.ops.shape import Reverse
from weft.ops.slicing import Concatenate, Pad

VECTOR = 64  # bytes moved by one instruction


def bits_of(operand: Operand) -> str:
    """The integer that has the bits of an element."""
    return f"i{8 * operand.dtype.numpy.itemsize}"


def bytes_of(operand: Operand) -> int:
    """The bytes of an element."""
    return int(operand.dtype.numpy.itemsize)


def address(code: Code, base: str, offset: str | int, kind: str) -> str:
    """Where an element is."""
    return (
        base if str(offset) == "0" else code.let(f"getelementptr {kind}, ptr {base}, i64 {offset}")
    )


def align(kind: str) -> int:
    """The alignment that every buffer keeps: that of its elements, as numpy has it."""
    return min(int(kind[1:]) // 8, 8)


def take(code: Code, base: str, offset: str | int, kind: str) -> str:
    """An element."""
    place = address(code, base, offset, kind)
    return code.let(f"load {kind}, ptr {place}, align {align(kind)}")


def put(code: Code, value: str, base: str, offset: str | int, kind: str) -> None:
    """Write an element."""
    place = address(code, base, offset, kind)
    code.do(f"store {kind} {value}, ptr {place}, align {align(kind)}")


def copy_run(code: Code, target: str, source: str, count: str | int, kind: str) -> None:
    """Copy neighbouring elements from one address to another."""
    size = int(kind[1:]) // 8
    length = str(count * size) if isinstance(count, int) else times(code, count, size)
    code.declare("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
    where = f"ptr align {align(kind)}"
    code.do(
        f"call void @llvm.memcpy.p0.p0.i64({where} {target}, {where} {source}, i64 {length}, i1 0)"
    )


def fill_run(code: Code, base: str, begin: str, end: str, value: str, kind: str) -> None:
    """Write one value to the elements begin..end of a buffer."""
    width = max(1, VECTOR * 8 // int(kind[1:]))
    type = f"<{width} x {kind}>"
    one = code.let(f"insertelement {type} poison, {kind} {value}, i64 0")
    zero = f"<{width} x i32> zeroinitializer"
    many = code.let(f"shufflevector {type} {one}, {type} poison, {zero}")
    for step, index in vectors_and_rest(code, begin, end, width):
        if step == 1:
            put(code, value, base, index, kind)
        else:
            place = address(code, base, index, kind)
            code.do(f"store {type} {many}, ptr {place}, align {align(kind)}")


def move_box(
    code: Code, dims: Sequence[Along], source: str, target: str, offsets: Sequence[str], kind: str
) -> None:
    """Copy a box; the dims have a step in the source and one in the target."""
    found = merged(dims)
    run = found.pop() if found and found[-1].steps == (1, 1) else None
    with walk(code, found, offsets) as (a, b):
        if run is None:
            put(code, take(code, source, a, kind), target, b, kind)
        else:
            places = address(code, target, b, kind), address(code, source, a, kind)
            copy_run(code, *places, run.size, kind)


def split_run(dims: Sequence[Along]) -> tuple[list[Along], int]:
    """A walk in two buffers as dims and the length of the run that lies at each point."""
    found = merged(dims)
    if found and found[-1].steps == (1, 1):
        return found[:-1], found[-1].size
    return found, 1


def copy_tasks(dims: Sequence[Along], size: int) -> tuple[Lines, int]:
    """The tasks of a copy in two buffers, and the run at each point of their lines."""
    outer, run = split_run(dims)
    if run * size > TASK or not outer:
        return lines([*outer, Along(run, (1, 1))], 2 * size), 1
    return lines(outer, 2 * size * run), run


def copy_function(
    name: str,
    dims: Sequence[Along],
    size: int,
    buffers: tuple[int, int],
    starts: tuple[int, int] = (0, 0),
    *,
    unless_same: bool = False,
) -> tuple[Code, Lines]:
    """A function that copies a box from one operand to another, beginning at some elements.

    With `unless_same` nothing is done if both operands are one buffer.
    """
    made, run = copy_tasks(dims, size)
    kind = f"i{8 * size}"
    code = function(name)
    found = pointers(code, max(buffers) + 1)
    source, target = found[buffers[0]], found[buffers[1]]
    if unless_same:
        leave(code, code.let(f"icmp eq ptr {source}, {target}"))
    with made.each(code) as (offsets, begin, end):
        a, b = (plus(code, o, n) for o, n in zip(offsets, starts, strict=True))
        copy_line(code, made.line, run, (source, target), (a, b), (begin, end), kind)
    return code, made


def leave(code: Code, condition: str) -> None:
    """Return where a condition holds."""
    out, on = code.fresh("out"), code.fresh("on")
    code.do(f"br i1 {condition}, label %{out}, label %{on}")
    code.start(out)
    code.do("ret void")
    code.start(on)


def copy_whole(kernel: Alone, source: int, target: int, name: str) -> tuple[Code, Phase]:
    """A function that copies an operand to one of the same local shape, unless they are one."""
    a, b = kernel.operands[source], kernel.operands[target]
    dims = box(kernel, a, b, b.shape[kernel.lead :])
    code, made = copy_function(name, dims, bytes_of(b), (source, target), unless_same=True)
    return code, made.phase(name)


def copy_line(
    code: Code,
    line: Along,
    run: int,
    buffers: tuple[str, str],
    offsets: tuple[str, str],
    piece: tuple[str, str],
    kind: str,
) -> None:
    """Copy the runs along a piece of a line."""
    begin, end = piece
    source, target = buffers
    if run == 1 and line.steps == (1, 1):
        a, b = moved(code, offsets, begin, (1, 1))
        count = code.let(f"sub nsw i64 {end}, {begin}")
        copy_run(code, address(code, target, b, kind), address(code, source, a, kind), count, kind)
        return
    with code.loop(begin, end) as loop:
        a, b = moved(code, offsets, loop.index, line.steps)
        if run == 1:
            put(code, take(code, source, a, kind), target, b, kind)
        else:
            places = address(code, target, b, kind), address(code, source, a, kind)
            copy_run(code, *places, run, kind)


def box(kernel: Alone, source: Operand, target: Operand, sizes: Sequence[int]) -> list[Along]:
    """The walk over all devices and a box of these sizes, in two operands."""
    sizes = (*kernel.devices, *sizes)
    a, b = strides(source.shape), strides(target.shape)
    return [Along(n, pair) for n, pair in zip(sizes, zip(a, b, strict=True), strict=True)]


def together(name: str, parts: Sequence[tuple[Code, Lines]]) -> Emitted:
    """One phase that runs the tasks of several functions, one behind the other."""
    parts = [part for part in parts if part[1].tasks]
    if len(parts) < 2:
        return Emitted(
            module_text(*[code for code, _ in parts]),
            tuple([made.phase(code.name) for code, made in parts]),
        )
    code = function(name)
    first = 0
    for part, made in parts:
        last = first + made.tasks
        begin = larger(code, code.let(f"sub nsw i64 %begin, {first}"), 0)
        end = smaller(code, code.let(f"sub nsw i64 %end, {first}"), made.tasks)
        with code.when(code.let(f"icmp slt i64 {begin}, {end}")):
            code.do(f"call void @{part.name}(ptr %operands, ptr %scratch, i64 {begin}, i64 {end})")
        first = last
    chunk = min(made.chunk for _, made in parts)
    return Emitted(module_text(*[part for part, _ in parts], code), (Phase(name, first, chunk),))


def concatenate(kernel: Alone) -> Emitted:
    """Each operand is a box of the result."""
    op, out = kernel.op, kernel.operands[-1]
    assert isinstance(op, Concatenate)
    dim, size = kernel.lead + op.dimension, bytes_of(out)
    parts, start = [], 0
    for n, source in enumerate(kernel.inputs):
        dims = box(kernel, source, out, source.shape[kernel.lead :])
        step = math.prod(out.shape[dim + 1 :])
        buffers = (n, len(kernel.inputs))
        made = copy_function(f"{kernel.name}_{n}", dims, size, buffers, (0, start * step))
        if source.size:
            parts.append(made)
        start += source.shape[dim]
    return together(kernel.name, parts)


def reverse(kernel: Alone) -> Emitted:
    """A copy whose steps in the operand go backwards along some dims."""
    op, (source, out) = kernel.op, kernel.operands
    assert isinstance(op, Reverse)
    dims = box(kernel, source, out, out.shape[kernel.lead :])
    start = 0
    for d in op.dimensions:
        size, (step, other) = dims[kernel.lead + d].size, dims[kernel.lead + d].steps
        start += (size - 1) * step
        dims[kernel.lead + d] = Along(size, (-step, other))
    return together(
        kernel.name, [copy_function(kernel.name, dims, bytes_of(out), (0, 1), (start, 0))]
    )


def pad(kernel: Alone) -> Emitted:
    """Row by row of the result: the value first, then what the operand has of the row."""
    op, (source, value, out) = kernel.op, kernel.operands
    assert isinstance(op, Pad)
    if not out.size:
        return Emitted("", ())
    lead, kind = kernel.lead, bits_of(out)
    shape = out.shape if len(out.shape) > lead else (*out.shape, 1)
    steps = [strides(o.shape) for o in (source, value, out)]
    given = [op.edge_padding_low, op.interior_padding, source.shape[lead:]]
    spread = [(low, gap + 1, n) for low, gap, n in zip(*given, strict=True)] or [(0, 1, 1)]
    rows = lines([Along(n, (0,)) for n in shape], bytes_of(out))
    code = function(kernel.name)
    found = pointers(code, 3)
    with code.loop("%begin", "%end") as task:
        pieces = -(-shape[-1] // rows.piece)
        row, piece = divided(code, task.index, pieces)
        begin = times(code, piece, rows.piece)
        end = smaller(code, plus(code, begin, rows.piece), shape[-1])
        first = times(code, row, shape[-1])
        at, inside = ["0", "0"], "true"
        for dim in reversed(range(len(shape) - 1)):
            row, index = divided(code, row, shape[dim]) if dim else ("0", row)
            if dim < lead:
                at = moved(code, at, index, [steps[0][dim], steps[1][dim]])
                continue
            index, hit = _source(code, index, *spread[dim - lead])
            at = [plus(code, at[0], times(code, index, steps[0][dim])), at[1]]
            inside = code.let(f"and i1 {inside}, {hit}")
        filling = take(code, found[1], at[1], kind)
        target = address(code, found[2], first, kind)
        fill_run(code, target, begin, end, filling, kind)
        with code.when(inside):
            _put_row(
                code, address(code, found[0], at[0], kind), target, begin, end, spread[-1], kind
            )
    return Emitted(module_text(code), (rows.phase(kernel.name),))


def _source(code: Code, index: str, low: int, step: int, size: int) -> tuple[str, str]:
    """Which element of the operand stands at an index of the result, and whether there is one."""
    from_low = plus(code, index, -low)
    quotient = from_low
    hit = code.let(f"icmp ult i64 {from_low}, {(size - 1) * step + 1 if size else 0}")
    if step > 1:
        quotient, left = divided(code, from_low, step)
        hit = code.let(f"and i1 {hit}, {code.let(f'icmp eq i64 {left}, 0')}")
    return quotient, hit


def _put_row(
    code: Code,
    source: str,
    target: str,
    begin: str,
    end: str,
    spread: tuple[int, int, int],
    kind: str,
) -> None:
    """Put the elements of a row of the operand to where they stand in the result."""
    low, step, size = spread
    # The first element at or behind a place: the place less `low`, divided by the step, rounded up.
    limits = []
    for place in (begin, end):
        above = larger(code, plus(code, place, step - 1 - low), 0)
        limits.append(smaller(code, divided(code, above, step)[0], size))
    with code.loop(limits[0], limits[1]) as loop:
        place = plus(code, times(code, loop.index, step), low)
        put(code, take(code, source, loop.index, kind), target, place, kind)
