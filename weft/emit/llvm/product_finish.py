"""The end of a product: what comes after the sum, on a block of it."""

from __future__ import annotations

from weft.emit.llvm.blocking import Blocking, Shape
from weft.emit.llvm.code import Code
from weft.emit.llvm.nest import plus, pointers, times
from weft.emit.llvm.pack_cells import in_chunks
from weft.emit.llvm.product import Product
from weft.emit.llvm.product_points import Point, flat_lanes, flat_point, lane_count
from weft.emit.llvm.product_values import Values
from weft.emit.llvm.vector import Vector, Vectors

FINISH = "finish"
PARAMS = (
    "ptr %operands",
    "ptr noalias %sums",
    "i64 %batch",
    "i64 %row",
    "i64 %rows",
    "i64 %column",
    "i64 %columns",
)
TYPES = "ptr, ptr, i64, i64, i64, i64, i64"


def finish(product: Product, shape: Shape, blocking: Blocking) -> Code:
    """Run the steps after the sum on rows x columns of it, at `sums` in lines of a panel.

    A product in parts has as many sums, one whole result after another, to be added up first.
    """
    code = Code(FINISH, PARAMS, internal=True)
    code.header += " noinline nounwind"
    kernel, factors = product.kernel, product.kernel.factors
    v = Vectors(code, lane_count(factors, product.columns, _width(blocking)))
    panels = {n * blocking.width for n in blocking.vectors.sizes} | {shape.columns}
    length = blocking.line if blocking.parts == 1 else blocking.columns
    panels = panels if blocking.parts == 1 else {shape.columns}
    whole = all(columns % v.width == 0 for columns in panels)
    values = Values(kernel, v, pointers(code, len(kernel.operands)))
    batch = flat_point(code, factors, product.batch, "%batch")
    with code.loop(0, "%rows") as row:
        number = plus(code, "%row", row.index)
        here = batch | flat_point(code, factors, product.rows, number)
        line = v.at("%sums", times(code, row.index, length), shape.kind)

        def body(at: str, mask: Vector | None, here: Point = here, line: str = line) -> None:
            total = _read(v, v.at(line, at, shape.kind), shape.kind, mask)
            for n in range(1, blocking.parts):
                far = plus(code, at, n * shape.rows * length)
                total = v.add(total, _read(v, v.at(line, far, shape.kind), shape.kind, mask))
            column = plus(code, "%column", at)
            point = here | flat_lanes(v, factors, product.columns, column)
            values.end(product.at, product.after, point, total, mask)

        in_chunks(v, "0", "%columns", body, whole=whole)
    return code


def _read(v: Vectors, place: str, kind: str, mask: Vector | None) -> Vector:
    return v.load(place, kind) if mask is None else v.load_masked(place, mask, kind)


def _width(blocking: Blocking) -> int:
    """Lanes to finish in: two registers' worth, if every panel has an even number of them."""
    if blocking.inner:
        return 1 << (blocking.line.bit_length() - 1)
    even = all(n % 2 == 0 for n in blocking.vectors.sizes)
    return blocking.width * (2 if even else 1)
