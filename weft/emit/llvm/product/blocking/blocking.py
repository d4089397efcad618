"""What blocks of a product are: panels of rows and columns, parts of the depth, and tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from weft.emit.llvm.jit.caches import USUAL
from weft.emit.llvm.jit.processor import Processor
from weft.emit.llvm.pool.thread_count import thread_count
from weft.emit.llvm.product.microkernel.microkernel import (
    Ahead,
    MultiplyKind,
    RegisterBlock,
    SideLines,
)
from weft.ir.types import DType

Packed = Literal["direct", "task", "shared"]  # read as it lies, or packed by tasks, or before them


@dataclass(frozen=True, slots=True)
class Chip:
    """What blocks are fitted to: bytes of a vector, vector registers, and bytes of caches."""

    vector: int = 16
    registers: int = 16
    near: int = USUAL[0]  # the first cache
    middle: int = USUAL[1]  # the second one, of one core
    adds_small: bool = False  # products of bytes and halves, several at a time
    threads: int = 2  # that share the tasks
    tiles_of_bf16: bool = False  # registers of matrices, and products of them
    tiles_of_bytes: bool = False


def chip_of(processor: Processor) -> Chip:
    """The chip of a processor."""
    made = Chip(16, 16, *processor.caches, threads=thread_count())
    if processor.has("avx512f"):
        small = processor.has("avx512vnni")
        made = replace(made, vector=64, registers=32, adds_small=small)
        floats, small = (processor.has(f"amx-{kind}") for kind in ("bf16", "int8"))
        return replace(made, tiles_of_bf16=floats, tiles_of_bytes=small)
    if processor.has("avx"):
        return replace(made, vector=32)
    if processor.triple.startswith(("aarch64", "arm64")):
        return replace(made, registers=32)
    return made


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
class ProductShape:
    """How large a product is, and how its operands lie: all that blocks are chosen by."""

    batch: int
    rows: int
    columns: int
    depth: int  # steps of the depth, `group` of the kernel's in each
    kind: str  # the LLVM type of what is multiplied
    element: int  # its bytes
    multiply: MultiplyKind
    left_lines: SideLines
    right_lines: SideLines
    left_direct: bool  # whether it can be read as it lies
    right_direct: bool
    group: int = 1  # steps of the depth in an element
    offset: bool = False  # whether sums begin with a row before the first step
    inner: bool = False  # whether both sides can be read in vectors along the depth
    left_stored: DType | None = None  # the type it lies in memory as, if that is another one
    right_stored: DType | None = None
    right_dense: bool = False  # whether it can be read as it lies, one line right after another
    repeats: int = 1  # points of the batch, one after another, that have one right side

    @property
    def tiled(self) -> bool:
        """Whether blocks are made of matrix tiles."""
        return self.multiply.startswith("tdp")

    @property
    def pace(self) -> int:
        """How many multiplications take as long as one does in vectors."""
        return 16 if self.tiled else 1


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
    row_group: int  # and of rows
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

    def stores(self, shape: ProductShape) -> bool:
        """Whether blocks can be written to where the result is: tiles are written whole."""
        return not shape.tiled or (not self.rows.large and self.lanes == self.width)

    def widths(self, *, masked: bool) -> list[tuple[int, bool]]:
        """Vectors of panels: the first ones', those of the rest, and, masked, the last one's."""
        first = [(self.vectors.most, False)] if self.vectors.large else []
        alone = self.vectors.count - self.vectors.large == 1
        rest = [] if masked and alone else [(self.vectors.size, False)]
        return first + rest + ([(self.vectors.size, True)] if masked else [])

    def block(self, shape: ProductShape, rows: int, width: tuple[int, bool]) -> RegisterBlock:
        """The block of a panel of rows and one of columns."""
        vectors, masked = width
        return RegisterBlock(
            self.rows.most if shape.tiled and self.parts == 1 else rows,
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
