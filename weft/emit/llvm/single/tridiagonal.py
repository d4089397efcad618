"""Tridiagonal solve: systems side by side in lanes, elimination with partial pivoting."""

from __future__ import annotations

import math

import numpy as np

from weft.emit.llvm.emitted import Emitted
from weft.emit.llvm.loops.folding import carried, grouped, texts
from weft.emit.llvm.math.pointwise import unrounded
from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.code import module_text
from weft.emit.llvm.writer.nest import cut, function, plus, pointers, times
from weft.emit.llvm.writer.storage import Held
from weft.emit.llvm.writer.vector import BITS, Vector, Vectors
from weft.ir.op import Op
from weft.kernels.nest.loop_dims import LoopDim
from weft.kernels.single_node import SingleNode, strides
from weft.ops.custom_calls.custom import CustomCall
from weft.ops.elementwise.pointwise import Abs, Divide, Multiply, Subtract

_LANES = 16  # systems solved side by side
_KEPT = 4  # values a row that the substitution reads: three diagonals of U, the right-hand side


def refuses_tridiagonal(kernel: SingleNode) -> str | None:
    """Why a kernel is unsupported."""
    return None if kernel.outputs[0].size else "it has no elements"


def tridiagonal_solve(kernel: SingleNode) -> Emitted:
    """Tasks are blocks of systems: one matrix and one right-hand side each."""
    return _Solve(kernel).emit()


class _Solve:
    """The function: every lane eliminates a matrix of its own, even if it is the next lane's."""

    def __init__(self, kernel: SingleNode) -> None:
        assert isinstance(kernel.op, CustomCall)
        self.perturbs = bool(kernel.op.config.get("perturb_singular"))
        self.dtype = kernel.outputs[0].dtype
        shape = kernel.outputs[0].shape
        self.size = shape[-2]
        self.sizes = [*kernel.devices, *shape[kernel.lead : -2], shape[-1]]
        self.steps = [strides(o.shape) for o in kernel.operands]
        self.systems = math.prod(self.sizes)
        self.lanes = min(_LANES, 1 << (self.systems - 1).bit_length())
        # A division takes as long as moving 64 bytes.
        self.tasks = cut([], LoopDim(self.systems, ()), self.lanes, 64 * self.size)
        self.code = function(kernel.name, excess_precision=kernel.excess_precision)
        self.buffers = pointers(self.code, len(kernel.operands))
        self.v = Vectors(self.code, self.lanes)

    def emit(self) -> Emitted:
        """The function and its tasks."""
        v = self.v
        with self.tasks.each(self.code) as (_, begin, end):
            first = v.add(v.splat(Vector(begin, "i64")), v.lanes())
            mask = v.compare("slt", first, v.splat(Vector(end, "i64")))
            # Lanes past the end repeat the last system.
            self.starts = self._starts(v.intrinsic("smin", first, self._count(self.systems - 1)))
            self._substitute(*self._eliminate(), mask)
        kind = BITS[storage.register_kind(self.dtype)] // 8
        nbytes = _KEPT * self.size * self.lanes * storage.parts(self.dtype) * kind
        return Emitted(module_text(self.code), (self.tasks.phase(self.code.name),), scratch=nbytes)

    def _count(self, value: int) -> Vector:
        return self.v.constant(value, "i64")

    def _starts(self, number: Vector) -> list[Vector]:
        """The address of the first element of each lane's system, in each operand."""
        v, starts = self.v, [self._count(0)] * len(self.steps)
        for dim, size in reversed(list(enumerate(self.sizes))):
            if size == 1:
                continue
            index = v.binary("urem", number, self._count(size))
            number = v.binary("udiv", number, self._count(size))
            for n, steps in enumerate(self.steps):
                if step := self._step(steps, dim):
                    starts[n] = v.add(starts[n], v.mul(index, self._count(step)))
        return starts

    def _step(self, steps: tuple[int, ...], dim: int) -> int:
        """The step along one of the dims of systems, of which columns are the last."""
        if dim < len(self.sizes) - 1:
            return steps[dim]
        return steps[-1] if len(steps) > len(self.sizes) else 0

    def _at(self, operand: int, row: str) -> Vector:
        """The addresses of a row of each lane's system."""
        step = self.steps[operand][len(self.sizes) - 1]  # after the devices and batches
        here = Vector(times(self.code, row, step), "i64")
        return self.v.add(self.starts[operand], self.v.splat(here))

    def _read(self, operand: int, row: str) -> Held:
        return storage.gather(self.v, self.buffers[operand], self._at(operand, row), self.dtype)

    # Elimination, from the first row to the last

    def _eliminate(self) -> tuple[Vector, Vector]:
        """Keep U and the right-hand sides; whether a pivot is 0, and the largest element of U."""
        v, zero = self.v, storage.fill(self.v, 0, self.dtype)
        top = [self._read(1, "0"), self._above("0"), self._read(3, "0")]
        state = [*top, (v.constant(0, "i1"),), (self._size(zero),)]
        with self.code.loop(0, self.size - 1, carried=carried(state)) as loop:
            pivot, beside, right, (singular,), (largest,) = grouped(loop.carried, state)
            following = plus(self.code, loop.index, 1)
            row = [self._read(n, following) for n in (0, 1)]
            row += [self._above(following), self._read(3, following)]
            upper = [pivot, beside, zero, right]
            swap = v.compare("ogt", self._size(row[0]), self._size(pivot))
            chosen = [self._either(swap, a, b) for a, b in zip(row, upper, strict=True)]
            other = [self._either(swap, b, a) for a, b in zip(row, upper, strict=True)]
            self._keep(loop.index, chosen)
            factor = self._apply(Divide(), other[0], chosen[0])
            if self.perturbs:  # two zeros leave nothing to eliminate
                factor = self._either(self._is_zero(chosen[0]), zero, factor)
                largest = self._largest(largest, chosen[:3])
            rest = [
                self._apply(Subtract(), b, self._apply(Multiply(), factor, a))
                for a, b in zip(chosen[1:], other[1:], strict=True)
            ]
            is_zero = v.binary("or", singular, self._is_zero(chosen[0]))
            loop.carry(*texts([*rest, (is_zero,), (largest,)]))
        pivot, beside, right, (singular,), (largest,) = grouped(loop.carried, state)
        self._keep(str(self.size - 1), [pivot, zero, zero, right])
        singular = v.binary("or", singular, self._is_zero(pivot))
        return singular, self._largest(largest, [pivot])

    def _above(self, row: str) -> Held:
        """The element right of the diagonal; the last row's is outside of the matrix."""
        is_last = self.code.let(f"icmp eq i64 {row}, {self.size - 1}")
        zero = storage.fill(self.v, 0, self.dtype)
        return self._either(self.v.splat(Vector(is_last, "i1")), zero, self._read(2, row))

    def _size(self, value: Held) -> Vector:
        (size,) = unrounded(self.v, Abs(), [value], [self.dtype], self.dtype.real)
        return size

    def _largest(self, size: Vector, values: list[Held]) -> Vector:
        for value in values:
            size = self.v.maximum(size, self._size(value))
        return size

    def _is_zero(self, value: Held) -> Vector:
        size = self._size(value)
        return self.v.compare("oeq", size, self.v.constant(0.0, size.kind))

    def _either(self, condition: Vector, yes: Held, no: Held) -> Held:
        return tuple([self.v.select(condition, a, b) for a, b in zip(yes, no, strict=True)])

    # Substitution, from the last row to the first

    def _substitute(self, singular: Vector, largest: Vector, mask: Vector) -> None:
        """Store the solutions; NaN where a matrix is singular."""
        least = self._least_pivot(largest)
        if self.perturbs:
            unmoved = self.v.compare("oeq", least, self.v.constant(0.0, least.kind))
            singular = self.v.binary("and", singular, unmoved)
        zero = storage.fill(self.v, 0, self.dtype)
        unknown = storage.fill(self.v, math.nan, self.dtype)
        with self.code.loop(0, self.size, carried=carried([zero, zero])) as loop:
            below = grouped(loop.carried, [zero, zero])
            row = self.code.let(f"sub nsw i64 {self.size - 1}, {loop.index}")
            pivot, beside, second, value = [self._recall(row, n, zero) for n in range(_KEPT)]
            if self.perturbs:
                pivot = self._moved_from_zero(pivot, least)
            for factor, known in zip((beside, second), below, strict=True):
                value = self._apply(Subtract(), value, self._apply(Multiply(), factor, known))
            value = self._apply(Divide(), value, pivot)
            found = self._either(singular, unknown, value)
            storage.scatter(self.v, found, self.buffers[4], self._at(4, row), self.dtype, mask)
            loop.carry(*texts([value, below[0]]))

    def _least_pivot(self, largest: Vector) -> Vector:
        """The size that smaller pivots are moved to: eps times the largest element of U."""
        v, zero, one = self.v, *[self.v.constant(n, largest.kind) for n in (0.0, 1.0)]
        eps = v.constant(float(np.finfo(self.dtype.numpy).eps), largest.kind)
        return v.mul(eps, v.select(v.compare("oeq", largest, zero), one, largest))

    def _moved_from_zero(self, pivot: Held, least: Vector) -> Held:
        v, size = self.v, self._size(pivot)
        is_zero = v.compare("oeq", size, v.constant(0.0, size.kind))
        one = storage.fill(v, 1, self.dtype)
        sign = self._either(is_zero, one, tuple([v.div(part, size) for part in pivot]))
        moved = tuple([v.mul(part, least) for part in sign])
        return self._either(v.compare("olt", size, least), moved, pivot)

    def _keep(self, row: str, values: list[Held]) -> None:
        for n, value in enumerate(values):
            for part, vector in enumerate(value):
                self.v.store(vector, self._slot(row, n, part), align=4)

    def _recall(self, row: str, number: int, like: Held) -> Held:
        loads = [(self._slot(row, number, part), p.kind) for part, p in enumerate(like)]
        return tuple([self.v.load(*load) for load in loads])

    def _slot(self, row: str, number: int, part: int) -> str:
        """The scratch slot of a part of a value of a row."""
        parts = storage.parts(self.dtype)
        place = times(self.code, row, _KEPT * parts * self.lanes)
        index = plus(self.code, place, (number * parts + part) * self.lanes)
        return self.v.at("%scratch", index, storage.register_kind(self.dtype))

    def _apply(self, op: Op, a: Held, b: Held) -> Held:
        return unrounded(self.v, op, [a, b], [self.dtype, self.dtype], self.dtype)
