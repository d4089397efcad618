"""Emission of Fourier transforms: one function for each pass, Stockham's stages in each.

A stage of radix r takes x[q + s*(p + m*j)] to y[q + s*(r*p + k)], with n = r*m points left of
each line and s lines between; its outputs are in order without any bit reversal. The first stage
reads memory, the last one writes it, those between alternate between two halves of scratch memory.
"""

from __future__ import annotations

import math

from weft.emit.llvm.emitted import Emitted, Phase
from weft.emit.llvm.fft.butterflies import Arithmetic, ComplexVector
from weft.emit.llvm.fft.lines import VECTOR, LineCode, LineMapCode
from weft.emit.llvm.fft.plan import LineMap, LinePass, Mirror, plan_of, radices
from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.code import module_text
from weft.emit.llvm.writer.nest import (
    TASK,
    divided,
    located,
    plus,
    times,
    vectors_and_rest,
)
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.ir.types import DTYPES, DType
from weft.kernels.single_node import SingleNode


def fft(kernel: SingleNode) -> Emitted:
    """The passes of a transform, each a phase."""
    if not kernel.outputs[0].size:
        return Emitted("", ())
    plan = plan_of(kernel)
    real = kernel.outputs[0].dtype.real
    dtype, sign = DTYPES[f"complex<{real.name}>"], 1 if plan.inverse else -1
    functions, phases, scratch = [], [], 0
    for number, step in enumerate(plan.steps):
        name = f"{kernel.name}_{number}"
        writer: _MirrorCode | _PassCode | LineMapCode
        match step:
            case Mirror():
                writer = _MirrorCode(step, dtype, name, sign)
            case LineMap():
                writer = LineMapCode(step, dtype, name, sign)
            case LinePass():
                writer = _PassCode(step, dtype, name, sign)
        functions.append(writer.code)
        phases.append(writer.emit())
        scratch = max(scratch, writer.scratch)
    # Areas begin at multiples of 8 elements, so that this is one of 64.
    nbytes = plan.workspace * dtype.numpy.itemsize
    return Emitted(module_text(*functions), tuple(phases), scratch, nbytes)


class _PassCode(LineCode):
    """The function of a pass."""

    def __init__(self, line_pass: LinePass, dtype: DType, name: str, sign: int) -> None:
        super().__init__(dtype, name, sign, line_pass.areas)
        self.line_pass = line_pass
        most = VECTOR // dtype.real.numpy.itemsize
        count = line_pass.lanes.size
        # Lanes are independent transforms: for fewer than a full vector of them a narrower one
        # wastes less.
        self.width = min(most, 1 << (count - 1).bit_length())
        self.v = Vectors(self.code, self.width)
        self.math = Arithmetic(self.v, self.kind, sign)
        self.blocks = -(-count // self.width)
        self.radices = radices(line_pass.length) or ()
        self.half = line_pass.length * self.width * 2  # elements of one half of scratch memory
        self.scratch = 2 * self.half * dtype.real.numpy.itemsize
        self.mask: Vector | None = None
        squares = self.width == most and not count % most and not line_pass.length % most
        # Lanes that lie apart, with rows side by side: squares are transposed in registers.
        self.transposed = [
            squares and row == 1 and lane != 1
            for row, lane in zip(line_pass.rows, line_pass.lanes.steps, strict=True)
        ]

    def emit(self) -> Phase:
        """A task is one block of lanes, at one point of the outer dims."""
        code, line_pass = self.code, self.line_pass
        tables = self._tables()
        with code.loop("%begin", "%end") as task:
            point, self.block = divided(code, task.index, self.blocks)
            offsets = located(code, point, line_pass.outer, ["0", "0"])
            first = times(code, self.block, self.width)
            self.places = [
                plus(code, offset, times(code, first, step))
                for offset, step in zip(offsets, line_pass.lanes.steps, strict=True)
            ]
            if line_pass.lanes.size % self.width:
                left = code.let(f"sub nsw i64 {line_pass.lanes.size}, {first}")
                self.mask = self.v.first(left)
            self._stages(tables)
        tasks = math.prod([d.size for d in line_pass.outer]) * self.blocks
        cost = line_pass.length * self.width * 2 * self.dtype.numpy.itemsize
        return Phase(code.name, tasks, max(1, TASK // cost))

    def _tables(self) -> list[str]:
        """The twiddle factors of each stage."""
        tables, left = [], self.line_pass.length
        for stage, radix in enumerate(self.radices):
            rest = left // radix
            powers = [p * k for p in range(rest) for k in range(1, radix)]
            roots = [self.math.root(n, left) for n in powers]
            tables.append(self.table(f"t{stage}", roots) if rest > 1 else "")
            left = rest
        if (order := self.line_pass.twiddle) > 0:
            rows = self.line_pass.length
            # w^(k j) is that of a block's first lane times that of the lane inside: two small
            # tables in the place of one for all lanes.
            coarse = [
                self.math.root(k * b * self.width, order)
                for k in range(rows)
                for b in range(self.blocks)
            ]
            fine = [self.math.root(k * n, order) for k in range(rows) for n in range(self.width)]
            self.twiddles = self.table("coarse", coarse), self.table("fine", fine)
        return tables

    def _stages(self, tables: list[str]) -> None:
        if not self.radices:
            self._write("0", self._finished("0", self._read("0")))
        if self.transposed[0]:
            self._read_transposed()
        left, apart = self.line_pass.length, 1
        for stage, radix in enumerate(self.radices):
            rest = left // radix
            with self.code.loop(0, rest) as p, self.code.loop(0, apart) as q:
                at = (p.index if rest > 1 else "0", q.index if apart > 1 else "0")
                self._stage(stage, radix, rest, apart, at, tables[stage])
            left, apart = rest, apart * radix
        if self.transposed[1]:
            self._write_transposed()

    def _stage(
        self, stage: int, radix: int, rest: int, apart: int, at: tuple[str, str], table: str
    ) -> None:
        """The butterflies of one place of a stage."""
        code, (p, q) = self.code, at
        here = plus(code, times(code, p, apart), q)
        rows = [plus(code, here, apart * rest * j) for j in range(radix)]
        from_memory = stage == 0 and not self.transposed[0]
        read = self._read if from_memory else lambda row: self._recall(row, stage - 1)
        outputs = self.math.transform([read(row) for row in rows])
        if rest > 1:
            first = times(code, p, radix - 1)
            splat = self._splat
            for k in range(1, radix):
                index, count = plus(code, first, k - 1), rest * (radix - 1)
                outputs[k] = self.math.mul(outputs[k], self.from_table(table, count, index, splat))
        there = plus(code, times(code, p, apart * radix), q)
        is_last = stage == len(self.radices) - 1
        for k in range(radix):
            row = plus(code, there, apart * k)
            value = self._finished(row, outputs[k]) if is_last else outputs[k]
            if is_last and not self.transposed[1]:
                self._write(row, value)
            else:
                self._keep(row, value, stage)

    def _splat(self, address: str) -> Vector:
        return self.v.splat(Vectors(self.code, 1).load(address, self.kind))

    def _finished(self, row: str, value: ComplexVector) -> ComplexVector:
        """A row of the result, with the twiddle factor of two passes and the scale."""
        if self.line_pass.twiddle:
            coarse, fine = self.twiddles
            count = self.line_pass.length
            at = plus(self.code, times(self.code, row, self.blocks), self.block)
            by = self.from_table(coarse, count * self.blocks, at, self._splat)
            inner = self.from_table(
                fine,
                count * self.width,
                times(self.code, row, self.width),
                lambda address: self.v.load(address, self.kind),
            )
            value = self.math.mul(value, self.math.mul(by, inner))
        return (
            value if self.line_pass.scale == 1.0 else self.math.scaled(value, self.line_pass.scale)
        )

    # Memory

    def _read(self, row: str) -> ComplexVector:
        at = plus(self.code, self.places[0], times(self.code, row, self.line_pass.rows[0]))
        if self.width == 1 or self.line_pass.lanes.steps[0] == 1:
            return ComplexVector(*storage.load(self.v, self.buffers[0], at, self.dtype, self.mask))
        where = self._across(at, 0)
        return ComplexVector(*storage.gather(self.v, self.buffers[0], where, self.dtype, self.mask))

    def _write(self, row: str, value: ComplexVector) -> None:
        at = plus(self.code, self.places[1], times(self.code, row, self.line_pass.rows[1]))
        held = (value.real, value.imag)
        if self.width == 1 or self.line_pass.lanes.steps[1] == 1:
            storage.store(self.v, held, self.buffers[1], at, self.dtype, self.mask)
            return
        where = self._across(at, 1)
        storage.scatter(self.v, held, self.buffers[1], where, self.dtype, self.mask)

    def _across(self, at: str, side: int) -> Vector:
        step = self.v.constant(self.line_pass.lanes.steps[side], "i64")
        return self.v.add(self.v.splat(Vector(at, "i64")), self.v.mul(self.v.lanes(), step))

    def _read_transposed(self) -> None:
        """Rows of lanes that lie apart, into scratch memory."""
        code, v, apart = self.code, self.v, self.line_pass.lanes.steps[0]
        with code.loop(0, self.line_pass.length, self.width) as loop:
            first = plus(code, self.places[0], loop.index)
            at = [plus(code, first, n * apart) for n in range(self.width)]
            lines = [storage.load(v, self.buffers[0], place, self.dtype) for place in at]
            reals, imags = (v.transpose([line[part] for line in lines]) for part in (0, 1))
            for n, (real, imag) in enumerate(zip(reals, imags, strict=True)):
                self._keep(plus(code, loop.index, n), ComplexVector(real, imag), -1)

    def _write_transposed(self) -> None:
        """Rows in scratch memory to lanes that lie apart."""
        code, v, apart = self.code, self.v, self.line_pass.lanes.steps[1]
        stage = len(self.radices) - 1
        with code.loop(0, self.line_pass.length, self.width) as loop:
            rows = [self._recall(plus(code, loop.index, n), stage) for n in range(self.width)]
            reals, imags = v.transpose([r.real for r in rows]), v.transpose([r.imag for r in rows])
            first = plus(code, self.places[1], loop.index)
            for n, held in enumerate(zip(reals, imags, strict=True)):
                at = plus(code, first, n * apart)
                storage.store(v, held, self.buffers[1], at, self.dtype)

    def _slot(self, row: str, stage: int, part: int) -> str:
        # Stages alternate between the halves; transposed input counts as stage -1.
        first = (stage % 2) * self.half + part * self.width
        index = plus(self.code, times(self.code, row, 2 * self.width), first)
        return self.v.at("%scratch", index, self.kind)

    def _recall(self, row: str, stage: int) -> ComplexVector:
        return ComplexVector(
            *[self.v.load(self._slot(row, stage, part), self.kind) for part in (0, 1)]
        )

    def _keep(self, row: str, value: ComplexVector, stage: int) -> None:
        for part, held in enumerate((value.real, value.imag)):
            self.v.store(held, self._slot(row, stage, part))


class _MirrorCode(LineCode):
    """From the transform z of half the length to that of real numbers x, or back.

    With w the root of unity of the whole length, E and O the transforms of the even and the odd
    inputs: z[k] = E[k] + i O[k], x[k] = E[k] + w^k O[k], and both are symmetric.
    """

    def __init__(self, mirror: Mirror, dtype: DType, name: str, sign: int) -> None:
        super().__init__(dtype, name, sign, mirror.areas)
        self.mirror = mirror

    def emit(self) -> Phase:
        """A task is one line."""
        code, mirror, half = self.code, self.mirror, self.mirror.half
        roots = [Arithmetic(Vectors(code, 1), "", self.sign).root(k, 2 * half) for k in range(half)]
        table = self.table("roots", roots)
        with code.loop("%begin", "%end") as task:
            self.places = located(code, task.index, mirror.outer, ["0", "0"])
            self._ends()
            most = VECTOR // self.dtype.real.numpy.itemsize
            for width, index in vectors_and_rest(code, "1", str(half), most):
                self._inner(width, index, table)
        tasks = math.prod([d.size for d in mirror.outer])
        return Phase(code.name, tasks, max(1, TASK // (half * 2 * self.dtype.numpy.itemsize)))

    def _ends(self) -> None:
        """The numbers 0 and half, which have no partner."""
        one, half = Vectors(self.code, 1), self.mirror.half
        if self.mirror.to_real:
            first, last = self._load(one, "0").real, self._load(one, str(half)).real
            self._store(one, "0", ComplexVector(one.add(first, last), one.sub(first, last)))
            return
        z, none = self._load(one, "0"), one.constant(0.0, self.kind)
        self._store(one, "0", ComplexVector(one.add(z.real, z.imag), none))
        self._store(one, str(half), ComplexVector(one.sub(z.real, z.imag), none))

    def _inner(self, width: int, index: str, table: str) -> None:
        v = Vectors(self.code, width)
        math_ = Arithmetic(v, self.kind, self.sign)
        near = self._load(v, index)
        mirrored = self.code.let(f"sub nsw i64 {self.mirror.half - width + 1}, {index}")
        far = self._load(v, mirrored)
        if width > 1:
            order = range(width - 1, -1, -1)
            far = ComplexVector(*[v.shuffle(x, x, order) for x in (far.real, far.imag)])
        far = math_.conj(far)
        even, odd = math_.add(near, far), math_.sub(near, far)
        root = self.from_table(
            table, self.mirror.half, index, lambda address: v.load(address, self.kind)
        )
        # Forward, `sign * i` is -i, the factor of O; back, it is i, that of z.
        rotated = math_.turn(math_.mul(odd, root))
        made = math_.add(even, rotated)
        self._store(v, index, made if self.mirror.to_real else math_.scaled(made, 0.5))

    def _load(self, v: Vectors, index: str) -> ComplexVector:
        at = plus(self.code, self.places[0], index)
        return ComplexVector(*storage.load(v, self.buffers[0], at, self.dtype))

    def _store(self, v: Vectors, index: str, value: ComplexVector) -> None:
        at = plus(self.code, self.places[1], index)
        storage.store(v, (value.real, value.imag), self.buffers[1], at, self.dtype)
