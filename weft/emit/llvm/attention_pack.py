"""Rows of operands brought into a thread's scratch: as they are, or with rows along the lanes."""

from __future__ import annotations

from dataclasses import dataclass

from weft.emit.llvm.attention_product import first_lanes
from weft.emit.llvm.code import Code
from weft.emit.llvm.storage import gather, load, memory_kind
from weft.emit.llvm.vector import Vector, Vectors
from weft.ir.types import DType


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of an operand: their dtype, the strides of rows and columns, how many columns."""

    dtype: DType
    row: int
    column: int
    depth: int


def pack_rows(code: Code, rows: Rows, to: str, count: str, lanes: int, padded: int) -> None:
    """Copy `count` rows from %from, as held numbers, each of `padded` elements (zeros at the end)."""
    v = Vectors(code, lanes)
    with code.loop(0, count) as loop:
        source = moved(code, "%from", loop.index, rows.row, memory_kind(rows.dtype))
        target = moved(code, to, loop.index, padded, held_kind(rows.dtype))
        for begin in range(0, padded, lanes):
            found = read(v, rows, source, begin)
            v.store(found, v.at(target, begin, found.kind))


def read(v: Vectors, rows: Rows, source: str, begin: int) -> Vector:
    """Neighbouring columns of a row; zeros after its end."""
    left = rows.depth - begin
    mask = None if left >= v.width else first_lanes(v, left)
    if rows.column == 1:
        return load(v, source, begin, rows.dtype, mask)[0]
    lanes = ", ".join(f"i64 {(begin + n) * rows.column}" for n in range(v.width))
    return gather(v, source, Vector(f"<{lanes}>", "i64", v.width), rows.dtype, mask)[0]


def pack_across(
    code: Code, rows: Rows, to: str, last: str, lanes: int, vectors: int, scale: float
) -> None:
    """Write to[column][row] = scale * from[row][column]; rows after `last` repeat it."""
    v = Vectors(code, lanes)
    kind = memory_kind(rows.dtype)
    for group in range(vectors):
        sources = []
        for n in range(lanes):
            wanted = group * lanes + n
            inside = code.let(f"icmp slt i64 {wanted}, {last}")
            row = code.let(f"select i1 {inside}, i64 {wanted}, i64 {last}")
            sources.append(moved(code, "%from", row, rows.row, kind))
        target = v.at(to, group * lanes, held_kind(rows.dtype))
        whole = rows.depth - rows.depth % lanes
        with code.loop(0, whole, lanes) as loop:
            here = [moved(code, source, loop.index, rows.column, kind) for source in sources]
            place = moved(code, target, loop.index, lanes * vectors, held_kind(rows.dtype))
            _turn(v, [read(v, rows, at, 0) for at in here], place, lanes, vectors, scale)
        if whole < rows.depth:
            place = v.at(target, whole * lanes * vectors, held_kind(rows.dtype))
            ends = [read(v, rows, source, whole) for source in sources]
            _turn(v, ends, place, rows.depth - whole, vectors, scale)


def _turn(
    v: Vectors, rows: list[Vector], to: str, columns: int, vectors: int, scale: float
) -> None:
    for n, column in enumerate(transposed(v, rows)[:columns]):
        value = column if scale == 1.0 else v.mul(column, v.constant(scale, column.kind))
        v.store(value, v.at(to, n * v.width * vectors, value.kind))


def transposed(v: Vectors, rows: list[Vector]) -> list[Vector]:
    """The columns of a square of vectors: blocks off the diagonal change places, size by size."""
    rows, size, width = list(rows), 1, v.width
    while size < width:
        for i in range(width):
            if i & size:
                continue
            a, b = rows[i], rows[i + size]
            low = [n if not n & size else width + n - size for n in range(width)]
            high = [n + size if not n & size else width + n for n in range(width)]
            rows[i], rows[i + size] = _shuffled(v, a, b, low), _shuffled(v, a, b, high)
        size *= 2
    return rows


def moved(code: Code, base: str, index: str, stride: int, kind: str) -> str:
    """The address of the element at an index times a stride."""
    at = index if stride == 1 else code.let(f"mul nsw i64 {index}, {stride}")
    return code.let(f"getelementptr {kind}, ptr {base}, i64 {at}")


def held_kind(dtype: DType) -> str:
    """The kind that numbers of a dtype are held as."""
    return "double" if dtype.bits == 64 else "float"


def _shuffled(v: Vectors, a: Vector, b: Vector, order: list[int]) -> Vector:
    lanes = ", ".join(f"i32 {lane}" for lane in order)
    text = f"shufflevector {a.typed}, {b.typed}, <{len(order)} x i32> <{lanes}>"
    return Vector(v.code.let(text), a.kind, v.width)
