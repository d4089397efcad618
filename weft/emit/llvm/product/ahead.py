"""Software prefetch: panels, lines of the LHS, and the result's own lines.

While a block is multiplied, memory is idle: the operands of its epilogue and the first lines of the
next block can be fetched meanwhile.
"""

from __future__ import annotations

from weft.emit.llvm.product.contraction import (
    BlockedContraction,
    BlockPlaces,
    PanelTask,
    StridedPointer,
)
from weft.emit.llvm.product.microkernel.microkernel import prefetch
from weft.emit.llvm.product.points import flat_point, place
from weft.emit.llvm.writer.nest import plus, times
from weft.emit.llvm.writer.storage import memory_kind
from weft.emit.llvm.writer.vector import Vectors
from weft.kernels.kernel import Load, Store


def next_side(
    places: BlockPlaces,
    task: PanelTask,
    row: str,
    lhs: tuple[StridedPointer, str],
    columns: str,
    rhs: StridedPointer,
) -> str:
    """The prefetch of a block: its share of the next panel, or the next block's LHS."""
    code, job = places.code, places.job
    if job.blocking.ahead == "lhs":
        far = code.let(f"mul nsw i64 {lhs[0].stride}, {lhs[1]}")
        return code.let(f"getelementptr i8, ptr {lhs[0].pointer}, i64 {far}")
    if job.blocking.ahead != "panel":
        return "null"
    down = code.let(f"sub nsw i64 {row}, {task.first_row}")
    far = times(code, down, job.blocking.block_k * 64)
    size = times(code, columns, job.panel_k * job.shape.element)
    inside = code.let(f"icmp slt i64 {far}, {size}")
    next_panel = plus(code, size, far)
    chosen = code.let(f"select i1 {inside}, i64 {next_panel}, i64 0")
    return code.let(f"getelementptr i8, ptr {rhs.pointer}, i64 {chosen}")


def fetch_end(places: BlockPlaces, task: PanelTask, row: str, rows: str, column: str) -> None:
    """Prefetch the operands of a block's epilogue."""
    code, job = places.code, places.job
    product, factors = job.product, job.product.kernel.factors
    ends = _ends(job)
    if not ends:
        return
    one = Vectors(code, 1)
    point = flat_point(code, factors, product.batch, task.batch)
    point = point | flat_point(code, factors, product.columns, column)
    with code.loop(0, rows) as loop:
        number = plus(code, row, loop.index)
        here = point | flat_point(code, factors, product.rows, number)
        for step in ends:
            dtype = product.kernel.operands[step.operand].dtype
            far = place(one, step.at, here).base
            base = one.at(places.operands[step.operand], far, memory_kind(dtype))
            for n in range(0, _length(job) * dtype.numpy.itemsize, 64):
                prefetch(code, base, str(n), write=isinstance(step, Store))


def _ends(job: BlockedContraction) -> list[Load | Store]:
    """The loads and stores of the epilogue with one element for each of the result's."""
    product, kernel = job.product, job.product.kernel
    nbytes = product.size((*product.batch, *product.rows, *product.columns)) * 4
    if nbytes < job.blocking.l2_bytes:  # still cached when it is written
        return []
    accesses = []
    for n in product.after:
        step = kernel.steps[n]
        if isinstance(step, Load | Store):
            across = [step.at.strides[f] for f in product.columns[-1:]]
            if all(stride == 1 for stride in across) and (
                isinstance(step, Store) or all(step.at.strides[f] for f in product.rows[-1:])
            ):
                accesses.append(step)
    return accesses


def _length(job: BlockedContraction) -> int:
    """The contiguous elements of a block's row."""
    inner = [job.product.kernel.factors[f].size for f in job.product.columns[-1:]]
    return min([job.blocking.line, *inner])
