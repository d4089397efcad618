"""The epilogue of a contraction: the steps after the sum, on a block."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from weft.emit.llvm.product.blocking.blocking import Blocking, ProductShape
from weft.emit.llvm.product.packing.cells import in_chunks
from weft.emit.llvm.product.parts import Parts
from weft.emit.llvm.product.points import FactorPoint, flat_lanes, flat_point, lane_count
from weft.emit.llvm.product.product import Product
from weft.emit.llvm.product.reduce import (
    BATCH,
    COLUMN,
    COLUMN_BLOCK,
    COLUMNS,
    ROW,
    ROW_BLOCK,
    Reductions,
)
from weft.emit.llvm.product.values import ProductValues
from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.nest import plus, pointers, times
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.records import dataclass

FINISH = "finish"
PARAMS = (
    "ptr %operands",
    "ptr noalias %sums",
    f"i64 {BATCH}",
    f"i64 {ROW}",
    "i64 %rows",
    f"i64 {COLUMN}",
    f"i64 {COLUMNS}",
    f"i64 {ROW_BLOCK}",
    f"i64 {COLUMN_BLOCK}",
)


@dataclass(frozen=True, slots=True)
class Sums:
    """The layout of sums to finish: in lines, possibly as partial sums."""

    line: int  # row stride in elements
    columns: frozenset[int]  # rows and columns of a block
    lanes: int  # lanes of the epilogue
    parts: int = 1  # partial sums, one whole result after another


def sums_of(shape: ProductShape, blocking: Blocking) -> Sums:
    """The layout of a block's sums: each block by itself, or those of a part all together."""
    if blocking.parts > 1:
        whole = frozenset({shape.columns})
        return Sums(blocking.columns, whole, _width(blocking), blocking.parts)
    panels = {n * blocking.width for n in blocking.vectors.sizes} | {shape.columns}
    return Sums(blocking.line, frozenset(panels), _width(blocking))


def finish(
    product: Product, shape: ProductShape, sums: Sums, parts: Sequence[Parts] = ()
) -> Writer:
    """Run the epilogue on rows x columns of the sums at `sums`.

    Reductions store the block's partial results, by its numbers along rows and columns.
    """
    kernel, factors = product.kernel, product.kernel.factors
    code = Writer(FINISH, PARAMS, internal=True, excess_precision=kernel.excess_precision)
    code.header += " noinline nounwind"
    v = Vectors(code, lane_count(factors, product.columns, sums.lanes))
    whole = all(columns % v.width == 0 for columns in sums.columns)
    operands = pointers(code, len(kernel.operands) + bool(parts))
    values, reductions = (
        ProductValues(kernel, v, operands),
        Reductions(product, parts, v, operands[-1]),
    )
    batch = flat_point(code, factors, product.batch, BATCH)

    def at_row(index: str) -> tuple[FactorPoint, str]:
        here = batch | flat_point(code, factors, product.rows, plus(code, ROW, index))
        return here, v.at("%sums", times(code, index, sums.line), shape.kind)

    def end(row: tuple[FactorPoint, str], at: str, mask: Vector | None) -> None:
        here, line = row
        total = _read(v, v.at(line, at, shape.kind), shape.kind, mask)
        # In the order of the parts, whichever thread computed them: results are deterministic.
        for n in range(1, sums.parts):
            far = plus(code, at, n * shape.rows * sums.line)
            total = v.add(total, _read(v, v.at(line, far, shape.kind), shape.kind, mask))
        point = here | flat_lanes(v, factors, product.columns, plus(code, COLUMN, at))
        found = values.end(product.at, product.after, point, total, mask)
        reductions.add(found, at, mask)

    def band(at: str, mask: Vector | None) -> None:
        reductions.begin_band()
        with code.loop(0, "%rows") as row:
            end(at_row(row.index), at, mask)
        reductions.end_band(at, mask)

    reductions.begin_block(whole=whole)
    if reductions.in_bands:
        in_chunks(v, "0", COLUMNS, band, whole=whole)
    else:
        with code.loop(0, "%rows") as row:
            reductions.begin_row()
            in_chunks(v, "0", COLUMNS, partial(end, at_row(row.index)), whole=whole)
            reductions.end_row(plus(code, ROW, row.index))
    reductions.end_block()
    return code


def _read(v: Vectors, place: str, kind: str, mask: Vector | None) -> Vector:
    return v.load(place, kind) if mask is None else v.load_masked(place, mask, kind)


def _width(blocking: Blocking) -> int:
    """The lanes of the epilogue: two registers, if every panel has an even number of vectors."""
    if blocking.inner:
        return 1 << (blocking.line.bit_length() - 1)
    even = all(n % 2 == 0 for n in blocking.vectors.sizes)
    return blocking.width * (2 if even else 1)
