"""Privatized scatters: each task accumulates a part of the updates into a table of its own.

Where many updates go to few elements, such as in histograms and sums of segments, the tasks of a
scatter would be one: no dim but the updates' own can be divided. The tables are then combined in
their order, so that the numbers do not depend on which thread ran what, but on the number of
threads.
"""

from __future__ import annotations

import math

from weft.emit.llvm.emitted import Phase
from weft.emit.llvm.pool.thread_count import thread_count
from weft.emit.llvm.single.region import inline
from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.elements import bytes_of
from weft.emit.llvm.writer.nest import (
    function,
    lanes_of,
    lines,
    pointers,
    times,
    vectors_and_rest,
)
from weft.emit.llvm.writer.vector import Vectors
from weft.kernels.kernel import Operand
from weft.kernels.nest.loop_dims import LoopDim
from weft.kernels.single_node import SingleNode
from weft.ops.combiners import combine_of, identity

_MOST = 16  # tables
_WORTH = 4096  # updates of a part
_USE = 4  # updates for each element of a table: it is filled, and read again, for these
_THREADS = 4  # fewer save less than the tables and the wake-up cost
_LINE = 128  # bytes between tables, so that no two tasks write to one cache line


def part_count(kernel: SingleNode) -> int:
    """The number of parts that pay off: 1 where tables are too large, or the order matters."""
    if len(kernel.outputs) != 1 or math.prod(kernel.devices) != 1:
        return 1
    out, update = kernel.outputs[0], kernel.operands[2]
    plain = out.dtype.kind in ("float", "int", "uint") and out.dtype.bits >= 32
    if not plain or combine_of(kernel.regions[0].body) is None:
        return 1
    if thread_count() < _THREADS:
        return 1
    worth = min(update.size // _WORTH, update.size // (_USE * max(1, out.size)))
    return max(1, min(_MOST, thread_count(), worth))


def table_bytes(out: Operand) -> int:
    """The bytes from one table to the next."""
    return -(-out.size * bytes_of(out) // _LINE) * _LINE


def table_of(code: Writer, kernel: SingleNode, part: str) -> str:
    """The table of a part, filled with the identity element."""
    out = kernel.outputs[0]
    combine = combine_of(kernel.regions[0].body)
    assert combine is not None, "asked by `part_count`"
    start: complex | float | int | bool = identity(combine, out.dtype)
    if combine == "add" and out.dtype.kind == "float":
        start = -0.0  # +0 would change a sum of negative zeros
    table = _table(code, kernel, part)
    for width, index in vectors_and_rest(
        code, "0", str(out.size), lanes_of(bytes_of(out), out.size)
    ):
        v = Vectors(code, width)
        storage.store(v, storage.fill(v, start, out.dtype), table, index, out.dtype)
    return table


def combining(kernel: SingleNode, parts: int) -> tuple[Writer, Phase]:
    """The function that combines the tables with the result, in their order."""
    out, region = kernel.outputs[0], kernel.regions[0]
    size = bytes_of(out)
    code = function(f"{kernel.name}_combine", excess_precision=kernel.excess_precision)
    result = pointers(code, len(kernel.operands))[-1]
    tables = [_table(code, kernel, str(n)) for n in range(parts)]
    tasks = lines([LoopDim(out.size, (1,))], size * (parts + 1))
    with tasks.each(code) as (_, begin, end):
        for width, index in vectors_and_rest(code, begin, end, lanes_of(size, out.size)):
            v = Vectors(code, width)
            held = storage.load(v, result, index, out.dtype)
            for table in tables:
                (held,) = inline(v, region, [held, storage.load(v, table, index, out.dtype)])
            storage.store(v, held, result, index, out.dtype)
    return code, tasks.phase(code.name)


def _table(code: Writer, kernel: SingleNode, part: str) -> str:
    place = code.let(f"getelementptr ptr, ptr %operands, i64 {len(kernel.operands)}")
    shared = code.let(f"load ptr, ptr {place}, align 8")
    far = times(code, part, table_bytes(kernel.outputs[0]))
    return code.let(f"getelementptr i8, ptr {shared}, i64 {far}")
