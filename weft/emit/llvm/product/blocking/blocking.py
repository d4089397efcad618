"""Blocks of a contraction: panels of rows and columns, parts of K, and tasks."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from weft.emit.llvm.jit.caches import Caches
from weft.emit.llvm.jit.processor import Processor
from weft.emit.llvm.pool.thread_count import thread_count
from weft.emit.llvm.product.microkernel.microkernel import (
    MultiplyKind,
    Prefetch,
    RegisterBlock,
    SideLines,
)
from weft.ir.types import DType
from weft.records import dataclass

# read in place, or packed by tasks, or packed before them
Packed = Literal["direct", "task", "shared"]


@dataclass(frozen=True, slots=True)
class Chip:
    """The machine parameters of blocking: vector bytes, registers, and cache sizes."""

    vector: int = 16
    registers: int = 16
    l1_bytes: int = Caches().l1
    l2_bytes: int = Caches().l2  # of one core
    has_vnni: bool = False  # dot products of bytes and halves (VNNI)
    threads: int = 2
    has_amx_bf16: bool = False
    has_amx_int8: bool = False
    has_bf16_dot: bool = False  # dot products of pairs of bf16 (AVX512_BF16)


def chip_of(processor: Processor) -> Chip:
    """The chip of a processor."""
    caches = processor.caches
    chip = Chip(16, 16, caches.l1, caches.l2, threads=thread_count())
    if processor.has("avx512f"):
        small = processor.has("avx512vnni")
        chip = replace(chip, vector=64, registers=32, has_vnni=small)
        floats, small = (processor.has(f"amx-{kind}") for kind in ("bf16", "int8"))
        pairs = processor.has("avx512bf16")
        return replace(chip, has_amx_bf16=floats, has_amx_int8=small, has_bf16_dot=pairs)
    if processor.has("avx"):
        return replace(chip, vector=32)
    if processor.triple.startswith(("aarch64", "arm64")):
        return replace(chip, registers=32)  # NEON
    return chip


@dataclass(frozen=True, slots=True)
class Panels:
    """A dim cut into panels of two sizes: `large` ones of `size` + 1, then those of `size`."""

    size: int
    large: int
    count: int

    @property
    def most(self) -> int:
        """The largest panel size."""
        return self.size + (1 if self.large else 0)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The distinct panel sizes, the smaller first."""
        small = (self.size,) if self.large < self.count else ()
        return small + ((self.size + 1,) if self.large else ())


def panels(number: int, most: int) -> Panels:
    """The fewest panels, as equal as possible."""
    # Two sizes that differ by one need two microkernels, and none is small: a remainder of one row
    # would leave the FMA units idle for as long as a full panel takes.
    count = max(1, -(-number // most))
    return Panels(number // count, number % count, count)


@dataclass(frozen=True, slots=True)
class ProductShape:
    """The size of a contraction and the layout of its operands: the input of blocking."""

    batch: int
    rows: int
    columns: int
    k: int  # K steps, `group` of the kernel's in each
    kind: str  # LLVM type of the operands
    element: int  # element bytes
    multiply: MultiplyKind
    lhs_lines: SideLines
    rhs_lines: SideLines
    lhs_direct: bool  # whether the LHS can be read in place
    rhs_direct: bool
    group: int = 1  # K steps in an element
    offset: bool = False  # whether sums start from a packed row (a correction term)
    inner: bool = False  # whether both sides can be read as vectors along K
    lhs_stored: DType | None = None  # memory type of the LHS, if it differs
    rhs_stored: DType | None = None  # and of the RHS
    rhs_dense: bool = False  # whether the RHS can be read in place as one dense block
    repeats: int = 1  # consecutive batch points with the same RHS

    @property
    def tiled(self) -> bool:
        """Whether blocks consist of AMX tiles."""
        return self.multiply.startswith("tdp")

    @property
    def pace(self) -> int:
        """The multiplication rate relative to plain vectors."""
        return 16 if self.tiled else 1


@dataclass(frozen=True, slots=True)
class Blocking:
    """The blocks of a product."""

    width: int
    rows: Panels
    vectors: Panels  # vectors of a panel of columns
    lanes: int  # valid lanes of the last vector
    block_k: int  # K steps of a block (kc)
    lhs: Packed
    rhs: Packed
    task_rows: int  # panels of one task
    task_vectors: int
    group: int  # panels of columns packed at a time
    row_group: int  # and of rows
    inner: int  # lanes along K, if it is vectorized; else 0
    part: int  # K steps of a part
    parts: int  # partial sums over K, computed by separate tasks
    unroll: int  # unrolled K steps
    ahead: Prefetch  # what to prefetch
    l2_bytes: int  # of the chip that this is for: what exceeds them is far
    pace: int  # the multiplications of a task, relative to one on plain vectors

    @property
    def line(self) -> int:
        """The columns of the widest panel."""
        return self.vectors.most * self.width

    @property
    def columns(self) -> int:
        """The columns of all panels, with padding."""
        return (self.vectors.size * self.vectors.count + self.vectors.large) * self.width

    def stores(self, shape: ProductShape) -> bool:
        """Whether blocks can be stored directly to the result: tiles are stored whole."""
        return not shape.tiled or (not self.rows.large and self.lanes == self.width)

    def widths(self, *, masked: bool) -> list[tuple[int, bool]]:
        """The vectors of panels: the first ones', the rest's, and, masked, the last one's."""
        first = [(self.vectors.most, False)] if self.vectors.large else []
        alone = self.vectors.count - self.vectors.large == 1
        rest = [] if masked and alone else [(self.vectors.size, False)]
        return first + rest + ([(self.vectors.size, True)] if masked else [])

    def block(self, shape: ProductShape, rows: int, width: tuple[int, bool]) -> RegisterBlock:
        """The register block of a panel of rows and one of columns."""
        vectors, masked = width
        return RegisterBlock(
            # One tile configuration serves both panel sizes: the smaller one reads and writes a row
            # too many in scratch. Partial sums are dense, and a row too many would be the next
            # panel's.
            self.rows.most if shape.tiled and self.parts == 1 else rows,
            vectors,
            self.inner or self.width,
            shape.kind,
            shape.lhs_lines if self.lhs == "direct" else "k",
            shape.multiply,
            masked,
            self.ahead,
            shape.rhs_stored if self.rhs == "direct" else None,
            shape.lhs_stored if self.inner else None,
            self.block_k < self.part,
            self.unroll,
            shape.offset,
            self.inner > 0,
        )
