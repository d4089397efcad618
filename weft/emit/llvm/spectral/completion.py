"""Completion of orthonormal rows to a basis, for the vectors of singular values that are 0."""

from __future__ import annotations

from weft.emit.llvm.spectral.rows import PaddedRows, Scratch
from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.vector import Vector, Vectors


class Completion:
    """Rows of a matrix, those that are orthonormal marked by 1 and the others by 0."""

    def __init__(self, code: Writer, rows: PaddedRows, scratch: Scratch, count: int) -> None:
        self.code, self.rows, self.count = code, rows, count
        self.one = Vectors(code, 1)
        self.marks = scratch.area(count, rows.kind)
        self.covered = scratch.area(rows.stride, rows.kind)

    def mark(self, index: str, is_unit: Vector) -> None:
        """Mark a row."""
        one, kind = self.one, self.rows.kind
        value = one.select(is_unit, one.constant(1.0, kind), one.constant(0.0, kind))
        one.store(value, one.at(self.marks, index, kind))

    def complete(self, matrix: str, total: int) -> None:
        """Make every row without a mark, and those past the values, a unit vector of its own."""
        code, one, rows = self.code, self.one, self.rows
        zero = one.constant(0.0, rows.kind)
        with code.loop(0, total) as loop:
            mark = one.load(one.at(self.marks, loop.index, rows.kind), rows.kind)
            with code.when(one.compare("oeq", mark, zero).text):
                self._fill(matrix, loop.index, total)

    def clear(self, begin: int, end: int) -> None:
        """Remove the marks of rows."""
        one, kind = self.one, self.rows.kind
        with self.code.loop(begin, end) as loop:
            one.store(one.constant(0.0, kind), one.at(self.marks, loop.index, kind))

    def _fill(self, matrix: str, index: str, total: int) -> None:
        """The unit vector that the marked rows cover least, less its projections on these."""
        code, one, rows = self.code, self.one, self.rows
        self._cover(matrix, total)
        least = self._least()
        row = rows.row(matrix, index)
        zero = rows.v.constant(0.0, rows.kind)
        with code.loop(0, rows.count) as loop:
            rows.v.store(zero, rows.vector(row, loop.index))
        one.store(one.constant(1.0, rows.kind), one.at(row, least, rows.kind))
        # twice, for what rounding leaves of the projections
        with code.loop(0, 2), code.loop(0, total) as loop:
            mark = one.load(one.at(self.marks, loop.index, rows.kind), rows.kind)
            other = rows.row(matrix, loop.index)
            with code.when(one.compare("une", mark, one.constant(0.0, rows.kind)).text):
                by = rows.v.splat(one.neg(rows.dot(row, other)))
                for group in rows.groups():
                    for n in group:
                        place = rows.vector(row, n)
                        given = rows.get(rows.vector(other, n))
                        rows.v.store(rows.v.fma(by, given, rows.get(place)), place)
        length = one.intrinsic("sqrt", rows.dot(row, row))
        rows.scaled(row, one.div(one.constant(1.0, rows.kind), length))
        self.mark(index, Vector("true", "i1"))

    def _cover(self, matrix: str, total: int) -> None:
        """The sums over marked rows of the squares of each column."""
        code, one, rows, v = self.code, self.one, self.rows, self.rows.v
        zeros = [(v.constant(0.0, rows.kind).type, "zeroinitializer")]
        with code.loop(0, rows.count) as block:
            start = rows.vector(matrix, block.index)
            with code.loop(0, total, carried=zeros) as loop:
                elements = rows.get(rows.row(start, loop.index))
                mark = one.load(one.at(self.marks, loop.index, rows.kind), rows.kind)
                counted = one.compare("une", mark, one.constant(0.0, rows.kind))
                before = Vector(loop.carried[0], rows.kind, v.width)
                # Rows without a mark may hold anything.
                after = v.fma(elements, elements, before).text
                loop.carry(
                    code.let(f"select i1 {counted.text}, {before.type} {after}, {before.typed}")
                )
            squares = Vector(loop.carried[0], rows.kind, v.width)
            v.store(squares, rows.vector(self.covered, block.index))

    def _least(self) -> str:
        """The column of the least sum."""
        code, one, kind = self.code, self.one, self.rows.kind
        first = one.constant(float("inf"), kind).text
        carried = [("i64", "0"), (kind, first)]
        with code.loop(0, self.rows.length, carried=carried) as loop:
            at, best = loop.carried[0], Vector(loop.carried[1], kind)
            found = one.load(one.at(self.covered, loop.index, kind), kind)
            better = one.compare("olt", found, best)
            chosen = code.let(f"select i1 {better.text}, i64 {loop.index}, i64 {at}")
            loop.carry(chosen, one.select(better, found, best).text)
        return loop.carried[0]
