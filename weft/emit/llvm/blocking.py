"""How a product is cut into blocks: for registers, for caches, and for tasks."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from weft.emit.llvm.machine_code import Processor
from weft.emit.llvm.microkernel import Block, Lines, Multiply

Packed = Literal["direct", "task", "shared"]  # read as it lies, or packed by tasks, or before them

_NEAR, _MIDDLE = 32 << 10, 512 << 10  # bytes of usual caches
_LEAST = 1 << 17  # multiplications that a task should have


@dataclass(frozen=True, slots=True)
class Chip:
    """What blocks are fitted to: bytes of a vector, vector registers, and bytes of caches."""

    vector: int = 16
    registers: int = 16
    near: int = _NEAR  # the first cache
    middle: int = _MIDDLE  # the second one, of one core


def chip_of(processor: Processor) -> Chip:
    """The chip of a processor, with the caches of this machine."""
    near, middle = cache_sizes()
    if processor.has("avx512f"):
        return Chip(64, 32, near, middle)
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
    depth: int
    kind: str  # the LLVM type of what is multiplied
    element: int  # its bytes
    multiply: Multiply
    left_lines: Lines
    left_direct: bool  # whether it can be read as it lies
    right_direct: bool


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
    ahead: bool  # whether panels of the right side come from far, and are fetched before

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
            self.width,
            shape.kind,
            shape.left_lines,
            shape.multiply,
            masked,
            self.ahead,
        )


def choose_blocking(shape: Shape, chip: Chip, options: dict[str, int]) -> Blocking:
    """Blocks that fit a chip; options name what is to be otherwise."""
    width = max(1, chip.vector // shape.element)
    in_vectors = max(1, -(-shape.columns // width))
    vectors = panels(in_vectors, options.get("vectors") or _most_vectors(in_vectors, chip))
    rows = panels(shape.rows, options.get("rows") or _most_rows(vectors.most, chip))
    depth = min(options.get("depth") or _depth(shape, chip), max(1, shape.depth))
    left, right = _packing(shape, rows.count, vectors.count, options)
    task_rows, task_vectors = _tasks(shape, chip, rows, vectors, width, depth, right)
    return Blocking(
        width,
        rows,
        vectors,
        (shape.columns - 1) % width + 1 if shape.columns else 0,
        depth,
        left,
        right,
        options.get("task_rows") or task_rows,
        options.get("task_vectors") or task_vectors,
        right == "shared" and shape.columns * shape.depth * shape.element > chip.middle // 2,
    )


def _most_vectors(vectors: int, chip: Chip) -> int:
    """Vectors of a panel: blocks near to squares need the fewest loads for what they multiply."""
    if chip.registers < 32:
        return 2
    return 5 if vectors == 5 else 4


def _most_rows(vectors: int, chip: Chip) -> int:
    """Rows so that all sums, one row of the right side and a spread element fit the registers."""
    return max(1, min((chip.registers - vectors - 1) // vectors, 12))


def _depth(shape: Shape, chip: Chip) -> int:
    """A depth at which a panel of the right side takes a part of the second cache."""
    most = max(64, chip.middle // 8 // (4 * chip.vector))
    count = max(1, -(-shape.depth // most))
    each = -(-shape.depth // count)
    return max(16, -(-each // 16) * 16)


def _packing(
    shape: Shape, row_panels: int, column_panels: int, options: dict[str, int]
) -> tuple[Packed, Packed]:
    names: tuple[Packed, ...] = ("direct", "task", "shared")
    left: Packed = "direct" if shape.left_direct and column_panels <= 2 else "task"
    right: Packed = "direct" if shape.right_direct and row_panels <= 2 else "shared"
    if right == "shared" and shape.batch > 1 and shape.rows <= 512:
        right = "task"
    if "left" in options and (options["left"] or shape.left_direct):
        left = names[options["left"]]
    if "right" in options and (options["right"] or shape.right_direct):
        right = names[options["right"]]
    return left, right


def _tasks(
    shape: Shape,
    chip: Chip,
    rows: Panels,
    vectors: Panels,
    width: int,
    depth: int,
    right: Packed,
) -> tuple[int, int]:
    """Panels of rows and columns that make a task."""
    if right == "task":
        return rows.count, vectors.count
    fit = max(1, chip.middle // 2 // (max(1, rows.most) * depth * shape.element))
    wanted = 16  # tasks at least, so that threads of unequal speed end together
    work = max(1, rows.most) * vectors.most * width * max(1, shape.depth)
    each = max(1, _LEAST // work)  # panels by panels that are worth a task
    task_rows = max(1, min(fit, -(-rows.count * shape.batch // wanted), rows.count))
    task_vectors = vectors.count
    while task_rows * task_vectors > each and (
        shape.batch * -(-rows.count // task_rows) * -(-vectors.count // task_vectors) < wanted
        and task_vectors > 1
    ):
        task_vectors = -(-task_vectors // 2)
    task_rows = min(rows.count, max(task_rows, each // task_vectors))
    return task_rows, task_vectors
