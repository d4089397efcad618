"""Phase functions of a contraction: tasks that pack, and tasks that multiply and finish."""

from __future__ import annotations

from dataclasses import replace

from weft.emit.llvm.product.ahead import fetch_end, next_side
from weft.emit.llvm.product.blocking.blocking import ProductShape
from weft.emit.llvm.product.contraction import (
    BlockedContraction,
    BlockPlaces,
    PanelTask,
    StridedPointer,
    memory_of,
)
from weft.emit.llvm.product.finish import FINISH, Sums
from weft.emit.llvm.product.microkernel.tiles import Registers, begin_tiles, end_tiles
from weft.emit.llvm.product.packing import pack
from weft.emit.llvm.product.product import Product
from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.nest import divided, function, plus, pointers, smaller, times

GROUP, PART = 4, 128  # panels and K steps packed by a task


def pack_tasks(job: BlockedContraction) -> tuple[int, int]:
    """Groups of panels and parts of K, by packing task."""
    return -(-job.blocking.vectors.count // GROUP), -(-job.shape.k // _part_size(job))


def _part_size(job: BlockedContraction) -> int:
    """K steps that a task packs: all, if column sums are packed, too."""
    return max(1, job.shape.k) if job.shape.offset else PART


def pack_phase(job: BlockedContraction, name: str) -> Writer:
    """Each task packs some panels of the RHS over a part of K."""
    code = function(name)
    b, shape = job.blocking, job.shape
    shared = shared_bytes(code, job.product)
    groups, parts = pack_tasks(job)
    with code.loop("%begin", "%end") as task:
        # Neighbouring tasks pack neighbouring parts of K of the same panels: threads read adjacent
        # rows.
        rest, part = divided(code, task.index, parts)
        rhs, group = divided(code, rest, groups)
        batch = times(code, rhs, job.product.repeats)
        first = times(code, group, GROUP)
        last = smaller(code, plus(code, first, GROUP), b.vectors.count)
        near = times(code, part, _part_size(job))
        far = smaller(code, plus(code, near, _part_size(job)), shape.k)
        begin = times(code, rhs, b.columns * job.panel_k)
        to = code.let(f"getelementptr {shape.kind}, ptr {shared}, i64 {begin}")
        _pack(code, pack.PACK_RHS, to, batch, first, last, near, far)
    return code


def multiply_phase(job: BlockedContraction, name: str) -> Writer:
    """Each task multiplies the blocks of some panels of rows and columns."""
    code = function(name)
    b, shape = job.blocking, job.shape
    operands = pointers(code, len(job.product.kernel.operands))
    shared = shared_bytes(code, job.product) if job.shared else ""
    places = BlockPlaces(job, memory_of(job), code, operands, shared)
    along_rows, along_columns = job.tasks
    if shape.tiled:
        begin_tiles(code, Registers(b.rows.most, b.vectors.most))
    with code.loop("%begin", "%end") as number:
        # Rows vary fastest: tasks that run at the same time share a panel of the RHS in the last
        # cache.
        rest, r = divided(code, number.index, along_rows)
        rest, c = divided(code, rest, along_columns)
        batch, part = divided(code, rest, b.parts)
        first_row, first_column = times(code, r, b.task_rows), times(code, c, b.task_vectors)
        last_row = smaller(code, plus(code, first_row, b.task_rows), b.rows.count)
        last_column = smaller(code, plus(code, first_column, b.task_vectors), b.vectors.count)
        task = PanelTask(batch, first_row, last_row, first_column, last_column, part)
        begin, end = "0", str(shape.k)
        if b.parts > 1:
            begin = times(code, part, b.part)
            end = smaller(code, plus(code, begin, b.part), shape.k)
        if job.once:
            _part(places, task, begin, end, "false")
        else:
            with code.loop(begin, end, b.block_k) as step:
                far = smaller(code, plus(code, step.index, b.block_k), end)
                # The first block of K writes its sums, the others add to them: nothing has to be
                # zeroed.
                more = code.let(f"icmp ne i64 {step.index}, {begin}")
                _part(places, task, step.index, far, more)
    if shape.tiled:
        end_tiles(code)
    return code


def finish_tasks(shape: ProductShape) -> tuple[int, int]:
    """Tasks that finish partial sums, for one batch point, and the rows of each."""
    # About 16 tasks: enough for the threads, and rows enough for each to be worth a launch.
    rows = max(1, -(-shape.rows // 16))
    return -(-shape.rows // rows), rows


def finish_phase(product: Product, shape: ProductShape, sums: Sums, name: str) -> Writer:
    """Each task sums the parts of some rows, and runs the epilogue on them."""
    code = function(name)
    shared = shared_bytes(code, product)
    count, rows = finish_tasks(shape)
    with code.loop("%begin", "%end") as number:
        batch, task = divided(code, number.index, count)
        first = times(code, task, rows)
        left = smaller(code, code.let(f"sub nsw i64 {shape.rows}, {first}"), rows)
        line = plus(code, times(code, batch, sums.parts * shape.rows), first)
        far = times(code, line, sums.line)
        begin = code.let(f"getelementptr {shape.kind}, ptr {shared}, i64 {far}")
        numbers = (batch, first, left, "0", shape.columns, task, "0")
        listed = ", ".join(f"i64 {n}" for n in numbers)
        code.do(f"call void @{FINISH}(ptr %operands, ptr {begin}, {listed})")
    return code


def _part(places: BlockPlaces, task: PanelTask, near: str, far: str, more: str) -> None:
    """All blocks of a task over one block of K; `more`: onto the sums of earlier ones."""
    code, job = places.code, places.job
    b = job.blocking
    # All rows of the task fit the cache: packed once for every group of columns.
    if b.lhs == "task" and b.row_group >= b.task_rows:
        _pack_lhs(places, task, near, far)
    if b.rhs != "task":
        _columns(places, task, (task.first_column, task.last_column), (near, far, more))
        return
    with code.loop(task.first_column, task.last_column, b.group, at_least_once=True) as group:
        last = smaller(code, plus(code, group.index, b.group), task.last_column)
        to = places.scratch(places.memory.rhs)
        _pack(code, pack.PACK_RHS, to, task.batch, group.index, last, near, far)
        _columns(places, task, (group.index, last), (near, far, more))


def _pack_lhs(places: BlockPlaces, task: PanelTask, near: str, far: str) -> None:
    """Pack the LHS of a task's rows."""
    code, rows = places.code, places.job.blocking.rows
    first, _ = pack.panel_bounds(code, rows, task.first_row)
    last, _ = pack.panel_bounds(code, rows, task.last_row)
    to = places.scratch(places.memory.lhs)
    _pack(code, pack.PACK_LHS, to, task.batch, first, last, near, far)


def _columns(
    places: BlockPlaces, task: PanelTask, panels: tuple[str, str], part: tuple[str, str, str]
) -> None:
    """All blocks of some panels of columns; rows are packed a few at a time, if not before."""
    code, b = places.code, places.job.blocking
    if b.lhs == "task" and b.row_group < b.task_rows:
        with code.loop(task.first_row, task.last_row, b.row_group, at_least_once=True) as group:
            last = smaller(code, plus(code, group.index, b.row_group), task.last_row)
            some = replace(task, first_row=group.index, last_row=last)
            _pack_lhs(places, some, part[0], part[1])
            _blocks(places, some, panels, part)
    else:
        _blocks(places, task, panels, part)


def _blocks(
    places: BlockPlaces, task: PanelTask, panels: tuple[str, str], part: tuple[str, str, str]
) -> None:
    """All blocks of a task's rows and some panels of columns."""
    code, b = places.code, places.job.blocking
    with code.loop(*panels, at_least_once=True) as column:
        start, vectors = pack.panel_bounds(code, b.vectors, column.index)
        start, columns = (times(code, n, b.width) for n in (start, vectors))
        rhs = places.rhs(task, panels[0], start, columns, part[0])
        # Rows are the inner loop: a panel of the RHS stays in cache while all of them pass.
        with code.loop(task.first_row, task.last_row, at_least_once=True) as row:
            _block(places, task, (row.index, column.index), (start, columns), rhs, part)


def _block(
    places: BlockPlaces,
    task: PanelTask,
    panel: tuple[str, str],
    columns: tuple[str, str],
    rhs: StridedPointer,
    part: tuple[str, str, str],
) -> None:
    """One block: multiply it, and run the epilogue after the last part of K."""
    code, job = places.code, places.job
    (row, column), (column_start, column_count), (near, far, more) = panel, columns, part
    start, count = pack.panel_bounds(code, job.blocking.rows, row)
    lhs = places.lhs(task, start, near)
    out = places.out(task, row, column, start, column_start)
    k = far if near == "0" else code.let(f"sub nsw i64 {far}, {near}")
    sides = ", ".join(f"ptr {p.pointer}, i64 {p.stride}" for p in (lhs, rhs, out))
    microkernel = _microkernel(code, job, row, column)
    # Where the next block's side begins: the microkernel prefetches it while it multiplies.
    ahead = next_side(places, task, row, (lhs, count), column_count, rhs)
    if job.store is None and job.blocking.parts == 1:
        fetch_end(places, task, start, count, column_start)
    rest = f"i64 {k}, i1 {more}, i64 {job.blocking.lanes}, ptr {ahead}"
    code.do(f"call void {microkernel}({sides}, {rest})")
    if job.store is None and job.blocking.parts == 1:
        rest = code.let(f"sub nsw i64 {job.shape.columns}, {column_start}")
        block = (task.batch, start, count, column_start, smaller(code, rest, column_count))
        listed = ", ".join(f"i64 {n}" for n in (*block, *panel))
        done = "true" if job.once else code.let(f"icmp sge i64 {far}, {job.shape.k}")
        with code.when(done):
            code.do(f"call void @{FINISH}(ptr %operands, ptr {out.pointer}, {listed})")


def _microkernel(code: Writer, job: BlockedContraction, row: str, column: str) -> str:
    """The microkernel of a block, by its panels."""
    b = job.blocking
    by_rows = []
    for rows in b.rows.sizes:
        *widths, last = b.widths(masked=job.masked)
        symbol = f"@{b.block(job.shape, rows, last).name}"
        ends = [b.vectors.large, b.vectors.count - 1]  # after the first panels, after the rest
        for width in reversed(widths):
            end = ends[0] if width[0] > b.vectors.size else ends[1]
            before = code.let(f"icmp slt i64 {column}, {end}")
            name = b.block(job.shape, rows, width).name
            symbol = code.let(f"select i1 {before}, ptr @{name}, ptr {symbol}")
        by_rows.append(symbol)
    if len(by_rows) == 1:
        return by_rows[0]
    large = code.let(f"icmp slt i64 {row}, {b.rows.large}")
    return code.let(f"select i1 {large}, ptr {by_rows[1]}, ptr {by_rows[0]}")


def shared_bytes(code: Writer, product: Product) -> str:
    """The workspace pointer."""
    count = len(product.kernel.operands)
    place = code.let(f"getelementptr ptr, ptr %operands, i64 {count}")
    return code.let(f"load ptr, ptr {place}, align 8", "shared")


def _pack(code: Writer, name: str, to: str, *numbers: str) -> None:
    given = ", ".join(f"i64 {n}" for n in numbers)
    code.do(f"call void @{name}(ptr %operands, ptr {to}, {given})")
