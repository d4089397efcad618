"""Parts of the forward kernel on AMX tiles: contractions, softmax, and the epilogue."""

from __future__ import annotations

from weft.emit.llvm.attention.forward import begin_softmax, keep_shares
from weft.emit.llvm.attention.pack import moved, stored
from weft.emit.llvm.attention.part import Routine, carried, write_vector
from weft.emit.llvm.attention.product import VectorBlock
from weft.emit.llvm.attention.scores import LOG2_E, ScoreBlocks
from weft.emit.llvm.attention.tile_pack import STEP, in_squares
from weft.emit.llvm.product.microkernel.tiles import (
    LINES,
    Registers,
    clear_tile,
    move_tile,
    multiply_tiles,
)
from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.storage import memory_kind
from weft.emit.llvm.writer.vector import Vector
from weft.kernels.attention import Attention

_UPPER = -(1 << 16)  # the bits of an f32 that bf16 keeps
_LEAST = -100  # exponent below which a probability is flushed: its bf16 remainder stays normal


def write_multiply(part: Routine, depth: int, key_row: int) -> Writer:
    """scores[key][query] of a tile of keys, 16 at a time."""
    code, t = part.code, part.tiling
    registers, vectors = Registers(LINES, t.vectors), range(t.vectors)
    lhs, queries = registers.lhs(0), part.place("queries")
    with code.loop(0, "%count", LINES) as key:
        line = moved(code, "%keys", key.index, key_row, "i16")
        for j in vectors:
            clear_tile(code, registers.block(0, j))
        for d in range(0, depth, STEP):
            move_tile(code, "tileloadd64", lhs, part.v.at(line, d, "i16"), 2 * key_row)
            for j in vectors:
                at = part.v.at(queries, d // 2 * t.queries + j * LINES, "i32")
                move_tile(code, "tileloadd64", registers.rhs(j), at, 4 * t.queries)
                given = registers.block(0, j), lhs, registers.rhs(j)
                multiply_tiles(code, "tdpbf16ps", *given)
        to = part.place("scores", key.index, t.queries)
        for j in vectors:
            at = part.v.at(to, j * LINES, t.kind)
            move_tile(code, "tilestored64", registers.block(0, j), at, 4 * t.queries)
    return code


class TileScores(ScoreBlocks):
    """Blocks of scores that are multiplied already, without the scale."""

    def block(self, index: str, rows: int, queries: str, keys: str = "%keys") -> VectorBlock:
        """The scores of some keys of a tile from an index on, and all queries of a tile."""
        # Not multiplied into the queries: these are bf16, and would be rounded once more.
        unit = self.part.constant(self.kernel.scale * LOG2_E)
        read = [self.tile_row("scores", index, i) for i in range(rows)]
        return self.shown([[self.v.mul(x, unit) for x in row] for row in read], index)


def write_split_softmax(part: Routine, keys: int) -> Writer:
    """Scores become 2^(score - max) as a sum of two bf16 numbers, two keys in a cell."""
    code, v = part.code, part.v
    tops, sums = begin_softmax(part, online=True)
    pairs = code.let("and i64 %count, -2")
    with code.loop(0, pairs, 2, carried(sums)) as loop:
        here = code.let(f"lshr i64 {loop.index}, 1")
        totals = []
        for n, (total, top) in enumerate(zip(part.named(loop.carried), tops, strict=True)):
            a, b = (_probability(part, loop.index, m, n, top) for m in range(2))
            _keep_cells(part, a, b, here, n)
            totals.append(v.add(total, v.add(a, b)).text)
        loop.carry(*totals)
    part.keep("sum", part.named(loop.carried))
    if keys % 2:
        with code.when(code.let(f"icmp slt i64 {pairs}, %count")):
            _last_key(part, pairs, tops)
    if keys % STEP:
        _clear_rest(part)
    return code


def _last_key(part: Routine, key: str, tops: list[Vector]) -> None:
    """An odd last key."""
    code, v = part.code, part.v
    here = code.let(f"lshr i64 {key}, 1")
    totals = []
    for n, (total, top) in enumerate(zip(part.each("sum"), tops, strict=True)):
        a = _probability(part, key, 0, n, top)
        _keep_cells(part, a, part.constant(0.0), here, n)
        totals.append(v.add(total, a))
    part.keep("sum", totals)


def _clear_rest(part: Routine) -> None:
    """Zero probabilities past the last key, up to a whole step."""
    code, v, t = part.code, part.v, part.tiling
    begin = code.let(f"lshr i64 {code.let('add i64 %count, 1')}, 1")
    end = code.let(f"lshr i64 {_whole(code)}, 1")
    with code.loop(begin, end) as loop:
        for name in ("high", "low"):
            place = part.place(name, loop.index, t.queries)
            for n in range(t.vectors):
                v.store(part.constant(0.0), v.at(place, n * t.lanes, t.kind))


def _whole(code: Writer) -> str:
    """The keys of a tile, rounded up to whole steps."""
    more = code.let(f"add i64 %count, {STEP - 1}")
    return code.let(f"and i64 {more}, {-STEP}")


def _probability(part: Routine, key: str, more: int, n: int, top: Vector) -> Vector:
    v, t = part.v, part.tiling
    place = v.at(part.place("scores", key, t.queries), more * t.queries + n * t.lanes, t.kind)
    return part.exp2(v.sub(v.load(place, t.kind), top), _LEAST)


def _keep_cells(part: Routine, a: Vector, b: Vector, row: str, n: int) -> None:
    """The upper bits of two numbers in a cell of `high`, the remainders in one of `low`."""
    v, t = part.v, part.tiling
    upper = v.constant(_UPPER, "i32")
    for name in ("high", "low"):
        first, second = (v.cast("bitcast", x, "i32") for x in (a, b))
        truncated = v.binary("and", second, upper)
        cells = v.binary("or", v.binary("lshr", first, v.constant(16, "i32")), truncated)
        v.store(cells, v.at(part.place(name, row, t.queries), n * t.lanes, "i32"))
        if name == "high":
            a = v.sub(a, v.cast("bitcast", v.binary("and", first, upper), t.kind))
            b = v.sub(b, v.cast("bitcast", truncated, t.kind))


def write_sums(part: Routine, width: int, keys: int) -> Writer:
    """out[d][query] of a tile: earlier sums, decayed, plus the values of its keys."""
    code, t, v = part.code, part.tiling, part.v
    _decay(part, width)
    registers, vectors = Registers(LINES, t.vectors), range(t.vectors)
    lhs, end = registers.lhs(0), _whole(code)
    probabilities = [part.place(name) for name in ("high", "low")]
    with code.loop(0, width, LINES) as d:
        out = part.place("out", d.index, t.queries)
        line = moved(code, "%values", d.index, keys, "i16")
        places = [v.at(out, j * LINES, t.kind) for j in vectors]
        for j in vectors:
            move_tile(code, "tileloadd64", registers.block(0, j), places[j], 4 * t.queries)
        with code.loop(0, end, STEP) as key:
            move_tile(code, "tileloadd64", lhs, v.at(line, key.index, "i16"), 2 * keys)
            far = code.let(f"mul i64 {key.index}, {t.queries // 2}")
            for base in probabilities:
                here = v.at(base, far, "i32")
                for j in vectors:
                    at = v.at(here, j * LINES, "i32")
                    move_tile(code, "tileloadd64", registers.rhs(j), at, 4 * t.queries)
                    given = registers.block(0, j), lhs, registers.rhs(j)
                    multiply_tiles(code, "tdpbf16ps", *given)
        for j in vectors:
            move_tile(code, "tilestored64", registers.block(0, j), places[j], 4 * t.queries)
    return code


def _decay(part: Routine, width: int) -> None:
    """Rescale sums by the decay, unless all factors are 1."""
    code, t, v = part.code, part.tiling, part.v
    factors, one = part.each("decay"), part.constant(1.0)
    lost = [v.compare("une", x, one) for x in factors]
    some = lost[0]
    for x in lost[1:]:
        some = v.binary("or", some, x)
    with code.when(v.total("or", some).text), code.loop(0, width) as d:
        out = part.place("out", d.index, t.queries)
        for j, factor in enumerate(factors):
            at = v.at(out, j * t.lanes, t.kind)
            v.store(v.mul(v.load(at, t.kind), factor), at)


def write_rows(part: Routine, kernel: Attention) -> Writer:
    """The result rows: sums divided by the probability sums, transposed back."""
    code, t, v = part.code, part.tiling, part.v
    keep_shares(part, kernel)
    access, dtype = kernel.out, kernel.dtype(kernel.out)
    even = kernel.queries % t.queries == 0
    with code.loop(0, "%rows", t.lanes) as group:
        share = v.load(part.place("decay", group.index), t.kind)

        def square(begin: str, count: int) -> None:
            first = v.at(part.place("out", begin, t.queries), group.index, t.kind)
            places = [v.at(first, n * t.queries, t.kind) for n in range(t.lanes)]
            columns = [v.mul(v.load(at, t.kind), share) for at in places]
            for n, row in enumerate(v.transpose(columns)):
                number = code.let(f"add nsw i64 {group.index}, {n}")
                there = "true" if even else code.let(f"icmp slt i64 {number}, %rows")
                with code.when(there):
                    target = moved(code, "%to", number, access.row, memory_kind(dtype))
                    target = moved(code, target, begin, access.column, memory_kind(dtype))
                    write_vector(part, stored(v, row, dtype), target, 0, count, access.column)

        in_squares(code, kernel.value_depth, t.lanes, square)
    return code
