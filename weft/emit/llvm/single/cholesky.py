"""Cholesky decomposition: one matrix a task, by rows of the factor in scratch memory."""

from __future__ import annotations

import math

from weft.emit.llvm.emitted import Emitted
from weft.emit.llvm.spectral.rows import PaddedRows
from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.code import module_text
from weft.emit.llvm.writer.nest import function, matrices, plus, pointers, times
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.kernels.single_node import SingleNode
from weft.ops.linalg import Cholesky


def cholesky(kernel: SingleNode) -> Emitted:
    """The factor of every matrix; NaN if it is not positive definite."""
    op, (_, out) = kernel.op, kernel.operands
    assert isinstance(op, Cholesky)
    return _Factor(kernel, op).emit() if out.size else Emitted("", ())


def refuses_cholesky(kernel: SingleNode) -> str | None:
    """Why this kernel is unsupported."""
    dtype = kernel.outputs[0].dtype
    return f"of {dtype}" if dtype.is_complex else None


class _Factor:
    """The function: u = adjoint(out) by rows; each row is subtracted from the later ones when done.

    Rows are contiguous and padded, so that every step is a few whole vectors of one row, times a
    number, subtracted from another. What is left of the diagonal is never read.
    """

    def __init__(self, kernel: SingleNode, op: Cholesky) -> None:
        _, out = kernel.operands
        self.lower = op.lower
        self.dtype = out.dtype
        self.kind = storage.register_kind(out.dtype)
        self.size = out.shape[-1]
        # A row is a few vectors, and takes as long as many elements.
        cost = self.size**3 + 64 * self.size**2
        self.tasks = matrices(kernel, cost)
        self.code = function(kernel.name, excess_precision=kernel.excess_precision)
        self.buffers = pointers(self.code, 2)
        self.one = Vectors(self.code, 1)
        self.rows = PaddedRows(self.code, self.size, self.kind)
        self.bad = self.code.let("alloca i1, align 1")

    def emit(self) -> Emitted:
        """The function and its tasks."""
        code, one = self.code, self.one
        with self.tasks.each(code) as (offsets, _, _):
            code.do(f"store i1 false, ptr {self.bad}, align 1")
            self._copy(offsets[0])
            with code.loop(0, self.size) as step:
                k, row = step.index, self.rows.row("%scratch", step.index)
                pivot = one.load(one.at(row, k, self.kind), self.kind)
                # An ordered comparison: false for a NaN pivot, which is bad, too.
                fine = one.compare("ogt", pivot, one.constant(0.0, self.kind))
                with code.when(code.let(f"xor i1 {fine.text}, true")):
                    code.do(f"store i1 true, ptr {self.bad}, align 1")
                self._divide(row, k, one.intrinsic("sqrt", pivot))
                with code.loop(plus(code, k, 1), self.size) as loop:
                    self._subtract(row, loop.index)
            self._write(offsets[1])
        nbytes = self.size * self.rows.stride * (8 if self.kind == "double" else 4)
        return Emitted(module_text(code), (self.tasks.phase(code.name),), scratch=nbytes)

    def _place(self, row: str, column: str, offset: str) -> str:
        """An element of the triangle in memory, by its place in u."""
        code, at = self.code, (column, row) if self.lower else (row, column)
        return plus(code, plus(code, offset, times(code, at[0], self.size)), at[1])

    def _copy(self, offset: str) -> None:
        """The triangle that is read, by rows of u; zeros elsewhere."""
        code, one, rows = self.code, self.one, self.rows
        rows.clear("%scratch", self.size)
        with code.loop(0, self.size) as row, code.loop(row.index, self.size) as column:
            place = self._place(row.index, column.index, offset)
            (given,) = storage.load(one, self.buffers[0], place, self.dtype)
            one.store(given, one.at(rows.row("%scratch", row.index), column.index, self.kind))

    def _divide(self, row: str, begin: str, by: Vector) -> None:
        """Divide a row, from a column on."""
        code, rows, v = self.code, self.rows, self.rows.v
        divisor = v.splat(by)
        with code.loop(code.let(f"udiv i64 {begin}, {rows.width}"), rows.count) as block:
            place = rows.vector(row, block.index)
            v.store(v.div(rows.get(place), divisor), place)

    def _subtract(self, row: str, other: str) -> None:
        """Subtract a finished row from another, times the element in that one's column."""
        code, one, rows, v = self.code, self.one, self.rows, self.rows.v
        factor = v.splat(one.neg(one.load(one.at(row, other, self.kind), self.kind)))
        target = rows.row("%scratch", other)
        with code.loop(code.let(f"udiv i64 {other}, {rows.width}"), rows.count) as block:
            place = rows.vector(target, block.index)
            given = rows.get(rows.vector(row, block.index))
            v.store(v.fma(factor, given, rows.get(place)), place)

    def _write(self, offset: str) -> None:
        """Store the factor, or NaN, and zeros in the other triangle."""
        code, one = self.code, self.one
        bad = Vector(code.let(f"load i1, ptr {self.bad}, align 1"), "i1")
        nan, zero = one.constant(math.nan, self.kind), one.constant(0.0, self.kind)
        with code.loop(0, self.size) as row, code.loop(0, self.size) as column:
            found = one.at(self.rows.row("%scratch", row.index), column.index, self.kind)
            value = one.select(bad, nan, one.load(found, self.kind))
            inside = Vector(code.let(f"icmp sle i64 {row.index}, {column.index}"), "i1")
            made = one.select(inside, value, zero)
            place = self._place(row.index, column.index, offset)
            storage.store(one, (made,), self.buffers[1], place, self.dtype)
