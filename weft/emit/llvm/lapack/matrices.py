"""Kernels over matrices that call LAPACK: one matrix a task, column-major copies in scratch memory.

A routine is called as Fortran does: all arguments are addresses, and the lengths of character
arguments follow them. Its workspace is that of its blocked algorithm, computed here instead of by a
query: a text does not depend on the library but for the width of its integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from weft.emit.llvm.emitted import Emitted, Phase
from weft.emit.llvm.jit.lapack import lapack
from weft.emit.llvm.spectral.rows import Scratch, is_finite, largest
from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.code import module_text
from weft.emit.llvm.writer.library_threads import one_thread, threads_again
from weft.emit.llvm.writer.nest import function, matrices, plus, pointers, times
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.kernels.single_node import SingleNode
from weft.ops.numerics.spectral import THREADED

BLOCK = 64  # columns of a block of LAPACK's blocked algorithms, at most
_CALL = 256  # elements whose work takes as long as what a routine does once for each row
_LETTERS = {"f32": "s", "f64": "d", "complex<f32>": "c", "complex<f64>": "z"}


def refuses_lapack(kernel: SingleNode) -> str | None:
    """Why this kernel is unsupported."""
    matrix = kernel.operands[0]
    if matrix.dtype.name not in _LETTERS:
        return f"of {matrix.dtype}"
    if max(matrix.shape[-2:]) >= THREADED:
        return f"LAPACK's own threads are faster for {THREADED} rows and more"
    if not all(o.size for o in kernel.operands):
        return "it has no elements"
    return "numpy has no LAPACK library that kernels can call" if lapack() is None else None


def hessenberg_work(size: int) -> int:
    """The workspace of a reduction to Hessenberg form, in elements, and of what follows it."""
    return (BLOCK + 4) * size + (BLOCK + 1) * BLOCK  # the second: the triangles of its blocks


class LapackMatrices:
    """A function over matrices: its operands, copies of them, and calls of LAPACK."""

    def __init__(self, kernel: SingleNode, work: int) -> None:
        """`work` is that of a routine, in elements of the matrix for each row or column."""
        library, matrix = lapack(), kernel.operands[0]
        assert library is not None, "kernels are refused without a library"
        self.library, self.kernel, self.dtype = library, kernel, matrix.dtype
        self.rows, self.columns = matrix.shape[-2:]
        self.least, self.most = sorted(matrix.shape[-2:])
        self.is_complex = matrix.dtype.is_complex
        self.real = storage.register_kind(matrix.dtype)  # of one part, if complex
        self.parts = storage.parts(matrix.dtype)
        cost = (work * self.rows * self.columns * self.parts**2 + _CALL) * self.least
        self.tasks = matrices(kernel, cost)
        self.code = function(kernel.name)
        self.buffers = pointers(self.code, len(kernel.operands))
        self.one = Vectors(self.code, 1)
        self.scratch = Scratch(self.code)
        self.fine = self.code.let("alloca i1, align 1")
        self.offsets: list[str] = []

    def emit(self, body: Callable[[], None]) -> Emitted:
        """The phases of a function whose body is for one matrix."""
        with self.tasks.each(self.code) as (offsets, _, _):
            self.offsets = offsets
            body()
        name = self.code.name
        symbols = {what: self.library.symbol(what) for what in ("get", "set", "use")}
        before, after = one_thread(symbols, f"{name}_begin"), threads_again(symbols, f"{name}_end")
        phases = (Phase(before.name, 1), self.tasks.phase(name), Phase(after.name, 1))
        return Emitted(module_text(self.code, before, after), phases, self.scratch.nbytes)

    # Memory

    def area(self, count: int) -> str:
        """Scratch for elements of the matrix's type."""
        return self.scratch.area(max(count, 1) * self.parts, self.real)

    def reals(self, count: int) -> str:
        """Scratch for real numbers."""
        return self.scratch.area(max(count, 1), self.real)

    def integers(self, count: int) -> str:
        """Scratch for the library's integers."""
        return self.scratch.area(max(count, 1), self.integer)

    @property
    def integer(self) -> str:
        """The type of the library's integers."""
        return f"i{self.library.bits}"

    def at(self, operand: int) -> str:
        """The address of this task's part of an operand."""
        type = f"i{8 * self.kernel.operands[operand].dtype.numpy.itemsize}"
        base = self.buffers[operand]
        return self.code.let(f"getelementptr {type}, ptr {base}, i64 {self.offsets[operand]}")

    def matrix(self) -> str:
        """Scratch for a matrix of the size of the first operand, which `take` copies there."""
        return self.area(self.rows * self.columns)

    def take(self, target: str) -> str:
        """A column-major copy of the first operand; returns where it is."""
        sizes = (self.rows, self.columns)
        self._copy(self.at(0), (self.columns, 1), target, (1, self.rows), sizes)
        return target

    def take_line(self, operand: int) -> str:
        """A copy of a vector of elements."""
        count = self.kernel.operands[operand].shape[-1]
        target = self.area(count)
        self._copy(self.at(operand), (0, 1), target, (0, 1), (1, count))
        return target

    def give(self, source: str, result: int, first: int = 0, line: int = 0) -> None:
        """Copy columns of a column-major matrix to a result, or rows of one of `line` rows."""
        rows, columns = self.kernel.operands[result].shape[-2:]
        begin = self._element(source, str(first if line else first * rows), self.parts)
        self._copy(begin, (1, line or rows), self.at(result), (columns, 1), (rows, columns))

    def give_line(self, source: str, result: int, first: int = 0) -> None:
        """Copy contiguous elements to a result without rows."""
        operand = self.kernel.operands[result]
        parts = storage.parts(operand.dtype)
        source = self._element(source, str(first), parts)
        sizes = (1, operand.shape[-1])
        self._copy(source, (0, 1), self.at(result), (0, 1), sizes, parts)

    def _element(self, base: str, index: str, parts: int) -> str:
        return self.one.at(base, times(self.code, index, parts), self.real)

    def _copy(
        self,
        source: str,
        steps: tuple[int, int],
        target: str,
        target_steps: tuple[int, int],
        sizes: tuple[int, int],
        parts: int = 0,
    ) -> None:
        """Copy elements, by their strides along two dims on both sides."""
        code, parts = self.code, parts or self.parts
        with code.loop(0, sizes[0]) as down, code.loop(0, sizes[1]) as across:
            near, far = (
                plus(code, times(code, down.index, a), times(code, across.index, b))
                for a, b in (steps, target_steps)
            )
            self.put(target, far, self.get(source, near, parts))

    def get(self, base: str, index: str, parts: int = 1) -> tuple[Vector, ...]:
        """The parts of an element: one, or two of a complex number."""
        place = self._element(base, index, parts)
        return tuple(
            [self.one.load(self.one.at(place, n, self.real), self.real) for n in range(parts)]
        )

    def put(self, base: str, index: str, parts: tuple[Vector, ...]) -> None:
        """Store the parts of an element."""
        place = self._element(base, index, len(parts))
        for n, part in enumerate(parts):
            self.one.store(part, self.one.at(place, n, self.real))

    # Calls

    def call(self, routine: str, *arguments: str | int) -> str:
        """Call a routine; whether it succeeded. Letters, numbers and addresses are arguments."""
        code = self.code
        letters = sum(isinstance(given, str) and len(given) == 1 for given in arguments)
        given = [self._argument(argument) for argument in arguments]
        info = self._number(0)
        typed = [*[f"ptr {place}" for place in (*given, info)], *["i64 1"] * letters]
        symbol = self.library.symbol(f"{_LETTERS[self.dtype.name]}{routine}")
        types = ", ".join(word.partition(" ")[0] for word in typed)
        code.declare(f"declare void @{symbol}({types})")
        code.do(f"call void @{symbol}({', '.join(typed)})")
        status = code.let(f"load {self.integer}, ptr {info}, align 8")
        return code.let(f"icmp eq {self.integer} {status}, 0")

    def _argument(self, given: str | int) -> str:
        if isinstance(given, str):
            return self._number(ord(given)) if len(given) == 1 else given
        return self._number(given)

    def _number(self, value: int) -> str:
        """The address of a number; its first byte is that of a character, too."""
        place = self.scratch.area(1, "i64")
        self.code.do(f"store i64 {value}, ptr {place}, align 8")
        return place

    def if_finite(self, compute: Callable[[], str], give: Callable[[], None]) -> None:
        """Compute and give results; NaN if the matrix is not finite or the routine fails.

        LAPACK may not return for NaN or infinity.
        """
        code = self.code
        code.do(f"store i1 false, ptr {self.fine}, align 1")
        most = largest(code, self.rows * self.columns * self.parts, self._input, self.real)
        with code.when(is_finite(code, most, self.real)):
            code.do(f"store i1 {compute()}, ptr {self.fine}, align 1")
        fine = code.let(f"load i1, ptr {self.fine}, align 1")
        with code.when(fine):
            give()
        with code.when(code.let(f"xor i1 {fine}, true")):
            self._give_nothing()

    def _input(self, v: Vectors, index: str) -> Vector:
        return v.load(v.at(self.at(0), index, self.real), self.real)

    def _give_nothing(self) -> None:
        """NaN in all results."""
        none, zero = (self.one.constant(x, self.real) for x in (float("nan"), 0.0))
        outside = len(self.kernel.operands[0].shape) - 2
        for n, operand in enumerate(self.kernel.operands):
            if operand.output:
                parts = (none, zero)[: storage.parts(operand.dtype)]
                with self.code.loop(0, math.prod(operand.shape[outside:])) as loop:
                    self.put(self.at(n), loop.index, parts)
