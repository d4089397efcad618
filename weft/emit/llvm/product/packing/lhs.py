"""Packing of the LHS, in lines along K.

The prologue is fused into packing. Where rows are contiguous in memory, squares are transposed in
registers.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.emit.llvm.product.blocking.blocking import Blocking, ProductShape
from weft.emit.llvm.product.packing.cells import Cells, in_chunks
from weft.emit.llvm.product.packing.guards import always, without_guards
from weft.emit.llvm.product.packing.pack import PACK_LHS, first_line, line_length, pack_function
from weft.emit.llvm.product.points import FactorPoint, flat_lanes, flat_point, lane_count
from weft.emit.llvm.product.product import Product
from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.nest import plus, pointers, smaller, times
from weft.emit.llvm.writer.vector import Vector, Vectors

# Beyond this the unrolled text compiles slowly and no longer fits the instruction cache.
_STRAIGHT = 512  # elements of a row that are packed without loops


def pack_lhs(product: Product, shape: ProductShape, blocking: Blocking) -> Writer:
    """to[m - first line, k - near] = lhs[batch, m, k], for first <= m < last, near <= k < far."""
    code = pack_function(PACK_LHS, product.kernel)
    lhs = _Lhs(product, shape, blocking, code)
    if shape.lhs_lines == "k":
        with code.loop("%first", "%last") as line:
            lhs.row(line.index)
    else:
        width = lhs.turned.width
        rows, steps = (lhs.origin, "%last", width), ("%near", "%far", width)
        # Rows first: they are contiguous in memory.
        with code.loop(*steps) as step, code.loop(*rows) as row:
            lhs.square(row.index, step.index)
    return code


class _Lhs:
    """The LHS in its packing function."""

    def __init__(
        self, product: Product, shape: ProductShape, blocking: Blocking, code: Writer
    ) -> None:
        self.product, self.shape, self.code = product, shape, code
        self.factors = product.kernel.factors
        operands = pointers(code, len(product.kernel.operands))
        self.cells = Cells(product, shape, code, operands, lhs=True)
        inside = without_guards(product, product.contract.lhs)
        self.inside = None if inside is None else Cells(inside, shape, code, operands, lhs=True)
        self.guarded = None if inside is None else self.cells
        self.batch = flat_point(code, self.factors, product.batch, "%batch")
        self.length = line_length(blocking, shape.element)
        self.origin = first_line(code, product, blocking, "%first")
        lanes = lane_count(self.factors, product.k, blocking.width * shape.group)
        self.along = Vectors(code, lanes // shape.group)
        self.width = blocking.width
        # Packing in one piece can walk factor by factor, without index arithmetic.
        whole = blocking.part == shape.k and blocking.block_k >= shape.k
        self.run = self.cells.side_by_side() if whole and shape.group == 1 else 0
        self.turned = Vectors(code, lane_count(self.factors, product.rows, blocking.width))

    def row(self, row: str) -> None:
        """One row: without guards, if all of them hold throughout."""
        code, product = self.code, self.product
        here = self.batch | flat_point(code, self.factors, product.rows, row)
        if self.inside is None:
            self._packed(self.cells, row, here)
            return
        # Of a convolution only the rows at the border need guards: the inner ones take the plain
        # loads.
        sure = always(Vectors(code, 1), product, product.contract.lhs, here)
        with code.when(sure):
            self._packed(self.inside, row, here)
        with code.when(code.let(f"xor i1 {sure}, true")):
            self._packed(self.cells, row, here)

    def _packed(self, cells: Cells, row: str, here: FactorPoint) -> None:
        (self._runs if self.run else self._line)(cells, row, here)

    def _runs(self, cells: Cells, row: str, here: FactorPoint) -> None:
        """One row, vectorized along the K factors that are contiguous in memory."""
        code, product = self.code, self.product
        v = Vectors(code, self.width)
        outer = product.k[: len(product.k) - self.run]
        run = product.k[len(outer) :]
        count = product.size(run)
        # Straight code: addresses that differ by constants are computed once.
        straight = cells is not self.guarded and product.size(outer) * count <= _STRAIGHT

        def loops(left: tuple[int, ...], point: FactorPoint, number: str) -> None:
            if left:
                size = self.factors[left[0]].size
                for index in _indices(code, size, 1, straight=straight):
                    following = plus(code, times(code, number, size), index)
                    loops(left[1:], point | FactorPoint({left[0]: index}), following)
                return
            begin, edge = times(code, number, count), count - count % v.width

            def body(at: str, mask: Vector | None) -> None:
                there = point | flat_lanes(v, self.factors, run, at, aligned=edge == count)
                v.store(cells.at(v, there, mask), self._at(row, plus(code, begin, at)))

            for at in _indices(code, edge, v.width, straight=straight):
                body(at, None)
            if edge < count:
                body(str(edge), v.first(str(count - edge)))

        loops(outer, here, "0")

    def _line(self, cells: Cells, row: str, here: FactorPoint) -> None:
        """One row, vectorized along K."""
        v = self.along

        def body(at: str, mask: Vector | None) -> None:
            v.store(cells.along(v, here, at, mask), self._at(row, at))

        in_chunks(v, "%near", "%far", body, whole=self.shape.k % v.width == 0)

    def square(self, row: str, step: str) -> None:
        """A square of rows and steps, loaded as vectors along rows and transposed."""
        v, code, rows = self.turned, self.code, self.shape.rows
        point = self.batch | flat_lanes(v, self.factors, self.product.rows, row)
        mask = None
        if rows % v.width:
            mask = v.first(code.let(f"sub nsw i64 {rows}, {row}"))
        read = []
        for n in range(v.width):
            at = plus(code, step, n)
            if self.shape.k % v.width:
                # Past the end the last step is read again: the square stays whole, and the extra
                # lines fall into the padding of `line_length`, which no product reads.
                at = smaller(code, at, self.shape.k - 1)
            read.append(self.cells.across(v, point, at, mask))
        for n, vector in enumerate(v.transpose(read)):
            v.store(vector, self._at(plus(code, row, n), step))

    def _at(self, row: str, step: str) -> str:
        """The packed address of an element."""
        code = self.code
        down = code.let(f"sub nsw i64 {row}, {self.origin}")
        along = code.let(f"sub nsw i64 {step}, %near")
        far = plus(code, times(code, down, self.length), along)
        return code.let(f"getelementptr {self.shape.kind}, ptr %to, i64 {far}")


def _indices(code: Writer, end: int, step: int, *, straight: bool) -> Iterator[str]:
    """The indices 0, step, ..: all as constants, or that of a loop."""
    if straight:
        yield from map(str, range(0, end, step))
        return
    with code.loop(0, end, step) as loop:
        yield loop.index
