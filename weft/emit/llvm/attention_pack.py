"""Operands brought into a thread's scratch: as they are, or with their rows along the lanes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weft.emit.llvm.attention_product import first_lanes
from weft.emit.llvm.code import Code
from weft.emit.llvm.storage import gather, load, memory_kind, to_memory
from weft.emit.llvm.vector import BITS, Vector, Vectors
from weft.ir.types import DType


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows at %from: their dtype, the strides of rows and columns, and the kind that is held."""

    dtype: DType
    row: int
    column: int
    kind: str

    def held(self, v: Vectors, x: Vector) -> Vector:
        """Elements as they were loaded -> as they are held; booleans as 0 and 1."""
        if x.kind == "i1":
            return v.cast("uitofp", x, self.kind)
        return v.cast("fpext" if BITS[x.kind] < BITS[self.kind] else "fptrunc", x, self.kind)

    def read(self, v: Vectors, source: str, begin: int, mask: Vector | None = None) -> Vector:
        """Neighbouring columns of a row; zeros where a mask says so."""
        if self.column == 1:
            return self.held(v, load(v, source, begin, self.dtype, mask)[0])
        lanes = ", ".join(f"i64 {(begin + n) * self.column}" for n in range(v.width))
        at = Vector(f"<{lanes}>", "i64", v.width) if v.width > 1 else Vector(lanes[4:], "i64")
        return self.held(v, gather(v, source, at, self.dtype, mask)[0])

    def place(self, code: Code, base: str, row: str) -> str:
        """The address of a row."""
        return moved(code, base, row, self.row, memory_kind(self.dtype))

    def along(self, code: Code, base: str, column: str) -> str:
        """The address of a column."""
        return moved(code, base, column, self.column, memory_kind(self.dtype))


def stored(v: Vectors, x: Vector, dtype: DType) -> Vector:
    """Held numbers as they lie in memory."""
    wanted = "double" if dtype.bits == 64 else "float"
    return to_memory(v, v.cast("fpext" if wanted == "double" else "fptrunc", x, wanted), dtype)


def pack_rows(code: Code, rows: Rows, to: str, count: str, lanes: int, depth: int) -> None:
    """Copy rows as held numbers, with zeros up to whole vectors."""
    v = Vectors(code, lanes)
    padded = -(-depth // lanes) * lanes
    with code.loop(0, count) as loop:
        source = rows.place(code, "%from", loop.index)
        target = moved(code, to, loop.index, padded, rows.kind)
        for begin in range(0, padded, lanes):
            mask = first_lanes(v, depth - begin) if depth - begin < lanes else None
            v.store(rows.read(v, source, begin, mask), v.at(target, begin, rows.kind))


Change = Callable[[Vector], Vector]


@dataclass(frozen=True, slots=True)
class Across:
    """Writes to[column][row] from rows at %from; rows after the last one repeat it."""

    code: Code
    rows: Rows
    to: str
    last: str
    lanes: int
    vectors: int
    change: Change

    def columns(self, depth: int) -> None:
        """So many columns, as is known when the kernel is made."""
        v, whole = Vectors(self.code, self.lanes), depth - depth % self.lanes
        for group in range(self.vectors):
            sources = self._sources(group)
            with self.code.loop(0, whole, self.lanes) as loop:
                self._square(v, sources, group, loop.index, None, self.lanes)
            if whole < depth:
                left = depth - whole
                self._square(v, sources, group, str(whole), first_lanes(v, left), left)

    def columns_up_to(self, count: str) -> None:
        """As many columns as a number of the function says; room for whole vectors of them."""
        v = Vectors(self.code, self.lanes)
        if self.rows.column == 1 and self.rows.row:
            for group in range(self.vectors):
                sources = self._sources(group)
                with self.code.loop(0, count, self.lanes) as loop:
                    mask = v.first(self.code.let(f"sub i64 {count}, {loop.index}"))
                    self._square(v, sources, group, loop.index, mask, self.lanes)
            return
        with self.code.loop(0, count) as loop:
            source = self.rows.along(self.code, "%from", loop.index)
            target = moved(self.code, self.to, loop.index, self._width, self.rows.kind)
            for group in range(self.vectors):
                x = self.change(self._column(v, source, group))
                v.store(x, v.at(target, group * self.lanes, x.kind))

    @property
    def _width(self) -> int:
        return self.lanes * self.vectors

    def _row(self, n: int) -> str:
        inside = self.code.let(f"icmp slt i64 {n}, {self.last}")
        return self.code.let(f"select i1 {inside}, i64 {n}, i64 {self.last}")

    def _sources(self, group: int) -> list[str]:
        first = group * self.lanes
        return [
            self.rows.place(self.code, "%from", self._row(first + n)) for n in range(self.lanes)
        ]

    def _column(self, v: Vectors, source: str, group: int) -> Vector:
        """One column of a vector of rows."""
        if not self.rows.row:
            found = load(Vectors(self.code, 1), source, 0, self.rows.dtype)[0]
            return v.splat(self.rows.held(Vectors(self.code, 1), found))
        first = group * self.lanes
        rows = v.add(v.lanes(), v.constant(first, "i64"))
        last = v.splat(Vector(self.last, "i64"))
        rows = v.select(v.compare("slt", rows, last), rows, last)
        at = v.mul(rows, v.constant(self.rows.row, "i64"))
        return self.rows.held(v, gather(v, source, at, self.rows.dtype)[0])

    def _square(
        self,
        v: Vectors,
        sources: list[str],
        group: int,
        begin: str,
        mask: Vector | None,
        columns: int,
    ) -> None:
        here = [self.rows.along(self.code, source, begin) for source in sources]
        turned = transposed(v, [self.rows.read(v, at, 0, mask) for at in here])
        place = v.at(self.to, group * self.lanes, self.rows.kind)
        place = moved(self.code, place, begin, self._width, self.rows.kind)
        for n, column in enumerate(turned[:columns]):
            v.store(self.change(column), v.at(place, n * self._width, self.rows.kind))


def transposed(v: Vectors, rows: list[Vector]) -> list[Vector]:
    """The columns of a square of vectors: blocks off the diagonal change places, size by size."""
    rows, size, width = list(rows), 1, v.width
    while size < width:
        for i in range(width):
            if i & size:
                continue
            a, b = rows[i], rows[i + size]
            low = [n if not n & size else width + n - size for n in range(width)]
            high = [n + size if not n & size else width + n for n in range(width)]
            rows[i], rows[i + size] = _shuffled(v, a, b, low), _shuffled(v, a, b, high)
        size *= 2
    return rows


def moved(code: Code, base: str, index: str, stride: int, kind: str) -> str:
    """The address of the element at an index times a stride."""
    at = index if stride == 1 else code.let(f"mul nsw i64 {index}, {stride}")
    return code.let(f"getelementptr {kind}, ptr {base}, i64 {at}")


def _shuffled(v: Vectors, a: Vector, b: Vector, order: list[int]) -> Vector:
    lanes = ", ".join(f"i32 {lane}" for lane in order)
    text = f"shufflevector {a.typed}, {b.typed}, <{len(order)} x i32> <{lanes}>"
    return Vector(v.code.let(text), a.kind, v.width)
