"""Concatenation, reversal and padding."""

from __future__ import annotations

import math

from weft.emit.llvm.emitted import Emitted
from weft.emit.llvm.single.copies import box, copy_function, fused_phase
from weft.emit.llvm.writer.code import Writer, module_text
from weft.emit.llvm.writer.elements import address, bits_of, bytes_of, fill_run, put, take
from weft.emit.llvm.writer.nest import (
    divided,
    function,
    larger,
    lines,
    moved,
    plus,
    pointers,
    smaller,
    times,
)
from weft.kernels.nest.loop_dims import LoopDim
from weft.kernels.single_node import SingleNode, strides
from weft.ops.shape import Reverse
from weft.ops.slicing import Concatenate, Pad


def concatenate(kernel: SingleNode) -> Emitted:
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
    return fused_phase(kernel.name, parts)


def reverse(kernel: SingleNode) -> Emitted:
    """A copy with negative strides in the operand along some dims."""
    op, (source, out) = kernel.op, kernel.operands
    assert isinstance(op, Reverse)
    dims = box(kernel, source, out, out.shape[kernel.lead :])
    start = 0
    for d in op.dimensions:
        size, (step, other) = dims[kernel.lead + d].size, dims[kernel.lead + d].steps
        start += (size - 1) * step
        # Backwards from the last element, where the walk starts.
        dims[kernel.lead + d] = LoopDim(size, (-step, other))
    return fused_phase(
        kernel.name, [copy_function(kernel.name, dims, bytes_of(out), (0, 1), (start, 0))]
    )


def pad(kernel: SingleNode) -> Emitted:
    """Row by row of the result: the padding value first, then the operand's elements."""
    op, (source, value, out) = kernel.op, kernel.operands
    assert isinstance(op, Pad)
    if not out.size:
        return Emitted("", ())
    lead, kind = kernel.lead, bits_of(out)
    shape = out.shape if len(out.shape) > lead else (*out.shape, 1)
    steps = [strides(o.shape) for o in (source, value, out)]
    given = [op.edge_padding_low, op.interior_padding, source.shape[lead:]]
    spread = [(low, gap + 1, n) for low, gap, n in zip(*given, strict=True)] or [(0, 1, 1)]
    rows = lines([LoopDim(n, (0,)) for n in shape], bytes_of(out))
    code = function(kernel.name)
    places = pointers(code, 3)
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
        filling = take(code, places[1], at[1], kind)
        target = address(code, places[2], first, kind)
        # The whole row, also where elements follow: they overwrite lines that are in L1, and no
        # edge has to be found.
        fill_run(code, target, begin, end, filling, kind)
        with code.when(inside):
            _put_row(
                code, address(code, places[0], at[0], kind), target, begin, end, spread[-1], kind
            )
    return Emitted(module_text(code), (rows.phase(kernel.name),))


def _source(code: Writer, index: str, low: int, step: int, size: int) -> tuple[str, str]:
    """The operand's index for a result index, and whether it is valid."""
    from_low = plus(code, index, -low)
    quotient = from_low
    # Unsigned: an index below `low` wraps to a large one.
    hit = code.let(f"icmp ult i64 {from_low}, {(size - 1) * step + 1 if size else 0}")
    if step > 1:
        quotient, left = divided(code, from_low, step)
        hit = code.let(f"and i1 {hit}, {code.let(f'icmp eq i64 {left}, 0')}")
    return quotient, hit


def _put_row(
    code: Writer,
    source: str,
    target: str,
    begin: str,
    end: str,
    spread: tuple[int, int, int],
    kind: str,
) -> None:
    """Store the operand's elements of a row at their places in the result."""
    low, step, size = spread
    # The first element at or after an index: (index - low) / step, rounded up.
    limits = []
    for place in (begin, end):
        above = larger(code, plus(code, place, step - 1 - low), 0)
        limits.append(smaller(code, divided(code, above, step)[0], size))
    with code.loop(limits[0], limits[1]) as loop:
        place = plus(code, times(code, loop.index, step), low)
        put(code, take(code, source, loop.index, kind), target, place, kind)
