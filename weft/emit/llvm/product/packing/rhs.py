"""Packing of the RHS, in lines of a panel's columns.

The prologue is fused into packing. Where K is contiguous in memory, squares are transposed
in registers.
"""

from __future__ import annotations

from weft.emit.llvm.product.blocking.blocking import Blocking, ProductShape
from weft.emit.llvm.product.microkernel.microkernel import MULTIPLY
from weft.emit.llvm.product.packing.cells import Cells
from weft.emit.llvm.product.packing.pack import PACK_RHS, pack_function, panel_bounds
from weft.emit.llvm.product.points import FactorPoint, flat_lanes, flat_point, lane_count
from weft.emit.llvm.product.product import Product, required_steps
from weft.emit.llvm.product.values import both
from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.nest import divided, plus, pointers, smaller, times
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.kernels.kernel import Load


def pack_rhs(product: Product, shape: ProductShape, blocking: Blocking) -> Writer:
    """to[panel][k, n] = rhs[batch, k, n], of panels first..last-1 and near <= k < far.

    A panel starts at its first column times K; in a task, columns are relative to its first
    panel, and K is a part. Padding columns are uninitialized.
    """
    code = pack_function(PACK_RHS, product.kernel)
    operands = pointers(code, len(product.kernel.operands))
    rhs = RhsPanels(product, shape, blocking, code, operands)
    if shape.rhs_lines == "columns":
        # Along the rows of the RHS first: loads are contiguous.
        with code.loop("%near", "%far") as step, code.loop("%first", "%last") as panel:
            rhs.row(panel.index, step.index)
    else:
        count = code.let("sub nsw i64 %far, %near")
        rest = code.let(f"urem i64 {count}, {blocking.width}")
        edge = code.let(f"sub nsw i64 %far, {rest}")
        with code.loop("%first", "%last") as panel:
            rhs.squares(panel.index, edge)
            with code.loop(edge, "%far") as step:
                rhs.row(panel.index, step.index)
    if shape.offset:
        with code.loop("%first", "%last") as panel:
            rhs.begin(panel.index)
    return code


class RhsPanels:
    """Panels of the RHS in their packing function."""

    def __init__(
        self,
        product: Product,
        shape: ProductShape,
        blocking: Blocking,
        code: Writer,
        operands: list[str],
    ) -> None:
        self.product, self.shape, self.blocking, self.code = product, shape, blocking, code
        self.cells = Cells(product, shape, code, operands, lhs=False)
        self.factors = product.kernel.factors
        self.batch = flat_point(code, self.factors, product.batch, "%batch")
        self.in_task = blocking.rhs == "task"
        self.origin = "0"
        if self.in_task:
            first, _ = panel_bounds(code, blocking.vectors, "%first")
            self.origin = times(code, first, blocking.width)

    def row(self, panel: str, step: str) -> None:
        """One K step, vectorized along the columns."""
        code, product = self.code, self.product
        v = Vectors(code, lane_count(self.factors, product.columns, self.blocking.width))
        start, columns, line = self.line(panel, step)
        with code.loop(0, columns, v.width, at_least_once=True) as chunk:
            at = plus(code, start, chunk.index)
            mask = None
            if self.shape.columns % v.width:
                mask = v.first(code.let(f"sub nsw i64 {self.shape.columns}, {at}"))
            to = v.at(line, chunk.index, self.shape.kind)
            if self.in_runs(v):
                self.runs(v, at, step, mask, to)
            else:
                point = self.batch | flat_lanes(v, self.factors, product.columns, at)
                v.store(self.cells.across(v, point, step, mask), to)

    def in_runs(self, v: Vectors) -> bool:
        """Whether lanes are in at most two runs along the innermost columns' factor.

        Loads of runs are contiguous, where those of all lanes would be gathers.
        """
        columns = self.product.columns
        if len(columns) < 2:
            return False
        size = self.factors[columns[-1]].size
        if size < v.width or size % v.width == 0:
            return False
        steps = self.product.kernel.steps
        loads = [steps[n] for n in required_steps(steps, [self.cells.side], ())]
        affines = [step.at for step in loads if isinstance(step, Load)]
        return all(at.strides[columns[-1]] in (0, 1) for at in affines)

    def runs(self, v: Vectors, at: str, step: str, mask: Vector | None, to: str) -> None:
        """One vector of a K step, by the runs that its lanes are in."""
        code, columns = self.code, self.product.columns
        size = self.factors[columns[-1]].size
        outer, inner = divided(code, at, size)
        count = code.let(f"sub nsw i64 {size}, {inner}")

        def value(outer: str, inner: str, mask: Vector | None) -> Vector:
            point = flat_point(code, self.factors, columns[:-1], outer)
            point |= FactorPoint({columns[-1]: inner}, columns[-1])
            return self.cells.across(v, self.batch | point, step, mask)

        first = v.first(count)
        rest = v.binary("xor", first, v.constant(True, "i1"))
        back = code.let(f"sub nsw i64 0, {count}")
        one = value(outer, inner, both(v, first, mask))
        other = value(plus(code, outer, 1), back, both(v, rest, mask))
        v.store(v.select(first, one, other), to)

    def squares(self, panel: str, far: str) -> None:
        """Steps in squares of a vector's lanes: loaded along K, transposed.

        All steps of some columns come before the next columns, to keep few cache lines active.
        """
        code, product, shape = self.code, self.product, self.shape
        v = Vectors(code, self.blocking.width)
        start, columns, line = self.line(panel, "%near")
        with code.loop(0, columns, v.width, at_least_once=True) as chunk:
            points = []
            for lane in range(v.width):
                at = plus(code, plus(code, start, chunk.index), lane)
                # Past the end the last column is read again: padding may hold anything, but loads
                # stay in bounds.
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
        """The initial sums: -128 times the sum of each column, which corrects unsigned bytes."""
        code, kind = self.code, self.shape.kind
        v = Vectors(code, self.blocking.width)
        _, columns, first = self.line(panel, "%near")
        # The dot product itself sums the columns: 128 as an unsigned byte, times each signed one.
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
            # The row before the first K step, for which `line` leaves room.
            back = code.let(f"sub nsw i64 {chunk.index}, {columns}")
            v.store(v.sub(v.constant(0, kind), total), v.at(first, back, kind))

    def line(self, panel: str, step: str) -> tuple[str, str, str]:
        """The first column of a panel, its column count, and the packed address of a step."""
        code, blocking, shape = self.code, self.blocking, self.shape
        start, columns = (
            times(code, n, blocking.width) for n in panel_bounds(code, blocking.vectors, panel)
        )
        down, k = step, shape.k
        if self.in_task:
            down, k = code.let(f"sub nsw i64 {step}, %near"), blocking.block_k
        begin = code.let(f"sub nsw i64 {start}, {self.origin}")
        down = plus(code, down, int(shape.offset))
        lines = times(code, begin, k + int(shape.offset))
        far = plus(code, lines, code.let(f"mul nsw i64 {down}, {columns}"))
        line = code.let(f"getelementptr {shape.kind}, ptr %to, i64 {far}")
        return start, columns, line
