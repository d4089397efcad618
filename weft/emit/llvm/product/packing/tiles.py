"""Packing of the RHS for AMX tiles, from lines of columns.

Cells of two or four K steps interleave as many memory lines. All panels of some lines come
before the next lines, which are prefetched meanwhile.
"""

from __future__ import annotations

from weft.emit.llvm.product.blocking.blocking import Blocking, ProductShape
from weft.emit.llvm.product.microkernel.microkernel import prefetch
from weft.emit.llvm.product.packing.pack import PACK_RHS, pack_function
from weft.emit.llvm.product.packing.rhs import RhsPanels
from weft.emit.llvm.product.points import place
from weft.emit.llvm.product.product import Product
from weft.emit.llvm.product.shape import bare_load
from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.nest import larger, plus, pointers, smaller, times
from weft.emit.llvm.writer.vector import BITS, Vector, Vectors
from weft.kernels.kernel import Load

_PIECE = 2  # vectors of cells built at a time
_AHEAD = 8  # K steps


def lines_of_columns(product: Product) -> Load | None:
    """The load of an RHS with contiguous columns and evenly spaced lines."""
    load = bare_load(product, product.contract.rhs)
    if load is None or product.stride(load.at, product.columns) != 1:
        return None
    return load if product.stride(load.at, product.k) is not None else None


def pack_rhs_tiles(product: Product, shape: ProductShape, blocking: Blocking) -> Writer:
    """`pack_rhs` for lines of columns: whole cells, then the rest."""
    code = pack_function(PACK_RHS, product.kernel)
    lines = _Lines(product, shape, blocking, code)
    # The last cell of K may be incomplete, and those past it are padding: `row` fills both with
    # zeros.
    steps = smaller(code, "%far", product.size(product.k) // shape.group)
    # A last panel with invalid lanes needs masks: it is packed row by row.
    edge = smaller(code, "%last", lines.whole)
    with code.loop("%near", steps) as step:
        lines.cells(step.index, edge)
        if lines.whole < blocking.vectors.count:
            with code.loop(larger(code, "%first", edge), "%last") as panel:
                lines.rhs.row(panel.index, step.index)
    rest = (larger(code, "%near", steps), "%far")
    with code.loop(*rest) as step, code.loop("%first", "%last") as panel:
        lines.rhs.row(panel.index, step.index)
    return code


class _Lines:
    """Lines of the RHS in their packing function."""

    def __init__(
        self, product: Product, shape: ProductShape, blocking: Blocking, code: Writer
    ) -> None:
        load = lines_of_columns(product)
        assert load is not None, "only lines of columns are interleaved"
        self.shape, self.blocking, self.code = shape, blocking, code
        operands = pointers(code, len(product.kernel.operands))
        self.rhs = RhsPanels(product, shape, blocking, code, operands)
        self.kind = f"i{32 // shape.group}"
        one = Vectors(code, 1)
        begin = place(one, load.at, self.rhs.batch).base
        self.base = one.at(operands[load.operand], begin, self.kind)
        self.stride = product.stride(load.at, product.k) or 0
        self.is_far = shape.columns * shape.k * 4 > blocking.l2_bytes  # prefetching pays off
        whole = blocking.lanes == blocking.width
        self.whole = blocking.vectors.count - (0 if whole else 1)  # panels

    def cells(self, step: str, edge: str) -> None:
        """One step of all whole-vector panels up to one."""
        code, vectors = self.code, self.blocking.vectors
        line = times(code, step, self.shape.group * self.stride)
        source = code.let(f"getelementptr {self.kind}, ptr {self.base}, i64 {line}")
        first = "%first"
        if vectors.large:
            large = smaller(code, edge, vectors.large)
            with code.loop(first, large) as panel:
                self._panel(panel.index, step, source, vectors.size + 1)
            first = larger(code, first, vectors.large)
        with code.loop(first, edge) as panel:
            self._panel(panel.index, step, source, vectors.size)

    def _panel(self, panel: str, step: str, source: str, vectors: int) -> None:
        code, width, group = self.code, self.blocking.width, self.shape.group
        start, _, to = self.rhs.line(panel, step)
        for first in range(0, vectors, _PIECE):
            count = min(_PIECE, vectors - first)
            v = Vectors(code, count * width)
            lines = []
            for n in range(group):
                far = plus(code, start, n * self.stride + first * width)
                at = v.at(source, far, self.kind)
                lines.append(v.load(at, self.kind))
                if self.is_far:
                    later = _AHEAD * group * self.stride * BITS[self.kind] // 8
                    prefetch(code, at, str(later), write=False)
            v.store(_interleaved(v, lines), v.at(to, first * width, "i32"))


def _interleaved(v: Vectors, lines: list[Vector]) -> Vector:
    """Interleave the elements of lines."""
    while len(lines) > 1:
        half = len(lines) // 2
        # Of four lines 0 with 2 and 1 with 3 first: the second round then yields 0, 1, 2, 3.
        lines = [_zipped(v, a, b) for a, b in zip(lines[:half], lines[half:], strict=True)]
    return lines[0]


def _zipped(v: Vectors, a: Vector, b: Vector) -> Vector:
    order = [n for k in range(a.width) for n in (k, a.width + k)]
    return v.shuffle(a, b, order)
