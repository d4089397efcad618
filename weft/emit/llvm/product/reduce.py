"""Reductions of a contraction's result in its epilogue: each block stores its partial result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.emit.llvm.loops.reduce import HeldSums, begin, combined, finish, neutral, update
from weft.emit.llvm.product.packing.cells import in_chunks
from weft.emit.llvm.product.parts import Parts
from weft.emit.llvm.product.product import Product
from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.nest import plus, times
from weft.emit.llvm.writer.storage import Held
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.kernels.kernel import Reduce

BATCH, ROW, COLUMN, COLUMNS = "%batch", "%row", "%column", "%columns"
ROW_BLOCK, COLUMN_BLOCK = "%row_block", "%column_block"


class Reductions:
    """The reductions of a contraction, in the epilogue of a block.

    Sums are in stack slots that LLVM promotes to registers. A block is finished row by row, or in
    bands of columns, to keep live ranges short; with reductions along both rows and columns, those
    along rows accumulate in the block's memory line.
    """

    def __init__(self, product: Product, parts: Sequence[Parts], v: Vectors, shared: str) -> None:
        self.kernel, self.v, self.parts = product.kernel, v, parts
        code = v.code
        self.bases = {p: code.let(f"getelementptr i8, ptr {shared}, i64 {p.at}") for p in parts}
        self.in_bands = any(not p.along_columns for p in parts) and all(p.along_rows for p in parts)
        self.variables: dict[Parts, list[str]] = {}
        for p in parts:
            if p.along_columns or self.in_bands:
                kinds = [part.type for held in self._first(p) for part in held]
                self.variables[p] = [code.let(f"alloca {kind}") for kind in kinds]

    def begin_block(self, *, whole: bool) -> None:
        """Before a block; `whole` if its columns are whole vectors."""
        for p in self.parts:
            if p.along_columns and p.along_rows:
                self._keep(p, self._first(p))
            elif p.along_rows and not self.in_bands:

                def fill(at: str, mask: Vector | None, p: Parts = p) -> None:
                    self._write_line(p, self._neutral(p), at, mask)

                in_chunks(self.v, "0", COLUMNS, fill, whole=whole)

    def begin_band(self) -> None:
        """Before the first row of a band of columns."""
        for p in self.parts:
            if not p.along_columns:
                self._keep(p, (self._neutral(p),))

    def begin_row(self) -> None:
        """Before the first column of a row."""
        for p in self.parts:
            if not p.along_rows:
                self._keep(p, self._first(p))

    def add(self, values: Mapping[int, Held], at: str, mask: Vector | None) -> None:
        """Accumulate the values of a row from a column of the block on, where a mask holds."""
        v = self.v
        for p in self.parts:
            step = self._step(p)
            value = values[step.arg]
            if p.along_columns:
                sums = update(v, self.kernel, p.number, self._recall(p), [value], mask)
                self._keep(p, sums)
            elif self.in_bands:
                self._keep(p, (combined(v, step.how, step.dtype, self._recall(p)[0], value),))
            else:
                before = storage.load(v, *self._line(p, at), p.operand.dtype, mask)
                after = combined(v, step.how, step.dtype, before, value)
                self._write_line(p, after, at, mask)

    def end_row(self, row: str) -> None:
        """After the last column of a row, given its global number."""
        for p in self.parts:
            if not p.along_rows:
                self._write(p, plus(self.v.code, self._block(p, COLUMN_BLOCK), row))

    def end_band(self, at: str, mask: Vector | None) -> None:
        """After the last row of a band of columns."""
        for p in self.parts:
            if not p.along_columns:
                self._write_line(p, self._recall(p)[0], at, mask)

    def end_block(self) -> None:
        """After the last row of a block."""
        for p in self.parts:
            if p.along_rows and p.along_columns:
                self._write(p, plus(self.v.code, self._block(p, ROW_BLOCK), COLUMN_BLOCK))

    def _step(self, parts: Parts) -> Reduce:
        step = self.kernel.steps[parts.number]
        assert isinstance(step, Reduce)
        return step

    def _first(self, parts: Parts) -> HeldSums:
        return begin(self.v, self.kernel, parts.number, across=parts.along_columns)

    def _neutral(self, parts: Parts) -> Held:
        dtype = parts.operand.dtype
        return storage.fill(self.v, neutral(self._step(parts).how, dtype), dtype)

    def _keep(self, parts: Parts, sums: HeldSums) -> None:
        values = [part for held in sums for part in held]
        for value, variable in zip(values, self.variables[parts], strict=True):
            self.v.code.do(f"store {value.typed}, ptr {variable}")

    def _recall(self, parts: Parts) -> HeldSums:
        variables = iter(self.variables[parts])
        return tuple(
            [tuple([self._read(part, next(variables)) for part in h]) for h in self._first(parts)]
        )

    def _read(self, like: Vector, variable: str) -> Vector:
        return Vector(self.v.code.let(f"load {like.type}, ptr {variable}"), like.kind, like.width)

    def _write(self, parts: Parts, place: str) -> None:
        (total,) = finish(self.v, self.kernel, parts.number, self._recall(parts), True)
        one = Vectors(self.v.code, 1)
        storage.store(one, total, self.bases[parts], place, parts.operand.dtype)

    def _write_line(self, parts: Parts, value: Held, at: str, mask: Vector | None) -> None:
        storage.store(self.v, value, *self._line(parts, at), parts.operand.dtype, mask)

    def _line(self, parts: Parts, at: str) -> tuple[str, str]:
        """The address of the sums along rows, from a column of the block on."""
        code = self.v.code
        return self.bases[parts], plus(code, plus(code, self._block(parts, ROW_BLOCK), COLUMN), at)

    def _block(self, parts: Parts, block: str) -> str:
        """The address of a block's partial results, or of adjacent blocks'."""
        _, blocks, length = parts.operand.shape
        code = self.v.code
        return times(code, plus(code, times(code, BATCH, blocks), block), length)
