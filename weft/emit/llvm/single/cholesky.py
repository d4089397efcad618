"""Cholesky decomposition: one matrix a task, row by row, with the factor in scratch memory."""

from __future__ import annotations

import math

from weft.emit.llvm.emitted import Emitted
from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.code import module_text
from weft.emit.llvm.writer.nest import Along, function, lines, plus, pointers, times
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.kernels.single_node import SingleNode, strides
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
    """The function: out[i, j] = (a[i, j] - sum over k < j of out[i, k] * out[j, k]) / out[j, j]."""

    def __init__(self, kernel: SingleNode, op: Cholesky) -> None:
        _, out = kernel.operands
        self.lower = op.lower
        self.dtype = out.dtype
        self.kind = storage.register_kind(out.dtype)
        self.size = out.shape[-1]
        steps = [strides(o.shape) for o in kernel.operands]
        sizes = [*kernel.devices, *out.shape[kernel.lead : -2]]
        outer = [Along(n, (steps[0][d], steps[1][d])) for d, n in enumerate(sizes)]
        self.tasks = lines([*outer, Along(1, (0, 0))], self.size**3, whole=True)
        self.width = 8 if self.kind == "double" else 16
        self.code = function(kernel.name, excess_precision=kernel.excess_precision)
        self.buffers = pointers(self.code, 2)
        self.one = Vectors(self.code, 1)
        self.bad = self.code.let("alloca i1, align 1")

    def emit(self) -> Emitted:
        """The function and its tasks."""
        code = self.code
        with self.tasks.each(code) as (offsets, _, _):
            code.do(f"store i1 false, ptr {self.bad}, align 1")
            with code.loop(0, self.size) as row:
                with code.loop(0, row.index) as column:
                    rest = self._rest(row.index, column.index, offsets[0])
                    pivot = self._kept(column.index, column.index)
                    self._keep(self.one.div(rest, pivot), row.index, column.index)
                rest = self._rest(row.index, row.index, offsets[0])
                fine = self.one.compare("ogt", rest, self.one.constant(0.0, self.kind))
                with code.when(code.let(f"xor i1 {fine.text}, true")):
                    code.do(f"store i1 true, ptr {self.bad}, align 1")
                self._keep(self.one.intrinsic("sqrt", rest), row.index, row.index)
            self._write(offsets[1])
        nbytes = self.size * self.size * (8 if self.kind == "double" else 4)
        return Emitted(module_text(code), (self.tasks.phase(code.name),), scratch=nbytes)

    def _rest(self, row: str, column: str, offset: str) -> Vector:
        """An element of the matrix minus the contribution of earlier columns."""
        code = self.code
        at = (row, column) if self.lower else (column, row)
        place = plus(code, plus(code, offset, times(code, at[0], self.size)), at[1])
        (given,) = storage.load(self.one, self.buffers[0], place, self.dtype)
        return self.one.sub(given, self._sum(row, column))

    def _sum(self, row: str, column: str) -> Vector:
        """The dot product of two rows of the factor, before a column."""
        code, v = self.code, Vectors(self.code, self.width)
        whole = code.let(f"and i64 {column}, {-self.width}")
        zero = v.constant(0.0, self.kind)
        with code.loop(0, whole, self.width, carried=[(zero.type, zero.text)]) as loop:
            parts = [v.load(self._slot(n, loop.index), self.kind) for n in (row, column)]
            before = Vector(loop.carried[0], self.kind, v.width)
            loop.carry(v.fma(parts[0], parts[1], before).text)
        total = v.total_sum(Vector(loop.carried[0], self.kind, v.width))
        with code.loop(whole, column, carried=[(self.kind, total.text)]) as loop:
            a, b = (self._kept(n, loop.index) for n in (row, column))
            loop.carry(self.one.fma(a, b, Vector(loop.carried[0], self.kind)).text)
        return Vector(loop.carried[0], self.kind)

    def _slot(self, row: str, column: str) -> str:
        index = plus(self.code, times(self.code, row, self.size), column)
        return self.one.at("%scratch", index, self.kind)

    def _kept(self, row: str, column: str) -> Vector:
        return self.one.load(self._slot(row, column), self.kind)

    def _keep(self, value: Vector, row: str, column: str) -> None:
        self.one.store(value, self._slot(row, column))

    def _write(self, offset: str) -> None:
        """Store the factor, or NaN, and zeros in the other triangle."""
        code, one = self.code, self.one
        bad = Vector(code.let(f"load i1, ptr {self.bad}, align 1"), "i1")
        nan, zero = one.constant(math.nan, self.kind), one.constant(0.0, self.kind)
        with code.loop(0, self.size) as row, code.loop(0, self.size) as column:
            at = (row.index, column.index) if self.lower else (column.index, row.index)
            # Scratch above the diagonal is uninitialized.
            value = one.select(bad, nan, self._kept(*at))
            inside = Vector(code.let(f"icmp sle i64 {at[1]}, {at[0]}"), "i1")
            place = plus(code, plus(code, offset, times(code, row.index, self.size)), column.index)
            made = one.select(inside, value, zero)
            storage.store(one, (made,), self.buffers[1], place, self.dtype)
