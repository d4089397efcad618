"""Triangular solve: blocks of right-hand sides in scratch memory, row by row."""

from __future__ import annotations

from weft.emit.llvm.emitted import Emitted
from weft.emit.llvm.loops.folding import grouped
from weft.emit.llvm.math.pointwise import unrounded
from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.code import module_text
from weft.emit.llvm.writer.nest import (
    cut,
    function,
    moved,
    plus,
    pointers,
    times,
)
from weft.emit.llvm.writer.storage import Held
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.ir.op import Op
from weft.ir.types import DType
from weft.kernels.nest.loop_dims import LoopDim
from weft.kernels.single_node import SingleNode, strides
from weft.ops.elementwise.pointwise import Divide, Multiply, Subtract
from weft.ops.elementwise.special import Conj
from weft.ops.linalg import TriangularSolve

_LANES = 32  # systems solved side by side


def triangular_solve(kernel: SingleNode) -> Emitted:
    """Tasks are blocks of the right-hand sides of one matrix."""
    op = kernel.op
    assert isinstance(op, TriangularSolve)
    return _Solve(kernel, op).emit() if kernel.outputs[0].size else Emitted("", ())


class _Solve:
    """The function: forward substitution, row i from the rows before it, over the diagonal."""

    def __init__(self, kernel: SingleNode, op: TriangularSolve) -> None:
        self.op = op
        self.dtype: DType = kernel.outputs[0].dtype
        steps = [strides(o.shape) for o in kernel.operands]
        matrix, shape = kernel.operands[0].shape, kernel.outputs[0].shape
        self.size = matrix[-1]
        # the strides along the unknowns of one system, and over the systems
        self.unknown, self.system = (-2, -1) if op.left_side else (-1, -2)
        self.systems = shape[self.system]
        self.steps = steps
        sizes = [*kernel.devices, *shape[kernel.lead : -2]]
        outer = [LoopDim(n, tuple([s[d] for s in steps])) for d, n in enumerate(sizes)]
        along = LoopDim(self.systems, (0, *[s[self.system] for s in steps[1:]]))
        self.lanes = min(_LANES, 1 << (self.systems - 1).bit_length())
        self.tasks = cut(outer, along, min(self.lanes, self.systems), 2 * self.size * self.size)
        is_transposed = op.transpose_a != "NO_TRANSPOSE"
        # Solving from the right is solving with the transposed matrix from the left.
        self.transposed = is_transposed is op.left_side
        # The transpose of a lower triangle is an upper one, whose first unknown is the last.
        self.forward = op.lower is not self.transposed
        self.conj = op.transpose_a == "ADJOINT" and self.dtype.is_complex
        self.code = function(kernel.name, excess_precision=kernel.excess_precision)
        self.buffers = pointers(self.code, 3)
        self.v = Vectors(self.code, self.lanes)

    def emit(self) -> Emitted:
        """The function and its tasks."""
        with self.tasks.each(self.code) as (offsets, begin, end):
            places = self._places(begin)
            mask = self.v.compare("slt", self.v.lanes(), self.v.splat(self._remaining(begin, end)))
            with self.code.loop(0, self.size) as loop:
                self._row(self._number(loop.index), offsets, places, mask)
        kind = storage.register_kind(self.dtype)
        nbytes = self.size * self.lanes * storage.parts(self.dtype) * (8 if kind == "double" else 4)
        return Emitted(module_text(self.code), (self.tasks.phase(self.code.name),), scratch=nbytes)

    def _remaining(self, begin: str, end: str) -> Vector:
        return Vector(self.code.let(f"sub nsw i64 {end}, {begin}"), "i64")

    def _places(self, begin: str) -> Vector:
        """The systems of a block; lanes past the end repeat the last one."""
        first = self.v.add(self.v.splat(Vector(begin, "i64")), self.v.lanes())
        last = self.v.constant(self.systems - 1, "i64")
        return self.v.intrinsic("smin", first, last)

    def _number(self, index: str) -> str:
        if self.forward:
            return index
        return self.code.let(f"sub nsw i64 {self.size - 1}, {index}")

    def _row(self, row: str, offsets: list[str], places: Vector, mask: Vector) -> None:
        """Solve one row of the unknowns, and keep it for later rows."""
        v, dtype = self.v, self.dtype
        at = [self._at(n, row, offsets, places) for n in (1, 2)]
        rhs = storage.gather(v, self.buffers[1], at[0], dtype)
        known = ("0", row) if self.forward else (plus(self.code, row, 1), str(self.size))
        carried = [(part.type, part.text) for part in rhs]
        with self.code.loop(*known, carried=carried) as loop:
            (before,) = grouped(loop.carried, [rhs])
            factor = self._element(row, loop.index, offsets)
            product = self._apply(Multiply(), factor, self._recall(loop.index))
            remainder = self._apply(Subtract(), before, product)
            loop.carry(*[part.text for part in remainder])
        (solution,) = grouped(loop.carried, [rhs])
        if not self.op.unit_diagonal:
            solution = self._apply(Divide(), solution, self._element(row, row, offsets))
        for n, part in enumerate(solution):
            v.store(part, self._slot(row, n), align=4)
        # Masked, unlike the loads: lanes past the end repeat the last system, and another task may
        # own it.
        storage.scatter(v, solution, self.buffers[2], at[1], dtype, mask)

    def _at(self, operand: int, row: str, offsets: list[str], places: Vector) -> Vector:
        """The address of a row of a block."""
        steps = self.steps[operand]
        first = plus(self.code, offsets[operand], times(self.code, row, steps[self.unknown]))
        across = self.v.mul(places, self.v.constant(steps[self.system], "i64"))
        return self.v.add(self.v.splat(Vector(first, "i64")), across)

    def _element(self, row: str, column: str, offsets: list[str]) -> Held:
        """An element of the matrix, broadcast."""
        down, across = self.steps[0][-2:]
        if self.transposed:
            down, across = across, down
        (at,) = moved(self.code, [offsets[0]], row, [down])
        (at,) = moved(self.code, [at], column, [across])
        one = Vectors(self.code, 1)
        held = storage.load(one, self.buffers[0], at, self.dtype)
        if self.conj:
            held = unrounded(one, Conj(), [held], [self.dtype], self.dtype)
        return tuple([self.v.splat(part) for part in held])

    def _recall(self, row: str) -> Held:
        kind = storage.register_kind(self.dtype)
        parts = range(storage.parts(self.dtype))
        return tuple([self.v.load(self._slot(row, n), kind) for n in parts])

    def _slot(self, row: str, part: int) -> str:
        """The scratch slot of a part of a row."""
        kind = storage.register_kind(self.dtype)
        count = storage.parts(self.dtype)
        index = plus(self.code, times(self.code, row, count * self.lanes), part * self.lanes)
        return self.v.at("%scratch", index, kind)

    def _apply(self, op: Op, a: Held, b: Held) -> Held:
        return unrounded(self.v, op, [a, b], [self.dtype, self.dtype], self.dtype)
