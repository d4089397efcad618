"""Packing the operands of a product: what comes before it is computed on the way.

The left side is packed in lines along its depth, or in lines of the rows of a panel, whichever its
elements are neighbours in; the right side in lines of the columns of a panel.
"""

from __future__ import annotations

from weft.emit.llvm.blocking import Blocking, Panels, Shape
from weft.emit.llvm.code import Code
from weft.emit.llvm.microkernel import MULTIPLY
from weft.emit.llvm.nest import plus, pointers, smaller, times
from weft.emit.llvm.pack_cells import Cells, in_chunks
from weft.emit.llvm.product import Product
from weft.emit.llvm.product_points import Point, flat_lanes, flat_point, lane_count
from weft.emit.llvm.vector import Vector, Vectors

PACK_LEFT = "pack_left"
PACK_RIGHT = "pack_right"
PARAMS = (
    "ptr %operands",
    "ptr noalias %to",
    "i64 %batch",
    "i64 %first",  # of rows, or of panels
    "i64 %last",
    "i64 %near",  # where along the depth
    "i64 %far",
)
TYPES = "ptr, ptr, i64, i64, i64, i64, i64"


def line_length(blocking: Blocking, element: int) -> int:
    """The elements from one packed line of the left side to the next, along its depth."""
    line = 64 // element
    # Lines a multiple of a page apart would compete for the same few places of the first cache.
    return -(-blocking.depth // line) * line + line


def first_line(code: Code, product: Product, blocking: Blocking, first: str) -> str:
    """The row that the packed lines of the left side begin with: `first`, or some before it."""
    width = lane_count(product.kernel.factors, product.rows, blocking.width)
    return code.let(f"and i64 {first}, {-width}")


def pack_left(product: Product, shape: Shape, blocking: Blocking) -> Code:
    """to[m - first line, k - near] = lhs[batch, m, k], for first <= m < last, near <= k < far."""
    code = _function(PACK_LEFT)
    left = _Left(product, shape, blocking, code)
    if shape.left_lines == "depth":
        with code.loop("%first", "%last") as line:
            (left.runs if left.run else left.line)(line.index)
    else:
        width = left.turned.width
        rows, steps = (left.origin, "%last", width), ("%near", "%far", width)
        with code.loop(*rows) as row, code.loop(*steps) as step:
            left.square(row.index, step.index)
    return code


class _Left:
    """Pieces of the left side, in the function that packs them."""

    def __init__(self, product: Product, shape: Shape, blocking: Blocking, code: Code) -> None:
        self.product, self.shape, self.code = product, shape, code
        self.factors = product.kernel.factors
        operands = pointers(code, len(product.kernel.operands))
        self.cells = Cells(product, shape, code, operands, left=True)
        self.batch = flat_point(code, self.factors, product.batch, "%batch")
        self.length = line_length(blocking, shape.element)
        self.origin = first_line(code, product, blocking, "%first")
        lanes = lane_count(self.factors, product.depth, blocking.width * shape.group)
        self.along = Vectors(code, lanes // shape.group)
        self.width = blocking.width
        # What is packed at once, and not in parts, can be walked through factor by factor.
        whole = blocking.part == shape.depth and blocking.depth >= shape.depth
        self.run = self.cells.side_by_side() if whole and shape.group == 1 else 0
        self.turned = Vectors(code, lane_count(self.factors, product.rows, blocking.width))

    def runs(self, row: str) -> None:
        """One row, in vectors along those factors of the depth that are one in memory."""
        code, product = self.code, self.product
        v = Vectors(code, self.width)
        here = self.batch | flat_point(code, self.factors, product.rows, row)
        outer = product.depth[: len(product.depth) - self.run]
        run = product.depth[len(outer) :]
        count = product.size(run)

        def loops(left: tuple[int, ...], point: Point, number: str) -> None:
            if left:
                with code.loop(0, self.factors[left[0]].size) as loop:
                    size = self.factors[left[0]].size
                    following = plus(code, times(code, number, size), loop.index)
                    loops(left[1:], point | Point({left[0]: loop.index}), following)
                return
            begin = times(code, number, count)

            def body(at: str, mask: Vector | None) -> None:
                there = point | flat_lanes(v, self.factors, run, at, aligned=count % v.width == 0)
                v.store(self.cells.at(v, there, mask), self._at(row, plus(code, begin, at)))

            in_chunks(v, "0", str(count), body, whole=count % v.width == 0)

        loops(outer, here, "0")

    def line(self, row: str) -> None:
        """One row, in vectors along the depth."""
        v, code = self.along, self.code
        here = self.batch | flat_point(code, self.factors, self.product.rows, row)

        def body(at: str, mask: Vector | None) -> None:
            v.store(self.cells.along(v, here, at, mask), self._at(row, at))

        in_chunks(v, "%near", "%far", body, whole=self.shape.depth % v.width == 0)

    def square(self, row: str, step: str) -> None:
        """As many rows and steps as a vector has lanes, in vectors along rows, transposed."""
        v, code, rows = self.turned, self.code, self.shape.rows
        point = self.batch | flat_lanes(v, self.factors, self.product.rows, row)
        mask = None
        if rows % v.width:
            mask = v.first(code.let(f"sub nsw i64 {rows}, {row}"))
        read = []
        for n in range(v.width):
            at = plus(code, step, n)
            if self.shape.depth % v.width:
                at = smaller(code, at, self.shape.depth - 1)
            read.append(self.cells.across(v, point, at, mask))
        for n, vector in enumerate(v.transpose(read)):
            v.store(vector, self._at(plus(code, row, n), step))

    def _at(self, row: str, step: str) -> str:
        """Where an element is packed."""
        code = self.code
        down = code.let(f"sub nsw i64 {row}, {self.origin}")
        along = code.let(f"sub nsw i64 {step}, %near")
        far = plus(code, times(code, down, self.length), along)
        return code.let(f"getelementptr {self.shape.kind}, ptr %to, i64 {far}")


def pack_right(product: Product, shape: Shape, blocking: Blocking) -> Code:
    """to[panel][k, n] = rhs[batch, k, n], of panels first..last-1 and near <= k < far.

    A panel begins at its first column times the depth; in a task, columns are counted from those
    of its first panel, and the depth is a part of it. Columns beyond the last may be anything.
    """
    code = _function(PACK_RIGHT)
    operands = pointers(code, len(product.kernel.operands))
    right = _Right(product, shape, blocking, code, operands)
    if shape.right_lines == "columns":
        # Along the rows of the right side first: its elements are read as they lie in memory.
        with code.loop("%near", "%far") as step, code.loop("%first", "%last") as panel:
            right.row(panel.index, step.index)
    else:
        count = code.let("sub nsw i64 %far, %near")
        rest = code.let(f"urem i64 {count}, {blocking.width}")
        edge = code.let(f"sub nsw i64 %far, {rest}")
        with code.loop("%first", "%last") as panel:
            right.squares(panel.index, edge)
            with code.loop(edge, "%far") as step:
                right.row(panel.index, step.index)
    if shape.offset:
        with code.loop("%first", "%last") as panel:
            right.begin(panel.index)
    return code


class _Right:
    """Pieces of panels of the right side, in the function that packs them."""

    def __init__(
        self, product: Product, shape: Shape, blocking: Blocking, code: Code, operands: list[str]
    ) -> None:
        self.product, self.shape, self.blocking, self.code = product, shape, blocking, code
        self.cells = Cells(product, shape, code, operands, left=False)
        self.factors = product.kernel.factors
        self.batch = flat_point(code, self.factors, product.batch, "%batch")
        self.in_task = blocking.right == "task"
        self.origin = "0"
        if self.in_task:
            first, _ = panel_bounds(code, blocking.vectors, "%first")
            self.origin = times(code, first, blocking.width)

    def row(self, panel: str, step: str) -> None:
        """One step of the depth, in vectors along the columns."""
        code, product = self.code, self.product
        v = Vectors(code, lane_count(self.factors, product.columns, self.blocking.width))
        start, columns, line = self._line(panel, step)
        with code.loop(0, columns, v.width, at_least_once=True) as chunk:
            at = plus(code, start, chunk.index)
            point = self.batch | flat_lanes(v, self.factors, product.columns, at)
            mask = None
            if self.shape.columns % v.width:
                mask = v.first(code.let(f"sub nsw i64 {self.shape.columns}, {at}"))
            value = self.cells.across(v, point, step, mask)
            v.store(value, v.at(line, chunk.index, self.shape.kind))

    def squares(self, panel: str, far: str) -> None:
        """The steps up to one, as many at a time as a vector has lanes: read along the depth.

        All steps of some columns come before the next columns: few lines are read at a time.
        """
        code, product, shape = self.code, self.product, self.shape
        v = Vectors(code, self.blocking.width)
        start, columns, line = self._line(panel, "%near")
        with code.loop(0, columns, v.width, at_least_once=True) as chunk:
            points = []
            for lane in range(v.width):
                at = plus(code, plus(code, start, chunk.index), lane)
                at = smaller(code, at, shape.columns - 1)
                point = flat_point(code, self.factors, product.columns, at)
                points.append(self.batch | point)
            with code.loop("%near", far, v.width) as step:
                read = [self.cells.along(v, point, step.index, None) for point in points]
                down = code.let(f"sub nsw i64 {step.index}, %near")
                for n, vector in enumerate(v.transpose(read)):
                    at = code.let(f"mul nsw i64 {plus(code, down, n)}, {columns}")
                    at = plus(code, at, chunk.index)
                    v.store(vector, v.at(line, at, shape.kind))

    def begin(self, panel: str) -> None:
        """What sums begin with, before the first step: -128 times the sum of each column."""
        code, kind = self.code, self.shape.kind
        v = Vectors(code, self.blocking.width)
        _, columns, first = self._line(panel, "%near")
        many = v.constant(int.from_bytes(b"\x80" * 4, signed=True), kind)
        with code.loop(0, columns, v.width, at_least_once=True) as chunk:
            zero = (v.constant(0, kind).type, "zeroinitializer")
            with code.loop("%near", "%far", 1, [zero]) as step:
                down = code.let(f"sub nsw i64 {step.index}, %near")
                far = plus(code, code.let(f"mul nsw i64 {down}, {columns}"), chunk.index)
                cells = v.load(v.at(first, far, kind), kind)
                old = Vector(step.carried[0], kind, v.width)
                step.carry(MULTIPLY[self.shape.multiply](v, many, cells, old).text)
            total = Vector(step.carried[0], kind, v.width)
            back = code.let(f"sub nsw i64 {chunk.index}, {columns}")
            v.store(v.sub(v.constant(0, kind), total), v.at(first, back, kind))

    def _line(self, panel: str, step: str) -> tuple[str, str, str]:
        """The first column of a panel, how many it has, and where a step of it is packed."""
        code, blocking, shape = self.code, self.blocking, self.shape
        start, columns = (
            times(code, n, blocking.width) for n in panel_bounds(code, blocking.vectors, panel)
        )
        down, depth = step, shape.depth
        if self.in_task:
            down, depth = code.let(f"sub nsw i64 {step}, %near"), blocking.depth
        begin = code.let(f"sub nsw i64 {start}, {self.origin}")
        down = plus(code, down, int(shape.offset))
        lines = times(code, begin, depth + int(shape.offset))
        far = plus(code, lines, code.let(f"mul nsw i64 {down}, {columns}"))
        line = code.let(f"getelementptr {shape.kind}, ptr %to, i64 {far}")
        return start, columns, line


def panel_bounds(code: Code, panels: Panels, panel: str) -> tuple[str, str]:
    """The first number of a panel, and how many it has."""
    start = times(code, panel, panels.size)
    if not panels.large:
        return start, str(panels.size)
    start = plus(code, start, smaller(code, panel, panels.large))
    more = code.let(f"icmp slt i64 {panel}, {panels.large}")
    return start, code.let(f"select i1 {more}, i64 {panels.size + 1}, i64 {panels.size}")


def _function(name: str) -> Code:
    code = Code(name, PARAMS, internal=True)
    code.header += " noinline nounwind"
    return code
