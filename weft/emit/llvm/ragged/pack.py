"""Packing the sides of a ragged dot into scratch memory, widened to the type of the sums."""

from __future__ import annotations

from weft.emit.llvm.ragged.blocks import RaggedBlocks
from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.nest import plus, smaller, times
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.ir.types import DType


class RaggedPacking:
    """Copies of parts of operands: lines of rows, of K, or of columns."""

    def __init__(self, code: Writer, blocks: RaggedBlocks) -> None:
        self.code, self.blocks = code, blocks
        self.v, self.one = Vectors(code, blocks.width), Vectors(code, 1)

    def lines(
        self,
        source: str,
        dtype: DType,
        steps: tuple[int, int],
        counts: tuple[str, str],
        to: tuple[str, int],
    ) -> None:
        """to[i][j] = source[i * steps[0] + j * steps[1]]; lines of `to` have a length."""
        code, kind, width = self.code, self.blocks.kind, self.v.width
        with code.loop(0, counts[0]) as outer:
            start = times(code, outer.index, steps[0])
            target = self.one.at(to[0], times(code, outer.index, to[1]), kind)
            if steps[1] == 1:
                rest = code.let(f"urem i64 {counts[1]}, {width}")
                whole = code.let(f"sub nsw i64 {counts[1]}, {rest}")
                with code.loop(0, whole, width) as inner:
                    at = plus(code, start, inner.index)
                    self._copy(source, dtype, at, target, inner.index, None)
                with code.when(code.let(f"icmp ne i64 {rest}, 0")):
                    mask = self.v.first(rest)
                    self._copy(source, dtype, plus(code, start, whole), target, whole, mask)
            else:
                self._elements(source, dtype, (start, steps[1]), counts[1], target)

    def panel(
        self, source: str, dtype: DType, step: int, k_count: str, to: str, columns: str | None
    ) -> None:
        """A panel to[k][j] = source[k * step + j]; `columns` of it, or all."""
        code, b, v = self.code, self.blocks, self.v
        starts = range(0, b.panel, v.width)
        masks: list[Vector | None] = [None] * len(starts)
        if columns is not None:
            masks = [v.first(code.let(f"sub nsw i64 {columns}, {first}")) for first in starts]
        with code.loop(0, k_count) as k:
            start = times(code, k.index, step)
            target = self.one.at(to, times(code, k.index, b.panel), b.kind)
            for first, mask in zip(starts, masks, strict=True):
                self._copy(source, dtype, plus(code, start, first), target, str(first), mask)

    def _copy(
        self, source: str, dtype: DType, at: str, target: str, to: str, mask: Vector | None
    ) -> None:
        (given,) = storage.load(self.v, source, at, dtype, mask)
        self.v.store(given, self.v.at(target, to, self.blocks.kind))

    def _elements(
        self, source: str, dtype: DType, along: tuple[str, int], count: str, target: str
    ) -> None:
        code, (start, step) = self.code, along
        with code.loop(0, count) as loop:
            at = plus(code, start, times(code, loop.index, step))
            (given,) = storage.load(self.one, source, at, dtype)
            self.one.store(given, self.one.at(target, loop.index, self.blocks.kind))

    def transposed(
        self, source: str, dtype: DType, step: int, columns: str, k_count: str, to: str
    ) -> None:
        """A panel to[k][j] = source[j * step + k]: squares are transposed in registers.

        Columns past the end repeat the last one, and lines past the end are zeros.
        """
        code, b, v = self.code, self.blocks, self.v
        last = code.let(f"sub nsw i64 {columns}, 1")
        for first in range(0, b.panel, v.width):
            places = []
            for lane in range(v.width):
                column = smaller(code, last, first + lane)
                places.append(times(code, column, step))
            with code.loop(0, k_count, v.width) as k:
                rest = code.let(f"sub nsw i64 {k_count}, {k.index}")
                mask = v.first(rest)
                read = [
                    storage.load(v, source, plus(code, place, k.index), dtype, mask)[0]
                    for place in places
                ]
                for n, vector in enumerate(v.transpose(read) if v.width > 1 else read):
                    at = plus(code, times(code, plus(code, k.index, n), b.panel), first)
                    v.store(vector, v.at(to, at, b.kind))
