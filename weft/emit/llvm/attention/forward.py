"""Parts of the forward kernel: scores, softmax, values, and the epilogue of a query tile.

The softmax state of each query (maximum and sum) is kept lane by lane. A kernel with a single tile
of keys needs no online softmax: its values are divided and written at once.
"""

from __future__ import annotations

import math

from weft.emit.llvm.attention.pack import moved, stored
from weft.emit.llvm.attention.part import Routine, carried, write_vector
from weft.emit.llvm.attention.product import UNROLL, Lhs, VectorBlock, VectorRows, product, zeros
from weft.emit.llvm.attention.scores import ScoreBlocks
from weft.emit.llvm.attention.tiling import ScratchPieces, Tiling
from weft.emit.llvm.math.logarithm import log
from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.storage import memory_kind
from weft.emit.llvm.writer.vector import Vector
from weft.kernels.attention import Attention

SCORES = ["ptr %keys", "i64 %count", "i64 %first"]  # parameters of a score part


def write_scores(part: Routine, kernel: Attention, blocks: ScoreBlocks) -> Writer:
    """scores[key][query] of a tile, and the running maximum of each query."""
    code, t, queries = part.code, part.tiling, part.place("queries")
    height, tail = t.key_rows, kernel.keys % t.key_rows

    def block(index: str, rows: int, tops: list[Vector]) -> list[Vector]:
        target = part.place("scores", index, t.queries)
        for i, row in enumerate(blocks.block(index, rows, queries)):
            for j, x in enumerate(row):
                part.v.store(x, part.v.at(target, i * t.queries + j * t.lanes, t.kind))
            tops = [_larger(part, x, top) for x, top in zip(row, tops, strict=True)]
        return tops

    tops = part.each("top")
    whole = code.let(f"and i64 %count, {-height}")
    with code.loop(0, whole, height, carried(tops)) as loop:
        loop.carry(*[x.text for x in block(loop.index, height, part.named(loop.carried))])
    tops = part.named(loop.carried)
    part.keep("top", tops)
    if tail:
        with code.when(code.let(f"icmp slt i64 {whole}, %count")):
            part.keep("top", block(whole, tail, tops))
    return code


def _larger(part: Routine, a: Vector, b: Vector) -> Vector:
    """The larger number; b where a is NaN."""
    # A NaN need not be the maximum: 2^(NaN - top) is NaN and reaches the sum by itself.
    return part.v.select(part.v.compare("ogt", a, b), a, b)


def write_softmax(name: str, t: Tiling, pieces: ScratchPieces, *, online: bool) -> Writer:
    """Scores become 2^(score - max); their sums are carried on."""
    part = Routine(name, ["i64 %count"], t, pieces)
    code, v = part.code, part.v
    tops, sums = begin_softmax(part, online=online)
    with code.loop(0, "%count", 1, carried(sums)) as loop:
        place = part.place("scores", loop.index, t.queries)
        totals = []
        for n, (total, top) in enumerate(zip(part.named(loop.carried), tops, strict=True)):
            at = v.at(place, n * t.lanes, t.kind)
            x = part.exp2(v.sub(v.load(at, t.kind), top))
            v.store(x, at)
            totals.append(v.add(total, x).text)
        loop.carry(*totals)
    part.keep("sum", part.named(loop.carried))
    return code


def begin_softmax(part: Routine, *, online: bool) -> tuple[list[Vector], list[Vector]]:
    """The maximum of each query, and the sums before this tile.

    With `online` there are earlier tiles, and `decay` is the factor that rescales their sums.
    """
    v, t = part.v, part.tiling
    lowest, zero = part.constant(-math.inf), part.constant(0.0)
    now = part.each("top")
    # A query without visible keys has the maximum -inf: use any finite number.
    tops = [v.select(v.compare("oeq", x, lowest), zero, x) for x in now]
    sums = [zero] * t.vectors
    if online:
        # Before the first tile `was` is -inf and the decay 0.
        was = zip(part.each("was"), tops, strict=True)
        decay = [part.exp2(v.sub(x, top)) for x, top in was]
        sums = [v.mul(x, y) for x, y in zip(part.each("sum"), decay, strict=True)]
        part.keep("decay", decay)
        part.keep("was", now)
    return tops, sums


class ValueProduct(Routine):
    """sums[query][column] += probabilities of a tile times its values."""

    def __init__(
        self, name: str, tiling: Tiling, pieces: ScratchPieces, kernel: Attention, row: int
    ) -> None:
        params = ["ptr %values", "i64 %count", "ptr %to", "i64 %rows"]
        super().__init__(name, params, tiling, pieces)
        self.kernel, self.row = kernel, row

    def write(self, *, online: bool) -> Writer:
        """Register blocks of queries and columns; without `online` they are the final result."""
        begin = 0
        if not online:
            keep_shares(self, self.kernel)
        for columns in self.tiling.columns(self.kernel.value_depth):
            rows = min(self.tiling.rows(columns), self.tiling.queries)
            with self.code.loop(0, self.tiling.queries if online else "%rows", rows) as loop:
                if online:
                    self._add(loop.index, rows, begin, columns)
                else:
                    self._finish(loop.index, rows, begin, columns)
            begin += columns * self.tiling.lanes
        return self.code

    def _product(self, start: VectorBlock, index: str, begin: int, columns: int) -> VectorBlock:
        t, end = self.tiling, self.kernel.value_depth - begin
        last = end - (columns - 1) * t.lanes
        # Probabilities are [keys, queries]: a row of the block is a query, and a step a key.
        lhs = Lhs(self.place("scores", index), 1, t.queries)
        base = self.v.at("%values", begin, t.kind)
        rhs = VectorRows(base, self.row, last if last < t.lanes else None)
        fours = self.kernel.keys % UNROLL == 0
        return product(self.v, start, lhs, rhs, "%count", whole=fours)

    def _add(self, index: str, rows: int, begin: int, columns: int) -> None:
        t, v = self.tiling, self.v
        width = t.padded(self.kernel.value_depth)
        target = v.at(self.place("out", index, width), begin, t.kind)
        start: VectorBlock = []
        for i in range(rows):
            less = self.spread("decay", index, i)
            places = [v.at(target, i * width + j * t.lanes, t.kind) for j in range(columns)]
            start.append([v.mul(v.load(at, t.kind), less) for at in places])
        for i, row in enumerate(self._product(start, index, begin, columns)):
            for j, x in enumerate(row):
                v.store(x, v.at(target, i * width + j * t.lanes, t.kind))

    def _finish(self, index: str, rows: int, begin: int, columns: int) -> None:
        start = zeros(self.v, rows, columns, self.kind)
        block = self._product(start, index, begin, columns)
        for i, row in enumerate(block):
            with self.code.when(self._exists(index, i)):
                share = self.spread("decay", index, i)
                made = [self.v.mul(x, share) for x in row]
                at = self.code.let(f"add nsw i64 {index}, {i}")
                write_row(self, self.kernel, made, at, begin)

    def _exists(self, index: str, i: int) -> str:
        """Whether row i of a block is inside of the tile."""
        if self.kernel.queries % self.tiling.queries == 0:
            return "true"
        return self.code.let(f"icmp slt i64 {self.code.let(f'add i64 {index}, {i}')}, %rows")


def write_row(part: Routine, kernel: Attention, row: list[Vector], at: str, begin: int) -> None:
    """Store columns of a result row to %to."""
    access, dtype, v = kernel.out, kernel.dtype(kernel.out), part.v
    target = moved(part.code, "%to", at, access.row, memory_kind(dtype))
    for j, x in enumerate(row):
        first = begin + j * v.width
        write_vector(part, stored(v, x, dtype), target, first, kernel.value_depth, access.column)


def keep_shares(part: Routine, kernel: Attention) -> None:
    """The final factor of each query's sums: 1 / sum, kept as `decay`."""
    v, zero, one = part.v, part.constant(0.0), part.constant(1.0)
    nothing = part.constant(0.0 if kernel.empty == "zero" else math.nan)
    sums = part.each("sum")
    # One division for each query; the sums are multiplied by it.
    shares = [v.select(v.compare("oeq", x, zero), nothing, v.div(one, x)) for x in sums]
    part.keep("decay", shares)


def write_finish(name: str, t: Tiling, pieces: ScratchPieces, kernel: Attention) -> Writer:
    """out[query] = sums[query] / sum."""
    part = Routine(name, ["ptr %to", "i64 %rows"], t, pieces)
    code, v = part.code, part.v
    keep_shares(part, kernel)
    width = t.padded(kernel.value_depth)
    with code.loop(0, "%rows") as loop:
        share = part.spread("decay", loop.index, 0)
        source = part.place("out", loop.index, width)
        starts = range(0, kernel.value_depth, t.lanes)
        row = [v.mul(v.load(v.at(source, n, t.kind), t.kind), share) for n in starts]
        write_row(part, kernel, row, loop.index, 0)
    return code


def write_lse(name: str, t: Tiling, pieces: ScratchPieces, kernel: Attention) -> Writer:
    """The logsumexp of each query: -inf without visible keys."""
    part = Routine(name, ["ptr %to", "i64 %rows"], t, pieces)
    assert kernel.lse is not None
    v, dtype = part.v, kernel.dtype(kernel.lse)
    unit = part.constant(math.log(2))  # maxima are in units of log(2)
    tops = zip(part.each("top"), part.each("sum"), strict=True)
    part.keep("was", [v.fma(top, unit, log(v, total)) for top, total in tops])
    with part.code.loop(0, "%rows") as loop:
        found = stored(part.one, part.one.load(part.place("was", loop.index), t.kind), dtype)
        at = part.code.let(f"mul nsw i64 {loop.index}, {kernel.lse.row}")
        part.one.store(found, v.at("%to", at, memory_kind(dtype)))
    return part.code
