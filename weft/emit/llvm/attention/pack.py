"""Packing of operands into a thread's scratch: row-major, or transposed with rows along lanes."""

from __future__ import annotations

from collections.abc import Callable

from weft.emit.llvm.attention.product import first_lanes
from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.storage import gather, load, memory_kind, to_memory
from weft.emit.llvm.writer.vector import BITS, Vector, Vectors
from weft.ir.types import DType
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Rows at %from: dtype, strides of rows and columns, and the compute type."""

    dtype: DType
    row: int
    column: int
    kind: str

    def held(self, v: Vectors, x: Vector) -> Vector:
        """Loaded elements converted to the compute type; booleans as 0 and 1."""
        if x.kind == "i1":
            return v.cast("uitofp", x, self.kind)
        return v.cast("fpext" if BITS[x.kind] < BITS[self.kind] else "fptrunc", x, self.kind)

    def read(self, v: Vectors, source: str, begin: int, mask: Vector | None = None) -> Vector:
        """Contiguous columns of a row; zeros where masked out."""
        if self.column == 1:
            return self.held(v, load(v, source, begin, self.dtype, mask)[0])
        lanes = ", ".join(f"i64 {(begin + n) * self.column}" for n in range(v.width))
        at = Vector(f"<{lanes}>", "i64", v.width) if v.width > 1 else Vector(lanes[4:], "i64")
        return self.held(v, gather(v, source, at, self.dtype, mask)[0])

    def place(self, code: Writer, base: str, row: str) -> str:
        """The address of a row."""
        return moved(code, base, row, self.row, memory_kind(self.dtype))

    def along(self, code: Writer, base: str, column: str) -> str:
        """The address of a column."""
        return moved(code, base, column, self.column, memory_kind(self.dtype))


def stored(v: Vectors, x: Vector, dtype: DType) -> Vector:
    """Values converted to the memory type."""
    wanted = "double" if dtype.bits == 64 else "float"
    return to_memory(v, v.cast("fpext" if wanted == "double" else "fptrunc", x, wanted), dtype)


def pack_rows(code: Writer, rows: PackedRows, to: str, count: str, lanes: int, depth: int) -> None:
    """Copy rows in the compute type, zero-padded to whole vectors."""
    v = Vectors(code, lanes)
    padded = -(-depth // lanes) * lanes
    with code.loop(0, count) as loop:
        source = rows.place(code, "%from", loop.index)
        target = moved(code, to, loop.index, padded, rows.kind)
        for begin in range(0, padded, lanes):
            mask = first_lanes(v, depth - begin) if depth - begin < lanes else None
            v.store(rows.read(v, source, begin, mask), v.at(target, begin, rows.kind))


@dataclass(frozen=True, slots=True)
class TransposingPack:
    """Stores to[column][row] from rows at %from; padding rows repeat the last one.

    Scratch has room for whole vectors of columns, and for as many rows as `vectors` have lanes.
    """

    v: Vectors
    rows: PackedRows
    to: str
    last: str  # number of the last row
    stride: str  # of rows
    vectors: int
    change: Callable[[Vector], Vector]

    def columns(self, count: str) -> None:
        """Write so many columns."""
        code, v = self.v.code, self.v
        with code.loop(0, self.vectors) as loop:
            first = code.let(f"mul i64 {loop.index}, {v.width}")
            if self.rows.column == 1 and self.rows.row:
                sources = [self._source(first, n) for n in range(v.width)]
                with code.loop(0, count, v.width) as columns:
                    self._square(sources, first, columns.index, count)
            else:
                with code.loop(0, count) as columns:
                    self._store(self._column(first, columns.index), first, columns.index, 0)

    def _store(self, x: Vector, first: str, column: str, more: int) -> None:
        width = self.vectors * self.v.width
        place = moved(self.v.code, self.to, column, width, self.rows.kind)
        place = self.v.at(place, first, self.rows.kind)
        self.v.store(self.change(x), self.v.at(place, more * width, self.rows.kind))

    def _source(self, first: str, n: int) -> str:
        code = self.v.code
        row = code.let(f"add i64 {first}, {n}")
        row = code.call("i64", "llvm.smin.i64", ("i64", row), ("i64", self.last))
        at = code.let(f"mul nsw i64 {row}, {self.stride}")
        return self.v.at("%from", at, memory_kind(self.rows.dtype))

    def _square(self, sources: list[str], first: str, begin: str, count: str) -> None:
        v, code = self.v, self.v.code
        mask = v.first(code.let(f"sub i64 {count}, {begin}"))
        here = [v.at(source, begin, memory_kind(self.rows.dtype)) for source in sources]
        for n, column in enumerate(transposed(v, [self.rows.read(v, at, 0, mask) for at in here])):
            self._store(column, first, begin, n)

    def _column(self, first: str, column: str) -> Vector:
        """One column of a vector of rows."""
        v, one = self.v, Vectors(self.v.code, 1)
        source = self.rows.along(v.code, "%from", column)
        if not self.rows.row:
            return v.splat(self.rows.held(one, load(one, source, 0, self.rows.dtype)[0]))
        rows = v.add(v.lanes(), v.splat(Vector(first, "i64")))
        last = v.splat(Vector(self.last, "i64"))
        rows = v.select(v.compare("slt", rows, last), rows, last)
        at = v.mul(rows, v.splat(Vector(self.stride, "i64")))
        return self.rows.held(v, gather(v, source, at, self.rows.dtype)[0])


def transposed(v: Vectors, rows: list[Vector]) -> list[Vector]:
    """The transpose of a square of vectors: off-diagonal blocks are swapped, size by size."""
    rows, size = list(rows), 1
    while size < v.width:
        for i in range(v.width):
            if not i & size:
                rows[i], rows[i + size] = transposing(v, rows[i], rows[i + size], size)
        size *= 2
    return rows


def transposing(v: Vectors, a: Vector, b: Vector, size: int) -> tuple[Vector, Vector]:
    """The vectors with the odd blocks of a and the even ones of b swapped, of `size` lanes each."""
    width = v.width
    low = [n if not n & size else width + n - size for n in range(width)]
    high = [n + size if not n & size else width + n for n in range(width)]
    return v.shuffle(a, b, low), v.shuffle(a, b, high)


def moved(code: Writer, base: str, index: str, stride: int, kind: str) -> str:
    """The address of the element at an index times a stride."""
    at = index if stride == 1 else code.let(f"mul nsw i64 {index}, {stride}")
    return code.let(f"getelementptr {kind}, ptr {base}, i64 {at}")
