"""The contraction of attention: a register block of rows and vectors, kept over all steps.

    block[i][j] += lhs[i, step] * rhs[step, j]

Elements of the LHS are broadcast, rows of the RHS are loaded as vectors. Every
contraction of attention, forward and backward, has this form without a transposed copy: only the
strides of the LHS differ.
"""

from __future__ import annotations

from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.storage import load, memory_kind
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.ir.types import DType
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Lhs:
    """Elements to broadcast: their base address and strides."""

    base: str
    row: int
    step: int


@dataclass(frozen=True, slots=True)
class VectorRows:
    """Rows of vectors: their base address and row stride."""

    base: str
    step: int
    last: int | None = None  # valid lanes of the last vector, if not all
    dtype: DType | None = None  # element type in memory, if it differs


VectorBlock = list[list[Vector]]
UNROLL = 4  # unrolled steps


def zeros(vectors: Vectors, rows: int, columns: int, kind: str) -> VectorBlock:
    """A zeroed block."""
    zero = Vector("zeroinitializer" if vectors.width > 1 else "0.0", kind, vectors.width)
    return [[zero] * columns for _ in range(rows)]


def product(
    vectors: Vectors,
    block: VectorBlock,
    lhs: Lhs,
    rhs: VectorRows,
    steps: int | str,
    *,
    whole: bool = False,
) -> VectorBlock:
    """The block with the products of all steps added; `whole`: a multiple of UNROLL steps."""
    code = vectors.code
    if isinstance(steps, int):
        rest = steps % UNROLL
        if steps > rest:
            block = _loop(vectors, block, lhs, rhs, 0, steps - rest, UNROLL, sure=True)
        for step in range(steps - rest, steps):
            block = _step(vectors, block, _moved(code, lhs, rhs, str(step), block), 0, lhs)
        return block
    end = steps if whole else code.let(f"and i64 {steps}, {-UNROLL}")
    block = _loop(vectors, block, lhs, rhs, 0, end, UNROLL)
    return block if whole else _loop(vectors, block, lhs, rhs, end, steps, 1)


def _loop(
    vectors: Vectors,
    block: VectorBlock,
    lhs: Lhs,
    rhs: VectorRows,
    begin: int | str,
    end: int | str,
    unroll: int,
    sure: bool = False,
) -> VectorBlock:
    code = vectors.code
    carried = [(x.type, x.text) for row in block for x in row]
    with code.loop(begin, end, unroll, carried, at_least_once=sure) as loop:
        inner = _like(block, loop.carried)
        places = _moved(code, lhs, rhs, loop.index, block)
        for n in range(unroll):
            inner = _step(vectors, inner, places, n, lhs)
        loop.carry(*[x.text for row in inner for x in row])
    return _like(block, loop.carried)


@dataclass(frozen=True, slots=True)
class _Places:
    """The addresses of one unrolled iteration."""

    lhs: str
    rhs: str
    rows: VectorRows


def _moved(code: Writer, lhs: Lhs, rhs: VectorRows, index: str, block: VectorBlock) -> _Places:
    kind = block[0][0].kind
    stored = kind if rhs.dtype is None else memory_kind(rhs.dtype)
    return _Places(
        address(code, lhs.base, index, lhs.step, kind),
        address(code, rhs.base, index, rhs.step, stored),
        rhs,
    )


def address(code: Writer, base: str, index: str, stride: int, kind: str) -> str:
    """The address of the element at an index times a stride."""
    at = index if stride == 1 else code.let(f"mul nsw i64 {index}, {stride}")
    return code.let(f"getelementptr {kind}, ptr {base}, i64 {at}")


def _step(vectors: Vectors, block: VectorBlock, at: _Places, n: int, lhs: Lhs) -> VectorBlock:
    kind, width, columns = block[0][0].kind, vectors.width, len(block[0])
    row: list[Vector] = []
    for j in range(columns):
        lanes = at.rows.last if j == columns - 1 else None
        row.append(_read(vectors, at, n * at.rows.step + j * width, kind, lanes))
    updated: VectorBlock = []
    one = Vectors(vectors.code, 1)
    for i, before in enumerate(block):
        place = vectors.at(at.lhs, n * lhs.step + i * lhs.row, kind)
        spread = vectors.splat(one.load(place, kind))
        updated.append([vectors.fma(spread, x, y) for x, y in zip(row, before, strict=True)])
    return updated


def _read(vectors: Vectors, at: _Places, index: int, kind: str, lanes: int | None) -> Vector:
    """A vector of a row, in the compute type."""
    if at.rows.dtype is None:
        return read_first(vectors, vectors.at(at.rhs, index, kind), kind, lanes)
    mask = None if lanes is None else first_lanes(vectors, lanes)
    return load(vectors, at.rhs, index, at.rows.dtype, mask)[0]


def read_first(vectors: Vectors, place: str, kind: str, lanes: int | None) -> Vector:
    """A vector, or its first lanes (0 elsewhere)."""
    if lanes is None or lanes == vectors.width:
        return vectors.load(place, kind)
    return vectors.load_masked(place, first_lanes(vectors, lanes), kind)


def write_first(vectors: Vectors, x: Vector, place: str, lanes: int) -> None:
    """Store the first lanes of a vector, or all of it."""
    if lanes >= vectors.width:
        vectors.store(x, place)
    # LLVM 22 bug: a masked store of one lane of a narrowed vector writes four bytes
    elif lanes == 1:
        one = Vector(vectors.code.let(f"extractelement {x.typed}, i64 0"), x.kind)
        Vectors(vectors.code, 1).store(one, place)
    else:
        vectors.store_masked(x, place, first_lanes(vectors, lanes))


def first_lanes(vectors: Vectors, lanes: int) -> Vector:
    """The mask of the first lanes."""
    bits = ", ".join(f"i1 {int(n < lanes)}" for n in range(vectors.width))
    return Vector(f"<{bits}>", "i1", vectors.width)


def _like(block: VectorBlock, texts: tuple[str, ...]) -> VectorBlock:
    """A block of the same shape with other values."""
    given = iter(texts)
    return [[Vector(next(given), x.kind, x.width) for x in row] for row in block]
