"""LU, QR and products of reflectors: one matrix a task, in place, by operations on whole rows.

Rows are contiguous, so that each step of an elimination or a reflection is a few multiples of one
row added to others. A reflector is I - tau v v^T with v = (1, ...), as in LAPACK.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.emit.llvm.emitted import Emitted
from weft.emit.llvm.spectral.rows import power_of_two
from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.code import module_text
from weft.emit.llvm.writer.nest import (
    function,
    matrices,
    plus,
    pointers,
    times,
    vectors_and_rest,
)
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.kernels.single_node import SingleNode
from weft.ops.custom_calls.custom import CustomCall

_BYTES = (64, 16)  # of vectors, and of those at the end of a row
# Rows from which on the last columns are one masked vector: a load after a masked store waits,
# which is little of the time of many rows.
_TALL = 32


def refuses_factors(kernel: SingleNode) -> str | None:
    """Why a kernel is unsupported."""
    first = kernel.outputs[0]
    if first.dtype.is_complex:
        return f"of {first.dtype}"
    return None if first.size else "it has no elements"


def factorize(kernel: SingleNode) -> Emitted:
    """The factors of every matrix."""
    assert isinstance(kernel.op, CustomCall)
    matrices = _Matrices(kernel)
    with matrices.tasks.each(matrices.code) as (offsets, _, _):
        matrices.offsets = offsets
        CALLS[kernel.op.call_target_name](matrices)
    phase = matrices.tasks.phase(matrices.code.name)
    return Emitted(module_text(matrices.code), (phase,))


class _Matrices:
    """A function over matrices: its operands, and operations on the rows of one matrix."""

    def __init__(self, kernel: SingleNode) -> None:
        matrix = kernel.outputs[0]
        self.rows, self.columns = matrix.shape[-2:]
        self.least = min(self.rows, self.columns)
        self.kind = storage.register_kind(matrix.dtype)
        self.widths = [nbytes // matrix.dtype.numpy.itemsize for nbytes in _BYTES]
        # A step of a row takes as long as many elements.
        cost = self.rows * self.columns * self.least + 64 * self.rows * self.least
        self.tasks = matrices(kernel, cost)
        self.result = len(kernel.inputs)  # the operand that is the first result
        self.count = kernel.operands[1].shape[-1]  # of reflectors, where they are given
        self.code = function(kernel.name)
        self.buffers = pointers(self.code, len(kernel.operands))
        self.one = Vectors(self.code, 1)
        self.offsets: list[str] = []

    # Elements

    def at(self, operand: int, row: str, column: str) -> str:
        """The address of an element of a matrix."""
        place = plus(self.code, times(self.code, row, self.columns), column)
        return self.one.at(
            self.buffers[operand], plus(self.code, self.offsets[operand], place), self.kind
        )

    def get(self, operand: int, row: str, column: str) -> Vector:
        """An element of a matrix."""
        return self.one.load(self.at(operand, row, column), self.kind)

    def put(self, value: Vector, operand: int, row: str, column: str) -> None:
        """Store an element of a matrix."""
        self.one.store(value, self.at(operand, row, column))

    def entry(self, operand: int, index: str, kind: str) -> str:
        """The address of an element of a vector."""
        place = plus(self.code, self.offsets[operand], index)
        return self.one.at(self.buffers[operand], place, kind)

    def copied(self) -> None:
        """Copy the first operand to the first result."""
        source, target = self.at(0, "0", "0"), self.at(self.result, "0", "0")
        size = self.rows * self.columns
        for width, index in vectors_and_rest(self.code, "0", str(size), self.widths[0]):
            v = Vectors(self.code, width)
            v.store(
                v.load(v.at(source, index, self.kind), self.kind), v.at(target, index, self.kind)
            )

    # Rows

    def row_loops(self, begin: str) -> Callable[[Callable[[Vectors, str], None]], None]:
        """Loops over the columns of a row from one on, by vectors."""

        def run(body: Callable[[Vectors, str], None]) -> None:
            for width, index in vectors_and_rest(self.code, begin, str(self.columns), *self.widths):
                body(Vectors(self.code, width), index)

        return run

    def added(self, factor: Vector, source: str, target: str, begin: str) -> None:
        """Add a multiple of one row to another, from a column on."""

        def body(v: Vectors, column: str) -> None:
            to = v.at(target, column, self.kind)
            given = v.load(v.at(source, column, self.kind), self.kind)
            v.store(v.fma(v.splat(factor), given, v.load(to, self.kind)), to)

        self.row_loops(begin)(body)

    def reflect(self, matrix: int, reflectors: int, step: str, tau: Vector, begin: str) -> None:
        """Apply a reflector to the rows of a matrix from one on, and its columns from one on."""
        code, minus = self.code, self.one.neg(tau)
        after = plus(code, step, 1)

        def columns(v: Vectors, column: str, mask: Vector | None) -> None:
            """Some columns: their sum stays in registers from row to row."""
            factor = v.splat(minus)

            def place(row: str) -> str:
                return self.at(matrix, row, column)

            first = self._read(v, place(step), mask)
            total = [(first.type, first.text)]
            with code.loop(after, self.rows, carried=total) as row:
                by = v.splat(self.get(reflectors, row.index, step))
                given = self._read(v, place(row.index), mask)
                row.carry(v.fma(by, given, Vector(row.carried[0], self.kind, v.width)).text)
            change = v.mul(factor, Vector(row.carried[0], self.kind, v.width))
            self._write(v, v.add(first, change), place(step), mask)
            with code.loop(after, self.rows) as row:
                by = v.splat(self.get(reflectors, row.index, step))
                old = self._read(v, place(row.index), mask)
                self._write(v, v.fma(by, change, old), place(row.index), mask)

        width = self.widths[0]
        if self.rows < _TALL:
            for wide, column in vectors_and_rest(
                code, begin, str(self.columns), 4 * width, *self.widths
            ):
                columns(Vectors(code, wide), column, None)
            return
        whole = code.let(f"sub nsw i64 {self.columns}, {begin}")
        for wide in (4 * width, width):
            end = plus(code, begin, code.let(f"and i64 {whole}, {-wide}"))
            with code.loop(begin, end, wide) as loop:
                columns(Vectors(code, wide), loop.index, None)
            begin, whole = end, code.let(f"sub nsw i64 {self.columns}, {end}")
        with code.when(code.let(f"icmp sgt i64 {whole}, 0")):
            v = Vectors(code, width)
            columns(v, begin, v.first(whole))

    def _read(self, v: Vectors, address: str, mask: Vector | None) -> Vector:
        if mask is None:
            return v.load(address, self.kind)
        return v.load_masked(address, mask, self.kind)

    def _write(self, v: Vectors, value: Vector, address: str, mask: Vector | None) -> None:
        if mask is None:
            v.store(value, address)
        else:
            v.store_masked(value, address, mask)


def _lu(m: _Matrices) -> None:
    """Gaussian elimination; the largest element of a column is the pivot, the first of equals."""
    code, one = m.code, m.one
    m.copied()
    with code.loop(0, m.rows) as row:
        number = code.let(f"trunc i64 {row.index} to i32")
        code.do(f"store i32 {number}, ptr {m.entry(3, row.index, 'i32')}, align 4")
    with code.loop(0, m.least) as step:
        k, after = step.index, plus(code, step.index, 1)
        pivot = _pivot(m, k)
        number = code.let(f"trunc i64 {pivot} to i32")
        code.do(f"store i32 {number}, ptr {m.entry(2, k, 'i32')}, align 4")
        order = [m.entry(3, at, "i32") for at in (k, pivot)]
        held = [code.let(f"load i32, ptr {at}, align 4") for at in order]
        for at, value in zip(order, reversed(held), strict=True):
            code.do(f"store i32 {value}, ptr {at}, align 4")
        rows = [m.at(1, at, "0") for at in (k, pivot)]

        def swap(v: Vectors, column: str, rows: list[str] = rows) -> None:
            places = [v.at(row, column, m.kind) for row in rows]
            a, b = (v.load(place, m.kind) for place in places)
            v.store(b, places[0])
            v.store(a, places[1])

        m.row_loops("0")(swap)
        found = m.get(1, k, k)
        # Singular: the rest of the column is 0 as well, and stays 0 when divided by 1.
        none = one.compare("oeq", found, one.constant(0.0, m.kind))
        by = one.select(none, one.constant(1.0, m.kind), found)
        with code.loop(after, m.rows) as row:
            factor = one.div(m.get(1, row.index, k), by)
            m.put(factor, 1, row.index, k)
            m.added(one.neg(factor), rows[0], m.at(1, row.index, "0"), after)


def _pivot(m: _Matrices, k: str) -> str:
    """The row of the pivot of a column; a NaN counts as the largest."""
    code, one = m.code, m.one
    first = one.intrinsic("fabs", m.get(1, k, k))
    begin = plus(code, k, 1)
    with code.loop(begin, m.rows, carried=[("i64", k), (m.kind, first.text)]) as row:
        at, best = row.carried[0], Vector(row.carried[1], m.kind)
        size = one.intrinsic("fabs", m.get(1, row.index, k))
        # Unordered: true for a NaN on either side; the second test keeps the first NaN.
        larger = one.compare("ugt", size, best)
        better = code.let(f"and i1 {larger.text}, {one.compare('ord', best, best).text}")
        chosen = code.let(f"select i1 {better}, i64 {row.index}, i64 {at}")
        row.carry(chosen, one.select(Vector(better, "i1"), size, best).text)
    return row.carried[0]


def _qr(m: _Matrices) -> None:
    """Householder's reflections, column by column."""
    code, one = m.code, m.one
    m.copied()
    with code.loop(0, m.least) as step:
        k, after = step.index, plus(code, step.index, 1)
        alpha = m.get(1, k, k)
        norm = _norm(m, k, after)
        # As in LAPACK, a column that is 0 below the diagonal has no reflection: tau is 0.
        idle = one.compare("oeq", norm, one.constant(0.0, m.kind))
        length = _length(m, alpha, norm)
        # Of the opposite sign: alpha - beta does not cancel.
        beta = one.neg(one.intrinsic("copysign", length, alpha))
        zero, full = one.constant(0.0, m.kind), one.constant(1.0, m.kind)
        tau = one.select(idle, zero, one.div(one.sub(beta, alpha), beta))
        # v is divided by its first element, which then is 1 and not stored: LAPACK's convention.
        scale = one.select(idle, full, one.sub(alpha, beta))
        with code.loop(after, m.rows) as row:
            m.put(one.div(m.get(1, row.index, k), scale), 1, row.index, k)
        m.put(one.select(idle, alpha, beta), 1, k, k)
        one.store(tau, m.entry(2, k, m.kind))
        m.reflect(1, 1, k, tau, after)


def _norm(m: _Matrices, column: str, begin: str) -> Vector:
    """The norm of a column from a row on, without overflow: scaled by about its largest element."""
    code, one = m.code, m.one
    zero = one.constant(0.0, m.kind)
    with code.loop(begin, m.rows, carried=[(m.kind, zero.text)]) as row:
        size = one.intrinsic("fabs", m.get(1, row.index, column))
        row.carry(one.maximum(size, Vector(row.carried[0], m.kind)).text)
    # By a power of two: exact, and a product instead of a quotient for each element.
    scale, inverse = power_of_two(code, row.carried[0], m.kind)
    with code.loop(begin, m.rows, carried=[(m.kind, zero.text)]) as row:
        part = one.mul(m.get(1, row.index, column), inverse)
        row.carry(one.fma(part, part, Vector(row.carried[0], m.kind)).text)
    return one.mul(scale, one.intrinsic("sqrt", Vector(row.carried[0], m.kind)))


def _length(m: _Matrices, a: Vector, b: Vector) -> Vector:
    """The length of two numbers, the second of which is not negative, without overflow."""
    one = m.one
    most = one.maximum(one.intrinsic("fabs", a), b)
    zero = one.constant(0.0, m.kind)
    by = one.select(one.compare("oeq", most, zero), one.constant(1.0, m.kind), most)
    x, y = one.div(a, by), one.div(b, by)
    return one.mul(most, one.intrinsic("sqrt", one.fma(x, x, one.mul(y, y))))


def _householder_product(m: _Matrices) -> None:
    """The reflectors applied to the identity, the last one first."""
    code, one, count = m.code, m.one, m.count
    full = one.constant(1.0, m.kind)
    with code.loop(0, m.rows) as row:
        start = m.at(m.result, row.index, "0")

        def clear(v: Vectors, column: str, start: str = start) -> None:
            v.store(v.constant(0.0, m.kind), v.at(start, column, m.kind))

        m.row_loops("0")(clear)
    with code.loop(0, m.least) as row:
        m.put(full, m.result, row.index, row.index)
    with code.loop(0, count) as step:
        k = code.let(f"sub nsw i64 {count - 1}, {step.index}")
        tau = one.load(m.entry(1, k, m.kind), m.kind)
        m.reflect(m.result, 0, k, tau, k)


CALLS: dict[str, Callable[[_Matrices], None]] = {
    "weft.lu": _lu,
    "weft.qr": _qr,
    "Qr": _qr,
    "weft.householder_product": _householder_product,
    "ProductOfElementaryHouseholderReflectors": _householder_product,
}
