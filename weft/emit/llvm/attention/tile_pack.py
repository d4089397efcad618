"""Packing for AMX tiles of bf16: 32-bit cells hold two elements of a row or a column."""

from __future__ import annotations

from collections.abc import Callable

from weft.emit.llvm.attention.pack import moved
from weft.emit.llvm.attention.part import Routine
from weft.emit.llvm.attention.product import first_lanes
from weft.emit.llvm.product.microkernel.tiles import LINES
from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.nest import smaller
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.kernels.attention import Attention

STEP = 2 * LINES  # elements of a tile's line


def turn_queries(part: Routine, kernel: Attention) -> Writer:
    """queries[d / 2][query], two depth steps in a cell; padding rows repeat the last."""
    code, v, t = part.code, part.v, part.tiling
    last = code.let("sub i64 %rows, 1")
    wide = Vectors(code, STEP)
    with code.loop(0, t.queries, LINES) as group:
        sources = []
        for n in range(LINES):
            row = smaller(code, code.let(f"add i64 {group.index}, {n}"), last)
            sources.append(moved(code, "%from", row, kernel.q.row, "i16"))

        def square(begin: str, count: int) -> None:
            lines = [_line(wide, wide.at(at, begin, "i16"), count) for at in sources]
            # A cell is two neighbours along the depth, as they lie in memory.
            cells = [Vector(code.let(f"bitcast {x.typed} to <16 x i32>"), "i32", 16) for x in lines]
            first = part.place("queries", code.let(f"lshr i64 {begin}, 1"), t.queries)
            for n, made in enumerate(v.transpose(cells)):
                place = v.at(first, n * t.queries, "i32")
                v.store(made, v.at(place, group.index, "i32"))

        in_squares(code, kernel.depth, STEP, square)
    return code


def in_squares(code: Writer, size: int, step: int, square: Callable[[str, int], None]) -> None:
    """A dim in full steps, then the rest; the callback gets begin and count."""
    whole, rest = size - size % step, size % step
    if whole:
        with code.loop(0, whole, step, at_least_once=True) as loop:
            square(loop.index, step)
    if rest:
        square(str(whole), rest)


def pack_keys(part: Routine, kernel: Attention) -> Writer:
    """keys[key][d] in whole tiles, zero-padded."""
    code, v = part.code, Vectors(part.code, STEP)
    padded = -(-kernel.depth // STEP) * STEP
    to = part.place("keys")
    with code.loop(0, "%count") as key:
        source = moved(code, "%from", key.index, kernel.k.row, "i16")
        target = moved(code, to, key.index, padded, "i16")
        for begin in range(0, padded, STEP):
            line = _line(v, v.at(source, begin, "i16"), kernel.depth - begin)
            v.store(line, v.at(target, begin, "i16"))
    more = code.let(f"add i64 %count, {LINES - 1}")
    end = code.let(f"and i64 {more}, {-LINES}")
    with code.loop("%count", end) as key:
        target = moved(code, to, key.index, padded, "i16")
        for begin in range(0, padded, STEP):
            v.store(v.constant(0, "i16"), v.at(target, begin, "i16"))
    return code


def turn_values(part: Routine, kernel: Attention, keys: int) -> Writer:
    """values[d][key], in lines of so many keys, zero-padded to whole tiles."""
    code = part.code
    turning = _Turning(part, kernel.v.row, keys)

    def columns(key: str, *, tail: bool) -> None:
        def square(d: str, width: int) -> None:
            turning.square(key, d, width, tail=tail)

        in_squares(code, kernel.value_depth, LINES, square)

    edge = code.let(f"and i64 %count, {-STEP}")
    with code.loop(0, edge, STEP) as block:
        columns(block.index, tail=False)
    if kernel.keys % STEP:
        with code.when(code.let(f"icmp slt i64 {edge}, %count")):
            columns(edge, tail=True)
    return code


class _Turning:
    """Transposition of squares of values."""

    def __init__(self, part: Routine, row: int, keys: int) -> None:
        self.part, self.row, self.keys = part, row, keys
        self.code, self.v = part.code, part.v
        self.to = part.place("values")
        self.last = part.code.let("sub i64 %count, 1")

    def square(self, key: str, d: str, width: int, *, tail: bool) -> None:
        """16 columns of 32 keys, or the remaining ones."""
        code, v = self.code, self.v
        cells = []
        for n in range(0, STEP, 2):
            low, high = (self._read(key, n + m, d, width, tail=tail) for m in range(2))
            high = v.binary("shl", high, v.constant(16, "i32"))
            cells.append(v.binary("or", low, high))
        for n, made in enumerate(v.transpose(cells)):
            at = moved(code, self.to, code.let(f"add i64 {d}, {n}"), self.keys, "i16")
            v.store(made, v.at(at, key, "i16"))

    def _read(self, key: str, n: int, d: str, width: int, *, tail: bool) -> Vector:
        code, v = self.code, self.v
        number = code.let(f"add i64 {key}, {n}")
        row = smaller(code, number, self.last) if tail else number
        source = v.at(moved(code, "%from", row, self.row, "i16"), d, "i16")
        value = v.cast("zext", _line(v, source, width), "i32")
        if tail:
            inside = Vector(code.let(f"icmp slt i64 {number}, %count"), "i1")
            value = v.select(v.splat(inside), value, v.constant(0, "i32"))
        return value


def _line(v: Vectors, at: str, count: int) -> Vector:
    """A vector of bits, or its first lanes (0 elsewhere)."""
    if count >= v.width:
        return v.load(at, "i16")
    return v.load_masked(at, first_lanes(v, count), "i16")
