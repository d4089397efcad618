"""Merge sort with an arbitrary comparator: runs of element indices, doubling in length."""

from __future__ import annotations

from typing import Protocol

from weft.emit.llvm.emitted import Emitted
from weft.emit.llvm.single.region import inline
from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.code import Writer, module_text
from weft.emit.llvm.writer.elements import address, bits_of, put, take
from weft.emit.llvm.writer.nest import LineTasks, function, plus, pointers, smaller
from weft.emit.llvm.writer.vector import Vectors
from weft.kernels.single_node import SingleNode


class MergedRows(Protocol):
    """The rows to merge-sort."""

    kernel: SingleNode
    tasks: LineTasks
    length: int
    count: int
    steps: tuple[int, ...]

    def move(
        self, code: Writer, n: int, place: str, index: str, buffers: list[str], offsets: list[str]
    ) -> None:
        """Store one element of an input at its place in the result."""
        ...


def merge_rows(rows: MergedRows) -> Emitted:
    """Sort each row stably: indices in two arrays, merged back and forth."""
    kernel = rows.kernel
    code = function(kernel.name, excess_precision=kernel.excess_precision)
    buffers = pointers(code, len(rows.kernel.operands))
    # Indices of 32 bits have half the traffic of 64-bit ones.
    size = -(-4 * rows.length // 64) * 64
    slots = [code.let("alloca ptr, align 8") for _ in range(2)]
    with rows.tasks.each(code) as (offsets, _, _):
        for slot, offset in zip(slots, (0, size), strict=True):
            base = address(code, "%scratch", offset, "i8")
            code.do(f"store ptr {base}, ptr {slot}, align 8")
        first = code.let(f"load ptr, ptr {slots[0]}, align 8")
        with code.loop(0, rows.length) as loop:
            put(code, code.let(f"trunc i64 {loop.index} to i32"), first, loop.index, "i32")
        for level in range(max(0, (rows.length - 1).bit_length())):
            now, other = (code.let(f"load ptr, ptr {slot}, align 8") for slot in slots)
            with code.loop(0, rows.length, 2 << level) as loop:
                middle = smaller(code, plus(code, loop.index, 1 << level), rows.length)
                end = smaller(code, plus(code, loop.index, 2 << level), rows.length)
                _merge(code, rows, (buffers, offsets), (now, other), (loop.index, middle, end))
            # The two arrays change places at each level: at emission, since the levels are
            # unrolled.
            slots.reverse()
        order = code.let(f"load ptr, ptr {slots[0]}, align 8")
        with code.loop(0, rows.length) as loop:
            place = _place(code, order, loop.index)
            for n in range(rows.count):
                rows.move(code, n, place, loop.index, buffers, offsets)
    return Emitted(module_text(code), (rows.tasks.phase(code.name),), scratch=2 * size)


def _place(code: Writer, order: str, index: str) -> str:
    return code.let(f"zext i32 {take(code, order, index, 'i32')} to i64")


def _merge(
    code: Writer,
    rows: MergedRows,
    where: tuple[list[str], list[str]],
    arrays: tuple[str, str],
    limits: tuple[str, str, str],
) -> None:
    """Merge two neighbouring runs: the right one's element goes first only if it is less."""
    now, other = arrays
    begin, middle, end = limits
    carried = [("i64", begin), ("i64", middle)]
    with code.loop(begin, end, carried=carried) as loop:
        left, right = loop.carried
        has_left = code.let(f"icmp slt i64 {left}, {middle}")
        has_right = code.let(f"icmp slt i64 {right}, {end}")
        # An exhausted run is read once more at its end; the value is unused.
        last = plus(code, end, -1)
        a = _place(code, now, smaller(code, left, plus(code, middle, -1)))
        b = _place(code, now, smaller(code, right, last))
        # b < a, not a <= b: comparators are strict, and equal elements must keep their order.
        less = _less(code, rows, where, b, a)
        both = code.let(f"and i1 {has_left}, {has_right}")
        from_right = code.let(f"select i1 {both}, i1 {less}, i1 {has_right}")
        chosen = code.let(f"select i1 {from_right}, i64 {b}, i64 {a}")
        put(code, code.let(f"trunc i64 {chosen} to i32"), other, loop.index, "i32")
        step = code.let(f"zext i1 {from_right} to i64")
        next_right = plus(code, right, step)
        next_left = plus(code, left, code.let(f"xor i64 {step}, 1"))
        loop.carry(next_left, next_right)


def _less(
    code: Writer, rows: MergedRows, where: tuple[list[str], list[str]], left: str, right: str
) -> str:
    """The comparator's result for the elements at two indices."""
    v, (buffers, offsets) = Vectors(code, 1), where
    args = []
    for n in range(rows.count):
        operand = rows.kernel.operands[n]
        base = address(code, buffers[n], offsets[n], bits_of(operand))
        for place in (left, right):
            at = code.let(f"mul nsw i64 {place}, {rows.steps[n]}")
            args.append(storage.load(v, base, at, operand.dtype))
    ((answer,),) = inline(v, rows.kernel.regions[0], args)
    return answer.text
