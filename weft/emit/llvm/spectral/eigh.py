"""Eigenvalues and eigenvectors of symmetric matrices: one matrix a task, in scratch memory.

Householder's reflections make a matrix tridiagonal, and implicitly shifted QL steps diagonalize it.
The rotations of these are applied to rows, which become the eigenvectors. What is a number for each
step and not a row is computed in double precision: it is rare, and neither overflows nor rounds.
"""

from __future__ import annotations

from weft.emit.llvm.emitted import Emitted
from weft.emit.llvm.spectral.ql import QlSteps
from weft.emit.llvm.spectral.rows import (
    NONE,
    PaddedRows,
    Scratch,
    is_finite,
    largest,
    power_of_two,
    rank_of,
)
from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.code import Writer, module_text
from weft.emit.llvm.writer.nest import function, matrices, plus, pointers, times
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.kernels.single_node import SingleNode
from weft.ops.custom_calls.custom import CustomCall

MOST = 128  # rows: LAPACK's blocked divide and conquer is faster for larger matrices


def refuses_eigh(kernel: SingleNode) -> str | None:
    """Why this kernel is unsupported."""
    matrix = kernel.operands[0]
    if matrix.dtype.is_complex:
        return f"of {matrix.dtype}"
    if matrix.shape[-1] > MOST:
        return f"LAPACK is faster for more than {MOST} rows"
    return None if all(o.size for o in kernel.operands) else "it has no elements"


def eigh(kernel: SingleNode) -> Emitted:
    """The eigenvectors and eigenvalues of every matrix, in ascending order."""
    return _Eigh(kernel).emit()


class _Eigh:
    """The function, and the areas of its scratch memory."""

    def __init__(self, kernel: SingleNode) -> None:
        op, matrix = kernel.op, kernel.operands[0]
        assert isinstance(op, CustomCall)
        self.lower = bool(op.config.get("lower", 1))
        self.first = op.config.get("first", 0)
        self.size, self.vector_count = kernel.outputs[0].shape[-2:]
        self.kind = storage.register_kind(matrix.dtype)
        cost = 16 * self.size**3 + 400 * self.size**2
        self.tasks = matrices(kernel, cost)
        self.code: Writer = function(kernel.name)
        self.buffers = pointers(self.code, len(kernel.operands))
        self.one = Vectors(self.code, 1)
        self.rows = PaddedRows(self.code, self.size, self.kind)
        self.scratch = Scratch(self.code)
        count = self.size * self.rows.stride
        self.matrix, self.basis = (self.scratch.area(count, self.kind) for _ in range(2))
        self.update = self.scratch.area(self.rows.stride, self.kind)
        self.taus = self.scratch.area(self.size, self.kind)
        self.diagonal, self.beside = (self.scratch.area(self.size, "double") for _ in range(2))
        self.steps = QlSteps(self.rows, self.matrix, self.diagonal, self.beside)
        self.offsets: list[str] = []

    def emit(self) -> Emitted:
        """The function and its tasks."""
        code = self.code
        with self.tasks.each(code) as (offsets, _, _):
            self.offsets = offsets
            most = largest(code, self.size**2, self._input, self.kind)
            self.steps.begin()
            # By a power of two, which is exact: squares of elements near the limits of the type
            # would overflow or vanish.
            scale, inverse = power_of_two(code, most, self.kind)
            # A matrix with a NaN or an infinity has no eigenvalues: all results are NaN then.
            fine = is_finite(code, most, self.kind)
            with code.when(fine):
                self._copy(inverse)
                self._tridiagonalize()
                self._form_basis()
                with code.loop(0, self.size) as loop:
                    self.steps.find(loop.index)
            self._write(scale, code.let(f"and i1 {fine}, {self.steps.converged()}"))
        return Emitted(
            module_text(code), (self.tasks.phase(code.name),), scratch=self.scratch.nbytes
        )

    # Numbers

    def _number(self, value: float) -> Vector:
        return self.one.constant(value, "double")

    def _at(self, area: str, index: str) -> Vector:
        return self.one.load(self.one.at(area, index, "double"), "double")

    def _put(self, value: Vector, area: str, index: str) -> None:
        self.one.store(value, self.one.at(area, index, "double"))

    def _element(self, matrix: str, row: str, column: str) -> str:
        return self.one.at(self.rows.row(matrix, row), column, self.kind)

    def _wide(self, address: str) -> Vector:
        return self.one.cast("fpext", self.one.load(address, self.kind), "double")

    def _narrow(self, value: Vector) -> Vector:
        return self.one.cast("fptrunc", value, self.kind)

    # Parts

    def _input(self, v: Vectors, index: str) -> Vector:
        at = plus(self.code, self.offsets[0], index)
        return v.load(v.at(self.buffers[0], at, self.kind), self.kind)

    def _copy(self, inverse: Vector) -> None:
        """Copy one triangle to both, scaled, and clear the padding."""
        code, rows = self.code, self.rows
        rows.clear(self.matrix, self.size)
        with code.loop(0, self.size) as down, code.loop(0, plus(code, down.index, 1)) as across:
            below, right = (down.index, across.index)
            row, column = (below, right) if self.lower else (right, below)
            source = self._input(self.one, plus(code, times(code, row, self.size), column))
            scaled = self.one.mul(source, inverse)
            self.one.store(scaled, self._element(self.matrix, below, right))
            self.one.store(scaled, self._element(self.matrix, right, below))

    def _tridiagonalize(self) -> None:
        """Reflect all rows but the last two; row k becomes the vector of its reflection."""
        code, rows = self.code, self.rows
        with code.loop(0, max(self.size - 2, 0)) as step:
            k, after = step.index, plus(code, step.index, 1)
            begin = code.let(f"udiv i64 {after}, {rows.width}")
            row = rows.row(self.matrix, k)
            # Kept before the row is overwritten by its reflection's vector.
            self._put(self._wide(self.one.at(row, k, self.kind)), self.diagonal, k)
            tau = self._reflector(row, k, after, begin)
            self.one.store(tau, self.one.at(self.taus, k, self.kind))
            along = self._combined(self.matrix, row, after, begin)
            self._prepare(row, tau, along, after, begin)
            self._reduce(row, after, begin)
        last = str(self.size - 1)
        self._put(self._wide(self._element(self.matrix, last, last)), self.diagonal, last)
        self._put(self._number(0.0), self.beside, last)
        if self.size > 1:
            k = str(self.size - 2)
            self._put(self._wide(self._element(self.matrix, k, k)), self.diagonal, k)
            self._put(self._wide(self._element(self.matrix, k, last)), self.beside, k)

    def _from(self, number: str, first: str) -> Vector:
        """The mask of a vector's lanes whose columns are `first` or later."""
        v = self.rows.v
        start = v.splat(Vector(times(self.code, number, self.rows.width), "i64"))
        return v.compare("sge", v.add(start, v.lanes()), v.splat(Vector(first, "i64")))

    def _reflector(self, row: str, k: str, after: str, begin: str) -> Vector:
        """Make a row the vector (0 ... 0, 1, ...) of its reflection; returns the factor."""
        code, rows, one, v = self.code, self.rows, self.one, self.rows.v
        zero = v.constant(0.0, self.kind)
        second = plus(code, after, 1)
        with code.loop(begin, rows.count, carried=[(zero.type, "zeroinitializer")]) as loop:
            column = rows.get(rows.vector(row, loop.index))
            rest = v.select(self._from(loop.index, second), column, zero)
            loop.carry(v.fma(rest, rest, Vector(loop.carried[0], self.kind, v.width)).text)
        squares = v.total_sum(Vector(loop.carried[0], self.kind, v.width))
        squares = one.cast("fpext", squares, "double")
        alpha = self._wide(one.at(row, after, self.kind))
        # The row is tridiagonal already: a reflection would divide by its length of 0.
        idle = one.compare("olt", squares, self._number(NONE[self.kind]))
        length = one.intrinsic("sqrt", one.fma(alpha, alpha, squares))
        # The sign opposite to alpha: alpha - beta then adds two numbers of one sign, without
        # cancellation.
        beta = one.neg(one.intrinsic("copysign", length, alpha))
        tau = one.div(one.sub(beta, alpha), one.select(idle, self._number(1.0), beta))
        self._put(one.select(idle, alpha, beta), self.beside, k)
        by = one.select(idle, self._number(0.0), one.sub(alpha, beta))
        by = one.select(idle, by, one.div(self._number(1.0), by))
        factor = v.splat(self._narrow(by))
        with code.loop(begin, rows.count) as loop:
            place = rows.vector(row, loop.index)
            column = v.select(self._from(loop.index, after), v.mul(rows.get(place), factor), zero)
            v.store(column, place)
        one.store(one.constant(1.0, self.kind), one.at(row, after, self.kind))
        return self._narrow(one.select(idle, self._number(0.0), tau))

    def _combined(self, matrix: str, factors: str, first: str, begin: str) -> Vector:
        """The sum of multiples of a matrix's rows, to `update`; and its product with the factors.

        The factors are those of the reflection, a vector that begins at row `first`.
        """
        code, rows, v = self.code, self.rows, self.rows.v
        zeros = [(v.constant(0.0, self.kind).type, "zeroinitializer")]
        with code.loop(begin, rows.count, carried=zeros) as block:
            start = rows.vector(matrix, block.index)
            with code.loop(first, self.size, carried=zeros) as loop:
                found = rows.get(rows.row(start, loop.index))
                by = v.splat(self.one.load(self.one.at(factors, loop.index, self.kind), self.kind))
                loop.carry(v.fma(by, found, Vector(loop.carried[0], self.kind, v.width)).text)
            total = Vector(loop.carried[0], self.kind, v.width)
            v.store(total, rows.vector(self.update, block.index))
            own = rows.get(rows.vector(factors, block.index))
            before = Vector(block.carried[0], self.kind, v.width)
            block.carry(v.fma(own, total, before).text)
        return v.total_sum(Vector(block.carried[0], self.kind, v.width))

    def _prepare(self, row: str, tau: Vector, along: Vector, after: str, begin: str) -> None:
        """w = tau p - tau^2 (p v) / 2 v, for the update A - v w^T - w v^T; p is in `update`."""
        code, rows, one, v = self.code, self.rows, self.one, self.rows.v
        half = one.mul(one.mul(one.mul(tau, tau), along), one.constant(-0.5, self.kind))
        wide, factor = v.splat(half), v.splat(tau)
        with code.loop(begin, rows.count) as loop:
            place = rows.vector(self.update, loop.index)
            own = rows.get(rows.vector(row, loop.index))
            made = v.fma(wide, own, v.mul(factor, rows.get(place)))
            mask = self._from(loop.index, after)
            v.store(v.select(mask, made, v.constant(0.0, self.kind)), place)

    def _reduce(self, row: str, after: str, begin: str) -> None:
        """A - v w^T - w v^T, from a row and a column on."""
        code, rows, one, v = self.code, self.rows, self.one, self.rows.v
        with code.loop(begin, rows.count) as block:
            x, y = (rows.get(rows.vector(area, block.index)) for area in (row, self.update))
            x, y = v.neg(x), v.neg(y)
            start = rows.vector(self.matrix, block.index)
            with code.loop(after, self.size) as loop:
                place = rows.row(start, loop.index)
                a, b = (
                    v.splat(one.load(one.at(area, loop.index, self.kind), self.kind))
                    for area in (row, self.update)
                )
                v.store(v.fma(a, y, v.fma(b, x, rows.get(place))), place)

    def _form_basis(self) -> None:
        """The product of all reflections, the last one first, and then its transpose."""
        code, rows, one, v = self.code, self.rows, self.one, self.rows.v
        rows.clear(self.basis, self.size)
        with code.loop(0, self.size) as loop:
            one.store(
                one.constant(1.0, self.kind), self._element(self.basis, loop.index, loop.index)
            )
        with code.loop(0, max(self.size - 2, 0)) as step:
            # The last reflection first: the product so far then is the identity outside of the rows
            # and columns behind `after`, and only those are updated.
            k = code.let(f"sub nsw i64 {self.size - 3}, {step.index}")
            after = plus(code, k, 1)
            begin = code.let(f"udiv i64 {after}, {rows.width}")
            row = rows.row(self.matrix, k)
            self._combined(self.basis, row, after, begin)
            tau = one.neg(one.load(one.at(self.taus, k, self.kind), self.kind))
            with code.loop(begin, rows.count) as block:
                start = rows.vector(self.basis, block.index)
                along = rows.get(rows.vector(self.update, block.index))
                along = v.mul(along, v.splat(tau))
                with code.loop(after, self.size) as loop:
                    place = rows.row(start, loop.index)
                    by = v.splat(one.load(one.at(row, loop.index, self.kind), self.kind))
                    v.store(v.fma(by, along, rows.get(place)), place)
        with code.loop(0, self.size) as down, code.loop(0, self.size) as across:
            found = one.load(self._element(self.basis, down.index, across.index), self.kind)
            one.store(found, self._element(self.matrix, across.index, down.index))

    # Results

    def _write(self, scale: Vector, fine: str) -> None:
        """The requested eigenvectors as columns, and the eigenvalues; NaN where there are none."""
        code, one = self.code, self.one
        mask = Vector(fine, "i1")
        none = one.constant(float("nan"), self.kind)
        back = one.cast("fpext", scale, "double")
        with code.loop(0, self.size) as loop:
            ranked = rank_of(code, self.diagonal, self.size, loop.index, descending=False)
            # Without eigenvalues, every place has to be written all the same.
            place = code.let(f"select i1 {fine}, i64 {ranked}, i64 {loop.index}")
            column = code.let(f"sub nsw i64 {place}, {self.first}")
            with code.when(code.let(f"icmp ult i64 {column}, {self.vector_count}")):
                value = self._narrow(one.mul(self._at(self.diagonal, loop.index), back))
                target = one.at(self.buffers[2], plus(code, self.offsets[2], column), self.kind)
                one.store(one.select(mask, value, none), target)
                row = self.rows.row(self.matrix, loop.index)
                begin = one.at(self.buffers[1], plus(code, self.offsets[1], column), self.kind)
                with code.loop(0, self.size) as element:
                    found = one.load(one.at(row, element.index, self.kind), self.kind)
                    to = one.at(begin, times(code, element.index, self.vector_count), self.kind)
                    one.store(one.select(mask, found, none), to)
