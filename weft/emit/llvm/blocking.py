"""How a product is cut into blocks: for registers, for caches, and for tasks."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from weft.emit.llvm.machine_code import Processor
from weft.emit.llvm.microkernel import Ahead, Block, Lines, Multiply
from weft.ir.types import DType

Packed = Literal["direct", "task", "shared"]  # read as it lies, or packed by tasks, or before them

_NEAR, _MIDDLE = 32 << 10, 512 << 10  # bytes of usual caches
WORTH = 1 << 18  # multiplications that make a task worth its beginning
_TASKS = 8  # that there should be, so that threads of unequal speed end together
_FEW = 24  # panels of rows that stay in one task
_LONG, _SMALL = 2048, 2 << 20  # a depth, and bytes of a result, that is summed up in parts
_SHORT = 256  # steps of the depth whose lines are too short to be foreseen
_FEW_LINES = 4  # rows or columns that are multiplied along the depth, where that is possible
_MOST_VECTORS, _MOST_ROWS = 6, 12  # of a block
_BEGUN = 3.2  # instructions a cycle, where cores are shared by threads
_MIDDLE_BYTES = 24.0  # that the second cache gives in a cycle


@dataclass(frozen=True, slots=True)
class Chip:
    """What blocks are fitted to: bytes of a vector, vector registers, and bytes of caches."""

    vector: int = 16
    registers: int = 16
    near: int = _NEAR  # the first cache
    middle: int = _MIDDLE  # the second one, of one core
    adds_small: bool = False  # products of bytes and halves, several at a time


def chip_of(processor: Processor) -> Chip:
    """The chip of a processor, with the caches of this machine."""
    near, middle = cache_sizes()
    if processor.has("avx512f"):
        return Chip(64, 32, near, middle, processor.has("avx512vnni"))
    if processor.has("avx"):
        return Chip(32, 16, near, middle)
    if processor.triple.startswith(("aarch64", "arm64")):
        return Chip(16, 32, near, middle)
    return Chip(16, 16, near, middle)


@functools.cache
def cache_sizes() -> tuple[int, int]:
    """The bytes of this machine's first and second data cache, or usual ones."""
    found = {1: _NEAR, 2: _MIDDLE}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind, level, size = (
                (index / part).read_text().strip() for part in ("type", "level", "size")
            )
        except OSError:
            continue
        if kind != "Instruction" and int(level) in found and size.endswith("K"):
            found[int(level)] = int(size[:-1]) << 10
    return found[1], found[2]


@dataclass(frozen=True, slots=True)
class Panels:
    """Numbers cut into panels of two sizes: `large` of `size` + 1, then those of `size`."""

    size: int
    large: int
    count: int

    @property
    def most(self) -> int:
        """The size of the largest one."""
        return self.size + (1 if self.large else 0)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes that there are, the smaller one first."""
        small = (self.size,) if self.large < self.count else ()
        return small + ((self.size + 1,) if self.large else ())


def panels(number: int, most: int) -> Panels:
    """As few panels as can be, of sizes as equal as can be."""
    count = max(1, -(-number // most))
    return Panels(number // count, number % count, count)


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a product is, and how its operands lie: all that blocks are chosen by."""

    batch: int
    rows: int
    columns: int
    depth: int  # steps of the depth, `group` of the kernel's in each
    kind: str  # the LLVM type of what is multiplied
    element: int  # its bytes
    multiply: Multiply
    left_lines: Lines
    right_lines: Lines
    left_direct: bool  # whether it can be read as it lies
    right_direct: bool
    group: int = 1  # steps of the depth in an element
    offset: bool = False  # whether sums begin with a row before the first step
    inner: bool = False  # whether both sides can be read in vectors along the depth
    left_stored: DType | None = None  # the type it lies in memory as, if that is another one
    right_stored: DType | None = None


@dataclass(frozen=True, slots=True)
class Blocking:
    """The blocks of a product."""

    width: int
    rows: Panels
    vectors: Panels  # of columns
    lanes: int  # of the last vector
    depth: int  # that is multiplied at a time
    left: Packed
    right: Packed
    task_rows: int  # panels of one task
    task_vectors: int
    group: int  # panels of columns that a task packs at a time
    inner: int  # lanes along the depth, if it is read in vectors; 0 else
    part: int  # steps of the depth in one of
    parts: int  # that tasks sum up apart from each other
    unroll: int  # steps of the depth in a round of a block's loop
    ahead: Ahead  # what is fetched early, where it comes from far

    @property
    def line(self) -> int:
        """The columns of the widest panel."""
        return self.vectors.most * self.width

    @property
    def columns(self) -> int:
        """The columns of all panels, those that are not there included."""
        return (self.vectors.size * self.vectors.count + self.vectors.large) * self.width

    def widths(self, *, masked: bool) -> list[tuple[int, bool]]:
        """Vectors of panels: the first ones', those of the rest, and, masked, the last one's."""
        first = [(self.vectors.most, False)] if self.vectors.large else []
        alone = self.vectors.count - self.vectors.large == 1
        rest = [] if masked and alone else [(self.vectors.size, False)]
        return first + rest + ([(self.vectors.size, True)] if masked else [])

    def block(self, shape: Shape, rows: int, width: tuple[int, bool]) -> Block:
        """The block of a panel of rows and one of columns."""
        vectors, masked = width
        return Block(
            rows,
            vectors,
            self.inner or self.width,
            shape.kind,
            shape.left_lines if self.left == "direct" else "depth",
            shape.multiply,
            masked,
            self.ahead,
            shape.right_stored if self.right == "direct" else None,
            shape.left_stored if self.inner else None,
            self.depth < self.part,
            self.unroll,
            shape.offset,
            self.inner > 0,
        )


def choose_blocking(shape: Shape, chip: Chip, options: dict[str, int]) -> Blocking:
    """Blocks that fit a chip; options name what is to be otherwise."""
    width = max(1, chip.vector // shape.element)
    inner = 0
    if shape.inner and options.get("inner", min(shape.rows, shape.columns) <= _FEW_LINES):
        inner, width = width, 1
        rows, vectors = _inner_panels(shape)
    else:
        rows, vectors = _panels(shape, chip, width, options)
    depth, part = _depth(shape, chip, options, whole=inner > 0 or shape.offset)
    parts = max(1, -(-shape.depth // part))
    task_rows, task_vectors = _tasks(shape, chip, rows, vectors, width, depth, parts)
    task_rows = min(options.get("task_rows") or task_rows, rows.count)
    task_vectors = min(options.get("task_vectors") or task_vectors, vectors.count)
    left, right = _packing(shape, rows.count, vectors.count, task_rows, options)
    return Blocking(
        width,
        rows,
        vectors,
        (shape.columns - 1) % width + 1 if shape.columns else 0,
        depth,
        "direct" if inner else left,
        "direct" if inner else "task" if parts > 1 and right == "shared" else right,
        task_rows,
        task_vectors,
        max(
            1, min(task_vectors, chip.middle // 4 // (vectors.most * width * depth * shape.element))
        ),
        inner,
        part,
        parts,
        options.get("unroll", 2) if shape.depth % 2 == 0 and not inner else 1,
        _ahead(shape, chip, rows, vectors, left, right) if not inner else "nothing",
    )


def _inner_panels(shape: Shape) -> tuple[Panels, Panels]:
    """Panels of few rows or columns: about as many sums as cover the time that one takes."""
    rows = panels(shape.rows, shape.rows if shape.rows <= _FEW_LINES else 8)
    columns = 8 if rows.most <= 2 else 4
    if shape.columns <= _FEW_LINES:
        columns = shape.columns
        rows = panels(shape.rows, 8 if columns <= 2 else 4)
    return rows, panels(max(1, shape.columns), max(1, columns))


def _ahead(
    shape: Shape, chip: Chip, rows: Panels, vectors: Panels, left: Packed, right: Packed
) -> Ahead:
    """What processors do not foresee: panels of the right side, its rows, or the left side."""
    near = chip.middle // 2
    if shape.columns * shape.depth * shape.element > near:
        if right == "direct" and rows.count <= 2:
            return "rows"
        if right == "shared":
            return "panel"
    lines = shape.batch * shape.rows * shape.depth * shape.element
    streamed = left == "direct" and shape.left_lines == "depth" and vectors.count == 1
    return "left" if streamed and lines > near and shape.depth <= _SHORT else "nothing"


def _panels(shape: Shape, chip: Chip, width: int, options: dict[str, int]) -> tuple[Panels, Panels]:
    """The panels of rows and of columns that are expected to take the least time."""
    in_vectors = max(1, -(-shape.columns // width))
    wanted = options.get("vectors")
    found: list[tuple[float, Panels, Panels]] = []
    for most in (wanted,) if wanted else range(1, _MOST_VECTORS + 1):
        vectors = panels(in_vectors, most)
        registers = (chip.registers - vectors.most - 1) // vectors.most
        most_rows = options.get("rows") or max(1, min(registers, _MOST_ROWS))
        rows = panels(shape.rows, most_rows)
        found.append((_cycles(rows, vectors, chip, shape.depth), rows, vectors))
    _, rows, vectors = min(found, key=lambda one: one[0])
    return rows, vectors


def _cycles(rows: Panels, vectors: Panels, chip: Chip, depth: int) -> float:
    """About how many cycles one step of the depth takes, for all blocks.

    In a cycle, two vectors are multiplied, two are loaded, and instructions begin that are not
    many more; a sum takes four cycles until the next product can be added to it; and rows of the
    right side come from the second cache.
    """
    total = 0.0
    for m, row_panels in _counted(rows):
        for n, column_panels in _counted(vectors):
            begun = (m * n + m + n + 3) / _BEGUN
            far = n * chip.vector / _MIDDLE_BYTES
            step = max(m * n / 2, (m + n) / 2, begun, far, 4.0)
            ends = (m * n + 20) / max(1, depth)  # writing a block, and all around it
            total += (step + ends) * row_panels * column_panels
    variants = len(rows.sizes) * len(vectors.sizes)
    return total * (1 + 0.01 * variants)


def _counted(all_panels: Panels) -> list[tuple[int, int]]:
    """Sizes of panels, and how many there are of each."""
    large = (all_panels.size + 1, all_panels.large)
    return [(all_panels.size, all_panels.count - all_panels.large), large]


def _depth(shape: Shape, chip: Chip, options: dict[str, int], *, whole: bool) -> tuple[int, int]:
    """The depth that is multiplied at a time, and that of a part that is summed up by itself."""
    part = max(1, shape.depth)
    parts = options.get("parts") or _parts(shape)
    if parts > 1 and not shape.offset:
        part = _whole(-(-shape.depth // parts))
    if whole:
        return _whole(part), part
    # A panel of the right side takes a part of the second cache.
    most = max(64, chip.middle // 8 // (4 * chip.vector))
    depth = options.get("depth") or -(-part // max(1, -(-part // most)))
    return _whole(min(depth, part)), part


def _parts(shape: Shape) -> int:
    """Parts of the depth: where it is long, each part of both operands is then read only once."""
    result = shape.batch * shape.rows * shape.columns * shape.element
    long = shape.depth >= 2 * max(shape.rows, shape.columns, _LONG // 2)
    if not long or result > _SMALL or shape.batch > _TASKS:
        return 1
    worth = shape.batch * shape.rows * shape.columns * shape.depth // WORTH
    return max(1, min(_TASKS, shape.depth // (_LONG // _TASKS), worth))


def _whole(depth: int) -> int:
    """A depth of whole vectors, of any width that there is."""
    return -(-depth // 16) * 16


def _packing(
    shape: Shape, row_panels: int, column_panels: int, task_rows: int, options: dict[str, int]
) -> tuple[Packed, Packed]:
    names: tuple[Packed, ...] = ("direct", "task", "shared")
    left: Packed = "task"
    if shape.left_direct and (shape.left_lines == "depth" or column_panels <= 2):
        left = "direct"
    right: Packed = "task" if task_rows >= row_panels else "shared"
    if shape.right_direct and (row_panels <= 2 or column_panels == 1):
        right = "direct"
    if "left" in options and (options["left"] or shape.left_direct):
        left = names[min(options["left"], 1)]
    if "right" in options and (options["right"] or shape.right_direct):
        right = names[options["right"]]
    return left, right


def _tasks(
    shape: Shape, chip: Chip, rows: Panels, vectors: Panels, width: int, depth: int, parts: int
) -> tuple[int, int]:
    """Panels of rows and columns that make a task: enough tasks, and each of them worth it."""
    work = max(1, rows.most) * vectors.most * width * max(1, shape.depth)
    each = max(1, WORTH // work)  # blocks that are worth a task
    fit = max(1, chip.middle // 2 // (max(1, rows.most) * depth * shape.element))
    task_rows, task_vectors = min(rows.count, fit), vectors.count

    def count() -> int:
        along = -(-rows.count // task_rows) * -(-vectors.count // task_vectors)
        return shape.batch * parts * along

    # All rows in one task means that each panel of the right side is read by one task only.
    while count() < _TASKS and task_rows * task_vectors > each:
        if task_vectors > 1 and (task_rows <= _FEW or task_rows < task_vectors):
            task_vectors = -(-task_vectors // 2)
        elif task_rows > 1:
            task_rows = -(-task_rows // 2)
        else:
            break
    return task_rows, task_vectors
