"""Tile transposition: elements contiguous along one factor are laid along another, in scratch."""

from __future__ import annotations

from weft.emit.llvm.loops.loops import End, Loops
from weft.emit.llvm.loops.transposed import TILE, TransposedAccesses
from weft.emit.llvm.writer.access import LoopPoint, base_of
from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.nest import plus, smaller, times
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.kernels.kernel import Kernel, Load, Store

SIDE = 8  # squares of elements are transposed in registers
PARAMS = ("ptr %memory", "i64 %stride", "ptr %tile", "i64 %lines", "i64 %lanes")


def transpose_tiles(loops: Loops, transposed: TransposedAccesses) -> None:
    """Transpose a task's input tiles into scratch, and allocate its output tiles."""
    (line, _), (lane, _) = _ends(loops, transposed)
    for n in (*transposed.loads, *transposed.stores):
        size = _bytes(loops, n)
        room = loops.at.take(transposed.nbytes(loops.kernel, size))
        loops.at.tiles[n] = (room, str(line), str(lane))
        if n in transposed.loads:
            _call(loops, transposed, n, f"turn{size}")


def transpose_back(loops: Loops, transposed: TransposedAccesses) -> None:
    """Transpose a task's output tiles back to memory."""
    for n in transposed.stores:
        _call(loops, transposed, n, f"back{_bytes(loops, n)}")


def transpose_functions(kernel: Kernel, transposed: TransposedAccesses) -> list[Writer]:
    """The functions that transpose tiles of some element sizes, in both directions."""
    writers: dict[str, Writer] = {}
    for n in (*transposed.loads, *transposed.stores):
        step = kernel.steps[n]
        assert isinstance(step, Load | Store)
        size = kernel.operands[step.operand].dtype.numpy.itemsize
        back = isinstance(step, Store)
        writers[f"{back}{size}"] = _back(size) if back else _transpose(size)
    return list(writers.values())


def _ends(loops: Loops, transposed: TransposedAccesses) -> tuple[tuple[End, End], tuple[End, End]]:
    """The first line and lane of a tile, and the ends."""
    whole = (0, loops.kernel.factors[transposed.lines].size)
    return loops.bounds.get(transposed.lines, whole), loops.bounds[transposed.vector]


def _call(loops: Loops, transposed: TransposedAccesses, n: int, name: str) -> None:
    at, code, step = loops.at, loops.code, loops.kernel.steps[n]
    assert isinstance(step, Load | Store)
    ends = _ends(loops, transposed)
    counts = [code.let(f"sub nsw i64 {end}, {first}") for first, end in ends]
    index = at.index | {transposed.lines: str(ends[0][0]), transposed.vector: str(ends[1][0])}
    place = base_of(at.one, step.at, LoopPoint(index, at.ranges))
    memory = at.one.at(at.pointers[step.operand], place, f"i{8 * _bytes(loops, n)}")
    tile = code.let(f"getelementptr i8, ptr %scratch, i64 {at.tiles[n][0]}")
    given = f"ptr {memory}, i64 {step.at.strides[transposed.vector]}, ptr {tile}"
    code.do(f"call void @{name}({given}, i64 {counts[0]}, i64 {counts[1]})")


def _bytes(loops: Loops, n: int) -> int:
    step = loops.kernel.steps[n]
    assert isinstance(step, Load | Store)
    return int(loops.kernel.operands[step.operand].dtype.numpy.itemsize)


def _transpose(size: int) -> Writer:
    """tile[line][lane] = memory[lane * stride + line], for valid lines and lanes."""
    code = Writer(f"turn{size}", PARAMS, internal=True)
    kind, wide = f"i{8 * size}", f"i{8 * max(size, 4)}"
    v, one = Vectors(code, SIDE), Vectors(code, 1)
    last = code.let("sub nsw i64 %lanes, 1")
    with code.loop(0, "%lanes", SIDE) as lane, code.loop(0, "%lines", SIDE) as line:
        mask = v.first(code.let(f"sub nsw i64 %lines, {line.index}"))
        rows: list[Vector] = []
        for n in range(SIDE):
            # Past the end the last lane is read again: the loads stay in bounds.
            number = smaller(code, plus(code, lane.index, n), last)
            place = plus(code, code.let(f"mul nsw i64 {number}, %stride"), line.index)
            found = v.load_masked(one.at("%memory", place, kind), mask, kind)
            rows.append(v.cast("zext", found, wide))
        for n, row in enumerate(_transposed(v, rows)):
            # Without a mask: the tile has room for whole squares.
            to = plus(code, times(code, plus(code, line.index, n), TILE), lane.index)
            v.store(v.cast("trunc", row, kind), one.at("%tile", to, kind))
    return code


def _back(size: int) -> Writer:
    """memory[lane * stride + line] = tile[line][lane], for valid lines and lanes."""
    code = Writer(f"back{size}", PARAMS, internal=True)
    kind, wide = f"i{8 * size}", f"i{8 * max(size, 4)}"
    v, one = Vectors(code, SIDE), Vectors(code, 1)
    with code.loop(0, "%lanes", SIDE) as lane, code.loop(0, "%lines", SIDE) as line:
        inside = v.first(code.let(f"sub nsw i64 %lines, {line.index}"))
        rows: list[Vector] = []
        for n in range(SIDE):
            place = plus(code, times(code, plus(code, line.index, n), TILE), lane.index)
            rows.append(v.cast("zext", v.load(one.at("%tile", place, kind), kind), wide))
        for n, row in enumerate(_transposed(v, rows)):
            number = plus(code, lane.index, n)
            there = v.splat(Vector(code.let(f"icmp slt i64 {number}, %lanes"), "i1"))
            to = plus(code, code.let(f"mul nsw i64 {number}, %stride"), line.index)
            mask = v.binary("and", inside, there)
            v.store_masked(v.cast("trunc", row, kind), one.at("%memory", to, kind), mask)
    return code


def _transposed(v: Vectors, rows: list[Vector]) -> list[Vector]:
    """Transpose a square of rows and lanes in registers.

    Every round pairs rows that differ in one bit of their number, and swaps that bit with one of
    the lane number. The order matches the shuffle instructions: unpacks inside of 128 bits first,
    then permutes of 128-bit pieces.
    """
    count, inside = len(rows), 128 // rows[0].bits
    neighbours = [_neighbours(count, inside, 1 << n) for n in range(inside.bit_length() - 1)]
    pieces = [_pieces(count, inside)] * ((count // inside).bit_length() - 1)
    became = [inside >> n + 1 for n in range(len(neighbours))]
    became += [inside << n for n in range(len(pieces))]
    for slot, halves in enumerate([*neighbours, *pieces]):
        swapped = list(rows)
        for n in range(count):
            if not n >> slot & 1:
                other = n | 1 << slot
                swapped[n] = v.shuffle(rows[n], rows[other], halves[0])
                swapped[other] = v.shuffle(rows[n], rows[other], halves[1])
        rows = swapped
    transposed = list(rows)
    for n, row in enumerate(rows):
        transposed[sum(bit for slot, bit in enumerate(became) if n >> slot & 1)] = row
    return transposed


def _neighbours(count: int, inside: int, group: int) -> tuple[list[int], list[int]]:
    """Interleaved groups of lanes of two rows, from the lower or upper half of every piece."""

    def half(first: int) -> list[int]:
        starts = range(first, count, inside)
        lanes = [start + n for start in starts for n in range(0, inside // 2, group)]
        return [row + lane + n for lane in lanes for row in (0, count) for n in range(group)]

    return half(0), half(inside // 2)


def _pieces(count: int, inside: int) -> tuple[list[int], list[int]]:
    """Alternate pieces of two rows, from the first piece or the second."""

    def half(first: int) -> list[int]:
        return [
            piece * inside + n
            for piece in range(first, 2 * count // inside, 2)
            for n in range(inside)
        ]

    return half(0), half(1)
