"""Products of complex matrices: a panel of columns is packed, and blocks of rows run over it.

Numbers stay interleaved as they are in memory. A vector of the RHS is multiplied by the real
part of an element of the LHS, and the same with real and imaginary parts swapped by the imaginary
part; the two sums meet once, at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.emit.llvm.emitted import Emitted, Phase
from weft.emit.llvm.writer.code import module_text
from weft.emit.llvm.writer.nest import (
    TASK,
    divided,
    function,
    located,
    moved,
    plus,
    pointers,
    smaller,
    times,
)
from weft.emit.llvm.writer.storage import register_kind
from weft.emit.llvm.writer.vector import BITS, Vector, Vectors
from weft.kernels.nest.loop_dims import LoopDim, merged
from weft.kernels.single_node import SingleNode, strides
from weft.ops.contract import Dot, DotDims, DotGeneral

_REGISTER = 512  # bits of a vector
_ROWS = (4, 5, 6, 3)  # of a block, in order of preference: what divides all rows
_BLOCK = 120  # rows of a task: a multiple of every block
_MOST_K = 1 << 13  # of a panel, which is in scratch memory


def refuses_complex_product(kernel: SingleNode) -> str | None:
    """Why this kernel is unsupported."""
    dtypes = {operand.dtype for operand in kernel.operands}
    if len(dtypes) > 1 or not kernel.outputs[0].dtype.is_complex:
        return "it is no product of complex numbers alone"
    if not all(operand.size for operand in kernel.operands):
        return "it has no elements"
    sizes = _Sizes(kernel)
    if len(sizes.k) > 1:
        return "its summed dims are not one in both operands"
    k = math.prod(dim.size for dim in sizes.k)
    return None if k <= _MOST_K else f"more than {_MOST_K} elements are summed"


def complex_product(kernel: SingleNode) -> Emitted:
    """The product of every pair of matrices."""
    return _ComplexProduct(kernel).emit()


class _Sizes:
    """The dims of a product, merged: each with its strides in both operands and the result."""

    def __init__(self, kernel: SingleNode) -> None:
        op, lead = kernel.op, kernel.lead
        lhs, rhs, out = (strides(o.shape) for o in kernel.operands)
        shapes = [o.shape for o in kernel.operands]
        rank = len(shapes[0]) - lead
        dims = _dims(op, rank)
        outer = [LoopDim(n, (lhs[d], rhs[d], out[d])) for d, n in enumerate(kernel.devices)]
        at = lead
        for a, b in dims.batch:
            outer.append(LoopDim(shapes[0][lead + a], (lhs[lead + a], rhs[lead + b], out[at])))
            at += 1
        rows, columns = [], []
        for a in dims.lhs_free(rank):
            rows.append(LoopDim(shapes[0][lead + a], (lhs[lead + a], 0, out[at])))
            at += 1
        for b in dims.rhs_free(len(shapes[1]) - lead):
            columns.append(LoopDim(shapes[1][lead + b], (0, rhs[lead + b], out[at])))
            at += 1
        self.k = merged(
            [
                LoopDim(shapes[0][lead + a], (lhs[lead + a], rhs[lead + b], 0))
                for a, b in dims.contract
            ]
        )
        self.rows, self.columns, self.outer = merged(rows), merged(columns), merged(outer)


def _dims(op: object, rank: int) -> DotDims:
    if isinstance(op, Dot):
        return op.dims(rank)
    assert isinstance(op, DotGeneral)
    return op.dot_dimension_numbers


class _ComplexProduct:
    """The function: operands as real numbers, two for each element."""

    def __init__(self, kernel: SingleNode) -> None:
        sizes = _Sizes(kernel)
        self.lhs, self.rhs = 0, 1
        rows, columns = sizes.rows, sizes.columns
        if not columns:  # by a vector: the rows are the vector's lanes, as factors commute
            rows, columns = columns, rows
            self.lhs, self.rhs = 1, 0
        one = LoopDim(1, (0, 0, 0))
        self.rows, self.columns = (dims[-1] if dims else one for dims in (rows, columns))
        self.k = sizes.k[0] if sizes.k else one
        self.outer = [*sizes.outer, *rows[:-1], *columns[:-1]]
        self.kind = register_kind(kernel.outputs[0].dtype)
        self.lanes = _REGISTER // BITS[self.kind]
        self.vectors = 1 if self.columns.size <= self.lanes // 2 else 2
        self.panel = self.vectors * self.lanes // 2
        self.code = function(kernel.name, excess_precision=kernel.excess_precision)
        self.buffers = pointers(self.code, 3)
        self.one, self.v = Vectors(self.code, 1), Vectors(self.code, self.lanes)

    def emit(self) -> Emitted:
        """The function and its tasks: outer points, blocks of rows, panels of columns."""
        code = self.code
        count = self.rows.size
        panels, blocks = -(-self.columns.size // self.panel), -(-count // _BLOCK)
        with code.loop("%begin", "%end") as task:
            rest, panel = divided(code, task.index, panels)
            point, block = divided(code, rest, blocks)
            offsets = located(code, point, self.outer, ["0"] * 3)
            first = times(code, panel, self.panel)
            offsets = moved(code, offsets, first, self.columns.steps)
            begin = times(code, block, _BLOCK)
            offsets = moved(code, offsets, begin, self.rows.steps)
            last = code.let(f"sub nsw i64 {count}, {begin}")
            high = smaller(code, last, _BLOCK)
            left = code.let(f"sub nsw i64 {self.columns.size}, {first}")
            self._pack(offsets, smaller(code, left, self.panel))
            self._blocks(offsets, high, left)
        tasks = math.prod(d.size for d in self.outer) * blocks * panels
        # Packing a panel counts as eight rows.
        cost = self.k.size * self.panel * (min(count, _BLOCK) + 8)
        phase = Phase(code.name, tasks, max(1, TASK // cost))
        nbytes = self.k.size * self.vectors * _REGISTER // 8
        return Emitted(module_text(code), (phase,), scratch=nbytes)

    def _real(self, operand: int, offset: str) -> str:
        """The address of an element's real part."""
        return self.one.at(self.buffers[operand], times(self.code, offset, 2), self.kind)

    def _pack(self, offsets: Sequence[str], count: str) -> None:
        """Copy the columns of a panel to scratch memory; those past the end are zeros."""
        code = self.code
        pack = self._pack_row if self.columns.steps[self.rhs] == 1 else self._pack_elements
        with code.loop(0, self.k.size) as k:
            down = times(code, k.index, self.k.steps[self.rhs])
            target = self.one.at("%scratch", times(code, k.index, 2 * self.panel), self.kind)
            pack(plus(code, offsets[self.rhs], down), target, count)

    def _pack_row(self, source: str, target: str, count: str) -> None:
        """Contiguous elements."""
        start = self._real(self.rhs, source)
        for n in range(self.vectors):
            address = self.one.at(start, n * self.lanes, self.kind)
            given = self.v.load_masked(address, self._mask(count, n), self.kind)
            self.v.store(given, self.one.at(target, n * self.lanes, self.kind))

    def _pack_elements(self, source: str, target: str, count: str) -> None:
        """Elements that are apart."""
        code, one, pair = self.code, self.one, Vectors(self.code, 2)
        zero = self.v.constant(0.0, self.kind)
        for n in range(self.vectors):
            self.v.store(zero, one.at(target, n * self.lanes, self.kind))
        with code.loop(0, count) as column:
            apart = times(code, column.index, self.columns.steps[self.rhs])
            given = pair.load(self._real(self.rhs, plus(code, source, apart)), self.kind)
            pair.store(given, one.at(target, times(code, column.index, 2), self.kind))

    def _mask(self, count: str, number: int) -> Vector:
        """The lanes of a vector of a panel that are columns."""
        numbers = times(self.code, count, 2)
        return self.v.first(plus(self.code, numbers, -number * self.lanes))

    def _blocks(self, offsets: Sequence[str], high: str, left: str) -> None:
        """All rows, in blocks and then one by one."""
        code = self.code
        size = next((n for n in _ROWS if self.rows.size % n == 0), _ROWS[0])
        size = min(size, self.rows.size)
        whole = code.let(f"udiv i64 {high}, {size}")
        whole = times(code, whole, size)
        with code.loop(0, whole, size) as loop:
            self._block(moved(code, offsets, loop.index, self.rows.steps), size, left)
        if self.rows.size % size or _BLOCK % size:
            with code.loop(whole, high) as loop:
                self._block(moved(code, offsets, loop.index, self.rows.steps), 1, left)

    def _block(self, offsets: Sequence[str], rows: int, left: str) -> None:
        """Some rows of the result."""
        code, one, v = self.code, self.one, self.v
        zero = v.constant(0.0, self.kind)
        cells = [(r, n) for r in range(rows) for n in range(self.vectors)]
        carried = [(zero.type, "zeroinitializer")] * (2 * len(cells))
        swap = [n ^ 1 for n in range(self.lanes)]
        with code.loop(0, self.k.size, carried=carried) as k:
            panel = one.at("%scratch", times(code, k.index, 2 * self.panel), self.kind)
            columns = [
                v.load(one.at(panel, n * self.lanes, self.kind), self.kind)
                for n in range(self.vectors)
            ]
            sides = columns, [v.shuffle(x, x, swap) for x in columns]
            along = times(code, k.index, self.k.steps[self.lhs])
            factors = []
            for r in range(rows):
                step = r * self.rows.steps[self.lhs]
                place = plus(code, plus(code, offsets[self.lhs], along), step)
                address = self._real(self.lhs, place)
                factors.append(
                    [
                        v.splat(one.load(one.at(address, part, self.kind), self.kind))
                        for part in range(2)
                    ]
                )
            sums = [Vector(text, self.kind, self.lanes) for text in k.carried]
            products = [
                v.fma(factors[r][part], sides[part][n], sums[2 * at + part]).text
                for at, (r, n) in enumerate(cells)
                for part in range(2)
            ]
            k.carry(*products)
        # Real parts (even lanes) subtract im * im, imaginary ones add im * re.
        signs = ", ".join(f"{self.kind} {-1.0 if n % 2 == 0 else 1.0}" for n in range(self.lanes))
        sign = Vector(f"<{signs}>", self.kind, self.lanes)
        sums = [Vector(text, self.kind, self.lanes) for text in k.carried]
        for at, (r, n) in enumerate(cells):
            total = v.fma(sums[2 * at + 1], sign, sums[2 * at])
            place = plus(code, offsets[2], r * self.rows.steps[2])
            address = one.at(self._real(2, place), n * self.lanes, self.kind)
            v.store_masked(total, address, self._mask(left, n))
