"""Functions over lines of complex numbers with tables, and the maps between forms of lines."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Sequence

import numpy as np

from weft.emit.llvm.emitted import Phase
from weft.emit.llvm.fft.butterflies import Arithmetic, ComplexVector
from weft.emit.llvm.fft.plan import Area, ChirpFactors, LineMap
from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.nest import (
    TASK,
    function,
    located,
    plus,
    pointers,
    times,
    vectors_and_rest,
)
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.ir.types import Array, DType

VECTOR = 64  # bytes


class LineCode:
    """A function over lines of complex numbers."""

    scratch = 0

    def __init__(self, dtype: DType, name: str, sign: int, areas: Sequence[Area]) -> None:
        self.dtype, self.kind, self.sign = dtype, storage.register_kind(dtype), sign
        self.code = function(name)
        self.buffers = [self._area(area) for area in areas]

    def _area(self, area: Area) -> str:
        (base,) = pointers(self.code, 1, area.buffer)
        if not area.offset:
            return base
        nbytes = area.offset * self.dtype.numpy.itemsize
        return self.code.let(f"getelementptr i8, ptr {base}, i64 {nbytes}")

    def table(self, what: str, numbers: Sequence[complex]) -> str:
        """A constant array: all real parts, then all imaginary ones."""
        # In double precision and rounded once; real and imaginary parts apart, since a vector holds
        # one of the two.
        both = np.array(numbers, np.complex128)
        data = np.concatenate([both.real, both.imag]).astype(self.dtype.real.numpy).tobytes()
        name = f"@{self.code.name}_{what}"
        text = "".join(f"\\{byte:02X}" for byte in data)
        self.code.declare(
            f'{name} = private unnamed_addr constant [{len(data)} x i8] c"{text}", align 64'
        )
        return name

    def from_table(
        self, name: str, count: int, index: str | int, load: Callable[[str], Vector]
    ) -> ComplexVector:
        """A number, or several, of a table of that many."""
        one = Vectors(self.code, 1)
        return ComplexVector(
            *[load(one.at(name, plus(self.code, str(index), at), self.kind)) for at in (0, count)]
        )


class LineMapCode(LineCode):
    """The function of a map: a task is one line."""

    def __init__(self, line_map: LineMap, dtype: DType, name: str, sign: int) -> None:
        super().__init__(dtype, name, sign, line_map.areas)
        self.map = line_map

    def emit(self) -> Phase:
        """Numbers of the source, then zeros."""
        code, line_map = self.code, self.map
        factors = ""
        if line_map.table is not None:
            factors = self.table("factors", _factors(line_map.table, self.sign))
        most = VECTOR // self.dtype.real.numpy.itemsize
        count, length = line_map.count, line_map.length
        stored = count // 2 + 1 if line_map.forms[0] == "halves" else count
        with code.loop("%begin", "%end") as task:
            self.places = located(code, task.index, line_map.outer, ["0", "0"])
            for begin, end in ((0, stored), (stored, count), (count, length)):
                for width, index in vectors_and_rest(code, str(begin), str(end), most):
                    v = Vectors(code, width)
                    if begin == count:
                        zero = v.constant(0.0, self.kind)
                        self._store(v, index, ComplexVector(zero, zero))
                    else:
                        value = self._load(v, index, mirrored=begin == stored)
                        self._store(v, index, self._multiplied(v, value, index, factors))
        tasks = math.prod([d.size for d in line_map.outer])
        return Phase(code.name, tasks, max(1, TASK // (length * 2 * self.dtype.numpy.itemsize)))

    def _multiplied(
        self, v: Vectors, value: ComplexVector, index: str, factors: str
    ) -> ComplexVector:
        table = self.map.table
        if table is None:
            return value
        math_ = Arithmetic(v, self.kind, self.sign)
        if table.step == "last":
            value = math_.conj(value)
        count = table.around if table.step == "middle" else table.length
        by = self.from_table(factors, count, index, lambda address: v.load(address, self.kind))
        value = math_.mul(value, by)
        # The inverse of a transform is that of the conjugates, conjugated.
        return math_.conj(value) if table.step == "middle" else value

    def _load(self, v: Vectors, index: str, mirrored: bool) -> ComplexVector:
        if mirrored:
            first = self.code.let(f"sub nsw i64 {self.map.count - v.width + 1}, {index}")
            at = plus(self.code, self.places[0], first)
            parts = storage.load(v, self.buffers[0], at, self.dtype)
            if v.width > 1:
                order = range(v.width - 1, -1, -1)
                parts = tuple([v.shuffle(part, part, order) for part in parts])
            return ComplexVector(parts[0], v.neg(parts[1]))
        dtype = self.dtype.real if self.map.forms[0] == "real" else self.dtype
        where, apart = self._place(v, index, 0)
        if apart is not None:
            held = storage.gather(v, self.buffers[0], apart, dtype)
        else:
            held = storage.load(v, self.buffers[0], where, dtype)
        if len(held) == 1:
            return ComplexVector(held[0], v.constant(0.0, self.kind))
        return ComplexVector(*held)

    def _store(self, v: Vectors, index: str, value: ComplexVector) -> None:
        is_real = self.map.forms[1] == "real"
        dtype = self.dtype.real if is_real else self.dtype
        held = (value.real,) if is_real else (value.real, value.imag)
        where, apart = self._place(v, index, 1)
        if apart is not None:
            storage.scatter(v, held, self.buffers[1], apart, dtype)
        else:
            storage.store(v, held, self.buffers[1], where, dtype)

    def _place(self, v: Vectors, index: str, side: int) -> tuple[str, Vector | None]:
        """The index of an element, and those of all lanes where they lie apart."""
        row = self.map.rows[side]
        at = plus(self.code, self.places[side], times(self.code, index, row))
        if v.width == 1 or row == 1:
            return at, None
        return at, v.add(v.splat(Vector(at, "i64")), v.mul(v.lanes(), v.constant(row, "i64")))


def _factors(table: ChirpFactors, sign: int) -> Sequence[complex]:
    """The table of a step of a convolution, in double precision."""
    length = table.length
    # The square is reduced as an integer, exactly.
    chirp = [
        cmath.exp(sign * 1j * math.pi * (n * n % (2 * length)) / length) for n in range(length)
    ]
    if table.step == "first":
        return chirp
    if table.step == "last":
        return [number * table.scale for number in chirp]
    around: Array = np.zeros(table.around, np.complex128)
    around[:length] = np.conj(chirp)
    around[table.around - length + 1 :] = around[1:length][::-1]
    # The transforms are not scaled: the inverse one's factor is part of the table.
    both = np.fft.fft(around) / table.around if sign < 0 else np.fft.ifft(around)
    return [complex(number) for number in both]
