"""Sizes of the blocks of a ragged dot, and the microkernels of its row counts."""

from __future__ import annotations

from weft.emit.llvm.product.blocking.blocking import Chip
from weft.emit.llvm.product.microkernel.inner import inner_microkernel
from weft.emit.llvm.product.microkernel.microkernel import (
    MultiplyKind,
    RegisterBlock,
    SideLines,
    microkernel,
)
from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.nest import plus, times
from weft.emit.llvm.writer.vector import BITS
from weft.ir.types import DType
from weft.records import dataclass

VECTORS = 2  # of a panel of columns
PANELS = 4  # of a task
BLOCK_K = 256  # steps of the sum that are packed at a time
FEW = 8  # rows for which the RHS is read in place: packing would cost more than it saves
INNER = 4  # rows and columns of a block with lanes along K


@dataclass(frozen=True, slots=True)
class RaggedBlocks:
    """How a ragged dot is cut: lanes of a vector, rows of a block and of a task."""

    kind: str  # LLVM type of sums
    width: int
    rows: int
    lines: SideLines  # of the packed LHS
    task_rows: int

    @property
    def panel(self) -> int:
        """The columns of a panel."""
        return VECTORS * self.width

    @property
    def task_columns(self) -> int:
        """The columns of a task."""
        return PANELS * self.panel

    @property
    def row_counts(self) -> tuple[int, ...]:
        """The rows of blocks, most first: they make up any number of rows."""
        return (self.rows, 4, 1)

    @property
    def line(self) -> int:
        """The elements of a line of the packed LHS."""
        return BLOCK_K + self.width if self.lines == "k" else self.task_rows

    @property
    def multiply(self) -> MultiplyKind:
        """How products are added."""
        return "fma" if self.kind in ("float", "double") else "mul"


def blocks_for(chip: Chip, kind: str, lines: SideLines, rows: int) -> RaggedBlocks:
    """Blocks that fill the registers of a chip; a task has up to ten of them."""
    width = max(1, chip.vector * 8 // BITS[kind])
    high = 12 if chip.registers >= 32 else 6
    most = 10 * high
    task_rows = most if rows > most else -(-rows // width) * width
    if lines == "rows":
        task_rows = -(-task_rows // width) * width
    return RaggedBlocks(kind, width, high, lines, max(task_rows, width))


class BlockCalls:
    """The microkernels that a function calls, each written once."""

    def __init__(self, code: Writer, blocks: RaggedBlocks) -> None:
        self.code, self.blocks = code, blocks
        self.microkernels: dict[str, Writer] = {}

    def block(self, rows: int, *, in_place: bool = False, stored: DType | None = None) -> str:
        """A block of some rows and a panel of columns, which is packed or lies in memory."""
        b = self.blocks
        block = RegisterBlock(
            rows,
            VECTORS,
            b.width,
            b.kind,
            b.lines,
            b.multiply,
            ahead="rows" if in_place else "nothing",
            stored=stored,
            adds=True,
        )
        return self._named(block)

    def inner(self, rows: int, columns: int, lhs: DType | None, rhs: DType | None) -> str:
        """A block of rows and columns with lanes along K, in place."""
        b = self.blocks
        block = RegisterBlock(
            rows,
            columns,
            b.width,
            b.kind,
            "k",
            b.multiply,
            stored=rhs,
            lhs_stored=lhs,
            inner=True,
        )
        return self._named(block)

    def _named(self, block: RegisterBlock) -> str:
        if block.name not in self.microkernels:
            self.microkernels[block.name] = (inner_microkernel if block.inner else microkernel)(
                block
            )
        return block.name

    def call(
        self,
        name: str,
        lhs: tuple[str, str | int],
        rhs: tuple[str, str | int],
        out: tuple[str, str | int],
        k_count: str,
        more: str = "false",
    ) -> None:
        """Call a block with pointers and strides in bytes."""
        sides = ", ".join(f"ptr {p}, i64 {stride}" for p, stride in (lhs, rhs, out))
        rest = f"i64 {k_count}, i1 {more}, i64 0, ptr null"
        self.code.do(f"call void @{name}({sides}, {rest})")


def cut_rows(code: Writer, count: str, sizes: tuple[int, ...]) -> list[tuple[int, str, str]]:
    """Loops over rows in blocks: each size with where its blocks begin and end."""
    ranges = []
    begin = "0"
    for size in sizes:
        left = count if begin == "0" else code.let(f"sub nsw i64 {count}, {begin}")
        blocks = left if size == 1 else code.let(f"udiv i64 {left}, {size}")
        end = plus(code, begin, times(code, blocks, size))
        ranges.append((size, begin, end))
        begin = end
    return ranges
