"""The choice of blocks: for registers, caches and tasks."""

from __future__ import annotations

from weft.emit.llvm.product.blocking.blocking import Blocking, Chip, Packed, Panels, ProductShape
from weft.emit.llvm.product.blocking.panels import FEW_LINES, inner_panels, register_panels
from weft.emit.llvm.product.microkernel.microkernel import POINTERS, Prefetch
from weft.emit.llvm.product.tiles import tile_panels

WORTH = 1 << 18  # multiplications that amortize a task's startup
_EACH = 4  # tasks a thread, for load balance
_ONE_TASK_PANELS = 24  # panels of rows that stay in one task
# From so many threads on tasks are near to squares: threads share the RHS by the last cache, and
# what each reads from there for a multiplication is the least then (measured on 16 cores).
_MANY_THREADS = 8
_EACH_OF_MANY, _IDLE_OF_MANY = 8, 0.05  # tasks a thread; the share of time that threads may idle
# Small products leave many threads idle if AMX tasks are as large as those of few threads.
_PACE_OF_MANY = 2
_PACKED_AGAIN = 32  # tasks along the rows that may pack the same part of the RHS, each for itself
_ALIASING = 4096  # bytes between lines that share their sets of a cache
_SPLIT_K_FROM, _SPLIT_K_PART = 2048, 256  # the least K that is split, and its least part
# Above this, writing and rereading partial sums costs more traffic than split K saves.
_SPLIT_K_RESULT_BYTES = 2 << 20  # of a result that may exist as several partial sums
# Packing ahead needs workspace of the RHS's own size, which would come on top of it in memory.
_MOST_PACKED_BYTES = 32 << 20  # of the RHS; a larger one is read in place
_PANEL_K = 128  # K steps of a panel that is one of many
_PART_K = 128  # K steps of a part at a time
_STREAMED_K = 32  # K steps read at a time in whole lines
_STREAMED_ROWS = 4  # rows of f32 for which streaming whole lines of weights pays off
_UNPREFETCHED_K = 256  # K steps whose lines are too short for the hardware prefetcher
_PACKED: tuple[Packed, ...] = ("direct", "task", "shared")  # numbering of options


def choose_blocking(shape: ProductShape, chip: Chip, options: dict[str, int]) -> Blocking:
    """Blocks that fit a chip; options override the choice."""
    width, inner, rows, vectors = _panels(shape, chip, options)
    streamed = bool(options.get("stream", _is_streamed(shape, chip, rows))) and not inner
    block_k, part = _block_k(
        shape, chip, rows, options, whole=inner > 0 or shape.offset, streamed=streamed
    )
    parts = max(1, -(-shape.k // part))
    lhs = _lhs(shape, rows, vectors, options, inner=inner > 0)
    panel = vectors.most * width * block_k * shape.element  # bytes of the RHS
    # A quarter of L2: the packed panels stay there beside the LHS and the output lines.
    group = max(1, min(vectors.count, chip.l2_bytes // 4 // panel))
    task_rows, task_vectors = _tasks(shape, chip, rows, vectors, block_k, parts)
    task_vectors = vectors.count if streamed else task_vectors
    # sums, which are reloaded for every K block, stay in cache
    if block_k < part and lhs == "direct":
        sums = task_rows * rows.most * vectors.most * width * shape.element
        task_vectors = min(task_vectors, max(1, chip.l2_bytes // 4 // max(1, sums)))
    is_much = (
        shape.batch // shape.repeats * shape.columns * shape.k * shape.element > _MOST_PACKED_BYTES
    )
    if is_much and not _used_little(shape, rows, vectors):
        # Too much to pack for all tasks: with all rows in one task, each panel is still packed
        # once, or read once where it is.
        task_rows = rows.count if lhs == "direct" else task_rows
        task_vectors = min(task_vectors, group)
    task_rows = min(options.get("task_rows") or task_rows, rows.count)
    task_vectors = min(options.get("task_vectors") or task_vectors, vectors.count)
    # Packing for all tasks pays off only if several tasks read a panel: not if one task has all
    # rows, nor if every part of K is read by one task.
    read_once = (task_rows == rows.count and shape.repeats == 1) or parts > 1 or is_much
    read_once = read_once or _is_packed_by_each(shape, chip, rows, task_rows)
    is_near = _is_near(shape, chip, rows, parts) or _used_little(shape, rows, vectors)
    rhs = "direct" if inner else _rhs(shape, is_near, options, read_once=read_once)
    return Blocking(
        width,
        rows,
        vectors,
        (shape.columns - 1) % width + 1 if shape.columns else 0,
        block_k,
        lhs,
        rhs,
        task_rows,
        task_vectors,
        min(group, task_vectors),
        min(_row_group(shape, chip, rows, task_vectors, block_k, part) or task_rows, task_rows),
        inner,
        part,
        parts,
        1 if inner else _unroll(shape, chip, rows, vectors, options),
        "nothing" if inner or shape.tiled else _ahead(shape, chip, rows, rhs),
        chip.l2_bytes,
        _pace(shape, chip, rows),
    )


def _panels(
    shape: ProductShape, chip: Chip, options: dict[str, int]
) -> tuple[int, int, Panels, Panels]:
    """Lanes along columns or along K (0 if not), and the panels of rows and columns."""
    width = max(1, chip.vector // shape.element)
    if shape.inner and options.get("inner", min(shape.rows, shape.columns) <= FEW_LINES):
        return 1, width, *inner_panels(shape)
    if shape.tiled:
        return width, 0, *tile_panels(shape, options)
    return width, 0, *register_panels(shape, chip, width, options)


def _block_k(
    shape: ProductShape,
    chip: Chip,
    rows: Panels,
    options: dict[str, int],
    *,
    whole: bool,
    streamed: bool,
) -> tuple[int, int]:
    """The K steps of a block (kc), and those of a partial sum."""
    part = max(1, shape.k)
    parts = options.get("parts") or (2 * chip.threads if streamed else _parts(shape, chip))
    # With an offset (u8 times s8) column sums over all of K correct the result: K cannot be split.
    if parts > 1 and not shape.offset:
        part = _in_vectors(-(-shape.k // parts))
    if whole:
        return _in_vectors(part), part
    # An eighth of L2 for one RHS panel of four vectors: there is room for more and the LHS.
    most = max(64, chip.l2_bytes // 8 // (4 * chip.vector))
    if shape.tiled and rows.count <= 2:  # many panels are packed at a time, from long lines
        most = min(most, _PANEL_K)
    if part < shape.k and not shape.tiled:  # both sides come from memory and have little reuse
        most = min(most, _PART_K)
    if streamed:
        most = min(most, _STREAMED_K * (2 if shape.tiled else 1))
    block_k = options.get("block_k") or -(-part // max(1, -(-part // most)))
    return _in_vectors(min(block_k, part)), part


def _parts(shape: ProductShape, chip: Chip) -> int:
    """Partial sums over K: with a large K, each part of both operands is read once."""
    result = shape.batch * shape.rows * shape.columns * shape.element
    long = shape.k >= max(_SPLIT_K_FROM, 2 * shape.rows, 2 * shape.columns)
    # Never more partial sums than tasks that threads can run: each adds a read of the whole result.
    wanted = _EACH * chip.threads
    if not long or result > _SPLIT_K_RESULT_BYTES or shape.batch > wanted:
        return 1
    worth = shape.batch * shape.rows * shape.columns * shape.k // (WORTH * shape.pace)
    return max(1, min(wanted, shape.k // _SPLIT_K_PART, worth))


def _is_streamed(shape: ProductShape, chip: Chip, rows: Panels) -> bool:
    """Whether the RHS is streamed in whole lines, each thread its own.

    Few rows against many weights are memory-bound: sequential streams reach the highest bandwidth.
    The exception is very little compute for each f32.
    """
    stored = shape.rhs_stored
    each = stored.bits // 8 * shape.group if stored else shape.element
    weights = shape.columns * shape.k * each
    # Every part has sums of its own (`_block_k`), which must be small beside the weights.
    sums = 2 * chip.threads * shape.rows * shape.columns * shape.element
    worth = shape.rows >= _STREAMED_ROWS or stored is not None
    once = rows.count == 1 and shape.batch == 1 and shape.rhs_lines == "columns"
    return once and worth and not shape.offset and weights > max(4 * chip.l2_bytes, 8 * sums)


def _unroll(
    shape: ProductShape, chip: Chip, rows: Panels, vectors: Panels, options: dict[str, int]
) -> int:
    """The unroll factor of the K loop: 2 or 4, if that divides all parts of it."""
    wanted = options.get("unroll", 2 if shape.tiled else 4)
    # Where rows share pointers, LLVM loads the RHS of all steps first: beside the sums, or
    # it spills every one of them.
    sums = rows.most * vectors.most
    crowded = rows.most > POINTERS and sums + wanted * vectors.most >= chip.registers
    if "unroll" not in options and not shape.tiled and crowded:
        wanted = 2
    # The microkernel has no remainder loop: K of every part is a multiple of 16 except the last, so
    # the unroll factor has to divide the whole of K.
    while wanted > 1 and shape.k % wanted:
        wanted //= 2
    return wanted


def _in_vectors(k: int) -> int:
    """K rounded up to whole vectors of any width."""
    return -(-k // 16) * 16


def _lhs(
    shape: ProductShape, rows: Panels, vectors: Panels, options: dict[str, int], *, inner: bool
) -> Packed:
    """The mode of the LHS: in place where possible, unless blocks are too small."""
    if shape.tiled and rows.large:  # the smaller panels read one row too many
        return "task"
    # An LHS with contiguous rows is strided along K: every K step touches another cache line, and
    # each panel of columns does so again. With more than two of them packing pays off.
    direct = shape.lhs_direct and (shape.lhs_lines == "k" or vectors.count <= 2)
    if "lhs" in options:
        direct = shape.lhs_direct and options["lhs"] == 0
    return "direct" if direct or inner else "task"


def _rhs(shape: ProductShape, is_near: bool, options: dict[str, int], *, read_once: bool) -> Packed:
    """The mode of the RHS."""
    mode: Packed = "task" if read_once else "shared"
    if is_near:
        mode = "direct"
    wanted = _PACKED[options["rhs"]] if "rhs" in options else mode
    if (wanted == "direct" and not shape.rhs_direct) or (wanted == "shared" and read_once):
        return mode
    return wanted


def _is_near(shape: ProductShape, chip: Chip, rows: Panels, parts: int) -> bool:
    """Whether the RHS is dense, and small enough to stay in every L2."""
    line = shape.columns * shape.element
    nbytes = line * shape.k
    most = chip.l2_bytes // 4
    # Packing for all is a phase of its own, which many threads wait for longer than they take to
    # read more than one L2 in place; unless the lines of a panel all map to a few sets of it.
    if _are_many(chip, rows) and parts == 1 and line % _ALIASING:
        most = chip.l2_bytes * 5 // 4
    return shape.rhs_dense and shape.batch == 1 and nbytes <= most


def _is_packed_by_each(shape: ProductShape, chip: Chip, rows: Panels, task_rows: int) -> bool:
    """Whether many threads pack their own parts of the RHS sooner than they wait for each other."""
    times = -(-rows.count // task_rows) * shape.repeats
    if not _are_many(chip, rows) or times > _PACKED_AGAIN:
        return False
    nbytes = shape.columns * shape.k * shape.element
    if shape.tiled:
        return nbytes <= chip.l2_bytes * 3 // 4
    return nbytes <= chip.l2_bytes // 4 or rows.count <= _PACKED_AGAIN


def _pace(shape: ProductShape, chip: Chip, rows: Panels) -> int:
    """The multiplications of a task, relative to one on plain vectors."""
    return min(shape.pace, _PACE_OF_MANY) if _are_many(chip, rows) else shape.pace


def _are_many(chip: Chip, rows: Panels) -> bool:
    """Whether tasks are for many threads; few rows are memory-bound, however many there are."""
    return chip.threads >= _MANY_THREADS and rows.count > 2


def _used_little(shape: ProductShape, rows: Panels, vectors: Panels) -> bool:
    """Whether reading the RHS in place is best: little reuse, or a single panel."""
    return shape.rhs_direct and (rows.count <= 2 or vectors.count == 1)


def _row_group(
    shape: ProductShape, chip: Chip, rows: Panels, columns: int, block_k: int, part: int
) -> int | None:
    """Panels of rows to pack at a time, if they are used right away and only once; else None."""
    if columns > 2 or block_k < part:
        return None
    # As many rows as half of L1 holds: packed and read back before anything evicts them.
    return max(1, chip.l1_bytes // 2 // (max(1, rows.most) * block_k * shape.element))


def _ahead(shape: ProductShape, chip: Chip, rows: Panels, rhs: Packed) -> Prefetch:
    """The operand to prefetch where hardware prefetchers fail: panels, rows or the LHS."""
    near = chip.l2_bytes // 2
    if shape.columns * shape.k * shape.element > near:
        if rhs == "direct" and rows.count <= 2:
            return "rows"
        if rhs == "shared":
            return "panel"
    lines = shape.batch * shape.rows * shape.k * shape.element
    is_short = shape.lhs_lines == "k" and shape.k <= _UNPREFETCHED_K
    return "lhs" if is_short and lines > near else "nothing"


def _tasks(
    shape: ProductShape, chip: Chip, rows: Panels, vectors: Panels, block_k: int, parts: int
) -> tuple[int, int]:
    """Panels of rows and columns of a task: enough tasks, each large enough."""
    # Multiplications of one block.
    work = shape.rows * shape.columns * max(1, shape.k) // (rows.count * vectors.count)
    many = _are_many(chip, rows)
    each = max(1, WORTH * _pace(shape, chip, rows) // max(1, work))  # blocks that amortize a task
    # The LHS of a task is read once for each of its panels of columns: half of L2 holds it.
    fit = max(1, chip.l2_bytes // 2 // (max(1, rows.most) * block_k * shape.element))
    task_rows, task_vectors = min(rows.count, fit), vectors.count

    def count() -> int:
        along = -(-rows.count // task_rows) * -(-vectors.count // task_vectors)
        return shape.batch * parts * along

    def splits_columns() -> bool:
        if not many:
            # With all rows in one task, each panel of the RHS is read by one task only.
            return task_rows <= _ONE_TASK_PANELS or task_rows < task_vectors
        wide, tall = task_vectors * vectors.most * width, task_rows * rows.most
        return wide >= tall if shape.tiled else 2 * wide > 3 * tall

    width = max(1, chip.vector // shape.element)
    while _too_few(count(), chip.threads, many=many) and task_rows * task_vectors > each:
        if task_vectors > 1 and (task_rows == 1 or splits_columns()):
            task_vectors = -(-task_vectors // 2)
        elif task_rows > 1:
            task_rows = -(-task_rows // 2)
        else:
            break
    return task_rows, task_vectors


def _too_few(count: int, threads: int, *, many: bool) -> bool:
    """Whether more tasks would keep the threads busier."""
    if not many:
        return count < _EACH * threads
    rounds = -(-count // threads)
    # The last round of tasks has work for a part of the threads only.
    uneven = count < (1 - _IDLE_OF_MANY) * rounds * threads
    return count < _EACH_OF_MANY * threads or (uneven and count < 2 * _EACH_OF_MANY * threads)
