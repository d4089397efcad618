"""Choosing blocks of a product: for registers, for caches, and for tasks."""

from __future__ import annotations

from weft.emit.llvm.product.blocking.blocking import Blocking, Chip, Packed, Panels, ProductShape
from weft.emit.llvm.product.blocking.panels import FEW_LINES, inner_panels, register_panels
from weft.emit.llvm.product.microkernel.microkernel import Ahead
from weft.emit.llvm.product.tiles import tile_panels

WORTH = 1 << 18  # multiplications that make a task worth its beginning
_EACH = 4  # tasks of a thread, so that threads of unequal speed end together
_FEW = 24  # panels of rows that stay in one task
_LONG, _PART = 2048, 256  # a depth that is summed up in parts, and the least of one
_SMALL = 2 << 20  # bytes of a result that may be there several times
_MUCH = 32 << 20  # bytes of a right side that are too many to be there a second time
_WIDE = 128  # steps of a panel that is one of many
_SHALLOW = 128  # steps at a time, of a part
_FEW_LINES = 32  # that are read at a time where they are whole
_SOME_ROWS = 4  # of f32, that weights are worth reading by whole lines for
_SHORT = 256  # steps of the depth whose lines are too short to be foreseen
_PACKED: tuple[Packed, ...] = ("direct", "task", "shared")  # as options number them


def choose_blocking(shape: ProductShape, chip: Chip, options: dict[str, int]) -> Blocking:
    """Blocks that fit a chip; options name what is to be otherwise."""
    width, inner, rows, vectors = _panels(shape, chip, options)
    streamed = bool(options.get("stream", _is_streamed(shape, chip, rows))) and not inner
    depth, part = _depth(
        shape, chip, rows, options, whole=inner > 0 or shape.offset, streamed=streamed
    )
    parts = max(1, -(-shape.depth // part))
    left = _left(shape, rows, vectors, options, inner=inner > 0)
    panel = vectors.most * width * depth * shape.element  # bytes
    group = max(1, min(vectors.count, chip.middle // 4 // panel))
    task_rows, task_vectors = _tasks(shape, chip, rows, vectors, depth, parts)
    task_vectors = vectors.count if streamed else task_vectors
    if depth < part and left == "direct":  # sums, which are read for every depth, stay near
        sums = task_rows * rows.most * vectors.most * width * shape.element
        task_vectors = min(task_vectors, max(1, chip.middle // 4 // max(1, sums)))
    is_much = shape.batch // shape.repeats * shape.columns * shape.depth * shape.element > _MUCH
    if is_much and not _used_little(shape, rows, vectors):
        task_rows = rows.count if left == "direct" else task_rows
        task_vectors = min(task_vectors, group)
    task_rows = min(options.get("task_rows") or task_rows, rows.count)
    task_vectors = min(options.get("task_vectors") or task_vectors, vectors.count)
    read_once = (task_rows == rows.count and shape.repeats == 1) or parts > 1 or is_much
    is_near = _is_near(shape, chip) or _used_little(shape, rows, vectors)
    right = "direct" if inner else _right(shape, is_near, options, read_once=read_once)
    return Blocking(
        width,
        rows,
        vectors,
        (shape.columns - 1) % width + 1 if shape.columns else 0,
        depth,
        left,
        right,
        task_rows,
        task_vectors,
        min(group, task_vectors),
        min(_row_group(shape, chip, rows, task_vectors, depth, part) or task_rows, task_rows),
        inner,
        part,
        parts,
        1 if inner else _unroll(shape, options),
        "nothing" if inner or shape.tiled else _ahead(shape, chip, rows, right),
    )


def _panels(
    shape: ProductShape, chip: Chip, options: dict[str, int]
) -> tuple[int, int, Panels, Panels]:
    """Lanes along columns, those along the depth (or 0), and panels of rows and of columns."""
    width = max(1, chip.vector // shape.element)
    if shape.inner and options.get("inner", min(shape.rows, shape.columns) <= FEW_LINES):
        return 1, width, *inner_panels(shape)
    if shape.tiled:
        return width, 0, *tile_panels(shape, options)
    return width, 0, *register_panels(shape, chip, width, options)


def _depth(
    shape: ProductShape,
    chip: Chip,
    rows: Panels,
    options: dict[str, int],
    *,
    whole: bool,
    streamed: bool,
) -> tuple[int, int]:
    """The depth that is multiplied at a time, and that of a part that is summed up by itself."""
    part = max(1, shape.depth)
    parts = options.get("parts") or (2 * chip.threads if streamed else _parts(shape, chip))
    if parts > 1 and not shape.offset:
        part = _in_vectors(-(-shape.depth // parts))
    if whole:
        return _in_vectors(part), part
    # A panel of the right side takes a part of the second cache.
    most = max(64, chip.middle // 8 // (4 * chip.vector))
    if shape.tiled and rows.count <= 2:  # many panels are packed at a time, from long lines
        most = min(most, _WIDE)
    if part < shape.depth and not shape.tiled:  # both sides come from far and are used little
        most = min(most, _SHALLOW)
    if streamed:
        most = min(most, _FEW_LINES * (2 if shape.tiled else 1))
    depth = options.get("depth") or -(-part // max(1, -(-part // most)))
    return _in_vectors(min(depth, part)), part


def _parts(shape: ProductShape, chip: Chip) -> int:
    """Parts of the depth: where it is long, each part of both operands is then read only once."""
    result = shape.batch * shape.rows * shape.columns * shape.element
    long = shape.depth >= max(_LONG, 2 * shape.rows, 2 * shape.columns)
    wanted = _EACH * chip.threads
    if not long or result > _SMALL or shape.batch > wanted:
        return 1
    worth = shape.batch * shape.rows * shape.columns * shape.depth // (WORTH * shape.pace)
    return max(1, min(wanted, shape.depth // _PART, worth))


def _is_streamed(shape: ProductShape, chip: Chip, rows: Panels) -> bool:
    """Whether the right side is read in whole lines, few of them at a time, each thread its own.

    Few rows against many weights: memory gives the most to threads that read on and on, and it is
    what they wait for, except with next to nothing to do for each f32.
    """
    stored = shape.right_stored
    each = stored.bits // 8 * shape.group if stored else shape.element
    weights = shape.columns * shape.depth * each
    sums = 2 * chip.threads * shape.rows * shape.columns * shape.element
    worth = shape.rows >= _SOME_ROWS or stored is not None
    once = rows.count == 1 and shape.batch == 1 and shape.right_lines == "columns"
    return once and worth and not shape.offset and weights > max(4 * chip.middle, 8 * sums)


def _unroll(shape: ProductShape, options: dict[str, int]) -> int:
    """Steps of the depth in a round of a block's loop: 2 or 4, if that divides all parts of it."""
    wanted = options.get("unroll", 2 if shape.tiled else 4)
    while wanted > 1 and shape.depth % wanted:
        wanted //= 2
    return wanted


def _in_vectors(depth: int) -> int:
    """A depth of whole vectors, of any width that there is."""
    return -(-depth // 16) * 16


def _left(
    shape: ProductShape, rows: Panels, vectors: Panels, options: dict[str, int], *, inner: bool
) -> Packed:
    """How the left side is read: as it lies where it can be, if not in too small pieces."""
    if shape.tiled and rows.large:  # the smaller blocks read a row too much
        return "task"
    direct = shape.left_direct and (shape.left_lines == "depth" or vectors.count <= 2)
    if "left" in options:
        direct = shape.left_direct and options["left"] == 0
    return "direct" if direct or inner else "task"


def _right(
    shape: ProductShape, is_near: bool, options: dict[str, int], *, read_once: bool
) -> Packed:
    """How the right side is read."""
    found: Packed = "task" if read_once else "shared"
    if is_near:
        found = "direct"
    wanted = _PACKED[options["right"]] if "right" in options else found
    if (wanted == "direct" and not shape.right_direct) or (wanted == "shared" and read_once):
        return found
    return wanted


def _is_near(shape: ProductShape, chip: Chip) -> bool:
    """Whether the right side is dense, and so small that it stays in every second cache."""
    nbytes = shape.columns * shape.depth * shape.element
    return shape.right_dense and shape.batch == 1 and nbytes <= chip.middle // 4


def _used_little(shape: ProductShape, rows: Panels, vectors: Panels) -> bool:
    """Whether the right side is best read as it lies: it is used once or twice, or is one panel."""
    return shape.right_direct and (rows.count <= 2 or vectors.count == 1)


def _row_group(
    shape: ProductShape, chip: Chip, rows: Panels, columns: int, depth: int, part: int
) -> int | None:
    """Panels of rows to pack at a time: few, if they are used at once, and not again; else None."""
    if columns > 2 or depth < part:
        return None
    return max(1, chip.near // 2 // (max(1, rows.most) * depth * shape.element))


def _ahead(shape: ProductShape, chip: Chip, rows: Panels, right: Packed) -> Ahead:
    """What processors do not foresee: panels of the right side, its rows, or the left side."""
    near = chip.middle // 2
    if shape.columns * shape.depth * shape.element > near:
        if right == "direct" and rows.count <= 2:
            return "rows"
        if right == "shared":
            return "panel"
    lines = shape.batch * shape.rows * shape.depth * shape.element
    is_short = shape.left_lines == "depth" and shape.depth <= _SHORT
    return "left" if is_short and lines > near else "nothing"


def _tasks(
    shape: ProductShape, chip: Chip, rows: Panels, vectors: Panels, depth: int, parts: int
) -> tuple[int, int]:
    """Panels of rows and columns that make a task: enough tasks, and each of them worth it."""
    work = shape.rows * shape.columns * max(1, shape.depth) // (rows.count * vectors.count)
    each = max(1, WORTH * shape.pace // max(1, work))  # blocks that are worth a task
    fit = max(1, chip.middle // 2 // (max(1, rows.most) * depth * shape.element))
    task_rows, task_vectors = min(rows.count, fit), vectors.count

    def count() -> int:
        along = -(-rows.count // task_rows) * -(-vectors.count // task_vectors)
        return shape.batch * parts * along

    # All rows in one task means that each panel of the right side is read by one task only.
    while count() < _EACH * chip.threads and task_rows * task_vectors > each:
        if task_vectors > 1 and (task_rows <= _FEW or task_rows < task_vectors):
            task_vectors = -(-task_vectors // 2)
        elif task_rows > 1:
            task_rows = -(-task_rows // 2)
        else:
            break
    return task_rows, task_vectors
