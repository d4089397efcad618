"""Turning tiles: elements that lie along one factor are put along another, in scratch memory."""

from __future__ import annotations

from weft.emit.llvm.access import base_of
from weft.emit.llvm.code import Code
from weft.emit.llvm.loops import Loops
from weft.emit.llvm.loops_turned import TILE, Turned
from weft.emit.llvm.nest import plus, smaller, times
from weft.emit.llvm.vector import Vector, Vectors
from weft.kernels.kernel import Load

REGISTER = 64  # bytes


def turn(loops: Loops, turned: Turned) -> None:
    """Fill scratch memory with the tiles of a task; its loads then read there."""
    at, code = loops.at, loops.code
    (line, line_end), (lane, lane_end) = (
        loops.bounds[f] for f in (turned.lines, turned.vector)
    )
    counts = [code.let(f"sub nsw i64 {line_end}, {line}"), code.let(f"sub nsw i64 {lane_end}, {lane}")]
    at.index |= {turned.lines: str(line), turned.vector: str(lane)}
    for n in turned.loads:
        step = loops.kernel.steps[n]
        assert isinstance(step, Load)
        size = loops.kernel.operands[step.operand].dtype.numpy.itemsize
        offset = at.take(TILE * TILE * size)
        at.tiles[n] = (offset, str(line), str(lane))
        first = base_of(at.one, step.at, at.place())
        source = at.one.at(at.pointers[step.operand], first, f"i{8 * size}")
        target = code.let(f"getelementptr i8, ptr %scratch, i64 {offset}")
        given = ", ".join(
            [
                f"ptr {source}, i64 {step.at.strides[turned.vector]}, ptr {target}",
                *(f"i64 {count}" for count in counts),
            ]
        )
        code.do(f"call void @turn{size}({given})")
    del at.index[turned.lines], at.index[turned.vector]


def turning(turned: Turned) -> list[Code]:
    """The functions that turn tiles of elements of some sizes."""
    return [_turning(size) for size in turned.sizes]


def _turning(size: int) -> Code:
    """target[line][lane] = source[lane * stride + line], for the lines and lanes that there are.

    Blocks are squares, as wide as a register is for elements of at least 4 bytes.
    """
    params = ("ptr %source", "i64 %stride", "ptr %target", "i64 %lines", "i64 %lanes")
    code = Code(f"turn{size}", params, internal=True)
    kind, wide = f"i{8 * size}", f"i{8 * max(size, 4)}"
    side = REGISTER // max(size, 4)
    v, one = Vectors(code, side), Vectors(code, 1)
    last = code.let("sub nsw i64 %lanes, 1")
    with code.loop(0, "%lanes", side) as lane, code.loop(0, "%lines", side) as line:
        left = code.let(f"sub nsw i64 %lines, {line.index}")
        mask = v.first(left)
        rows: list[Vector] = []
        for n in range(side):
            row = smaller(code, plus(code, lane.index, n), last)
            place = plus(code, code.let(f"mul nsw i64 {row}, %stride"), line.index)
            found = v.load_masked(one.at("%source", place, kind), mask, kind)
            rows.append(v.cast("zext", found, wide))
        for n, row in enumerate(_transposed(v, rows)):
            to = plus(code, times(code, plus(code, line.index, n), TILE), lane.index)
            v.store(v.cast("trunc", row, kind), one.at("%target", to, kind))
    return code


def _transposed(v: Vectors, rows: list[Vector]) -> list[Vector]:
    """A square of rows and lanes, turned.

    Every round pairs rows that differ in one bit of their number: the bit becomes one of the lane,
    and a bit of the lane becomes that of the row. The rounds are those that processors have
    instructions for: neighbours inside of 128 bits first, then pieces of 128 bits.
    """
    count = len(rows)
    pieces = count // 4 if count == 16 else count // 2
    inside = count // pieces  # lanes in 128 bits
    held: list[int] = []  # for each bit of the rows, the bit of the lanes that it has become
    bit = 1
    while bit < count:
        halves: tuple[list[int], list[int]]
        if bit < inside:
            halves = _neighbours(count, inside, inside // 2 // bit if inside == 4 else 1)
            held.append(inside // 2 // bit)
        else:
            halves = _pieces(count, inside)
            held.append(bit)
        made = list(rows)
        for n in range(count):
            if not n & bit:
                made[n] = _shuffled(v, rows[n], rows[n | bit], halves[0])
                made[n | bit] = _shuffled(v, rows[n], rows[n | bit], halves[1])
        rows, bit = made, bit * 2
    turned: list[Vector] = [rows[0]] * count
    for n, row in enumerate(rows):
        turned[sum(lane for slot, lane in enumerate(held) if n >> slot & 1)] = row
    return turned
