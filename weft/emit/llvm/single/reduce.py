"""Reductions with arbitrary regions and several inputs, such as argmax."""

from __future__ import annotations

from collections.abc import Sequence

from weft.emit.llvm.emitted import Emitted
from weft.emit.llvm.loops.folding import (
    carried,
    fold_lanes,
    grouped,
    is_commutative,
    read_inits,
    read_inputs,
    texts,
    write_results,
)
from weft.emit.llvm.single.region import converted, inline
from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.code import module_text
from weft.emit.llvm.writer.nest import (
    function,
    lines,
    moved,
    plus,
    pointers,
    times,
    vectors_and_rest,
)
from weft.emit.llvm.writer.storage import Held
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.kernels.nest.loop_dims import LoopDim, merged
from weft.kernels.single_node import SingleNode, strides
from weft.ops.reduce import Reduce


def reduce(kernel: SingleNode) -> Emitted:
    """Vectorized along a kept dim if it is contiguous, else along reduced rows."""
    op = kernel.op
    assert isinstance(op, Reduce)
    return _Reduction(kernel, op).emit() if kernel.outputs[0].size else Emitted("", ())


class _Reduction:
    """The function: an order of dims, kept ones outermost."""

    def __init__(self, kernel: SingleNode, op: Reduce) -> None:
        self.kernel = kernel
        self.count = len(kernel.outputs)
        self.dtypes = [o.dtype for o in kernel.outputs]
        self.code = function(kernel.name, excess_precision=kernel.excess_precision)
        self.buffers = pointers(self.code, len(kernel.operands))
        shape = kernel.inputs[0].shape[kernel.lead :]
        out_dims = [d for d in range(len(shape)) if d not in op.dimensions]
        devices = [self._along(None, d, n) for d, n in enumerate(kernel.devices)]
        self.out_loops = merged(
            [*devices, *[self._along(d, None, shape[d], out_dims) for d in out_dims]]
        )
        self.summed = merged([self._along(d, None, shape[d], out_dims) for d in op.dimensions])
        if any(shape[d] == 0 for d in op.dimensions):
            self.summed = [LoopDim(0, (0,) * len(kernel.operands))]
        widest = max(o.dtype.numpy.itemsize for o in kernel.outputs)
        self.width = max(1, 64 // widest)
        inputs = sum(o.dtype.numpy.itemsize for o in kernel.inputs[: self.count])
        self.cost = inputs
        for dim in self.summed:
            self.cost *= max(1, dim.size)

    def _along(
        self, own: int | None, device: int | None, size: int, out_dims: Sequence[int] = ()
    ) -> LoopDim:
        """A dim of the inputs, or a device dim, with a stride in every operand."""
        lead, steps = self.kernel.lead, []
        for n, operand in enumerate(self.kernel.operands):
            of = strides(operand.shape)
            if device is not None:
                steps.append(of[device])
            elif n < self.count:
                steps.append(of[lead + own] if own is not None else 0)
            elif n >= 2 * self.count and own is not None and own in out_dims:
                steps.append(of[lead + list(out_dims).index(own)])
            else:
                steps.append(0)
        return LoopDim(size, tuple(steps))

    def emit(self) -> Emitted:
        """The function and its tasks."""
        code = self.code
        none = LoopDim(1, (0,) * len(self.kernel.operands))
        across = bool(self.out_loops) and self._is_dense(self.out_loops[-1], outputs=True)
        tasks = lines(self.out_loops or [none], self.cost)
        with tasks.each(code) as (offsets, begin, end):
            width = self.width if across else 1
            for lanes, index in vectors_and_rest(code, begin, end, width):
                here = moved(code, offsets, index, tasks.line.steps)
                if across:
                    self._across(Vectors(code, lanes), here)
                else:
                    self._row(here)
        return Emitted(module_text(code), (tasks.phase(code.name),))

    def _is_dense(self, dim: LoopDim, *, outputs: bool = False) -> bool:
        """Whether a dim is contiguous in all inputs (and outputs)."""
        steps = dim.steps[: self.count]
        if outputs:
            steps += dim.steps[2 * self.count :]
        return dim.size > 1 and all(step == 1 for step in steps)

    # Vectors of results

    def _across(self, v: Vectors, offsets: list[str]) -> None:
        inits = read_inits(v, self.kernel, self.buffers, offsets)
        self._write(v, self._folded(v, self.summed, offsets, inits), offsets)

    def _folded(
        self, v: Vectors, dims: Sequence[LoopDim], offsets: list[str], before: list[Held]
    ) -> list[Held]:
        """The accumulator combined with all elements along dims, in order."""
        if not dims:
            return self._fold(v, before, self._read(v, offsets))
        first, *rest = dims
        with self.code.loop(0, first.size, carried=carried(before)) as loop:
            here = moved(self.code, offsets, loop.index, first.steps)
            made = self._folded(v, rest, here, grouped(loop.carried, before))
            loop.carry(*texts(made))
        return grouped(loop.carried, before)

    def _fold(self, v: Vectors, before: Sequence[Held], here: Sequence[Held]) -> list[Held]:
        return inline(v, self.kernel.regions[0], [*before, *here])

    def _read(self, v: Vectors, offsets: list[str]) -> list[Held]:
        return read_inputs(v, self.kernel, self.buffers, offsets)

    def _write(self, v: Vectors, values: Sequence[Held], offsets: list[str]) -> None:
        write_results(v, self.kernel, values, self.buffers, offsets)

    # One result: lanes fold parts of a row, in order, and then each other

    def _row(self, offsets: list[str]) -> None:
        one = Vectors(self.code, 1)
        inits = read_inits(one, self.kernel, self.buffers, offsets)
        line = self.summed[-1] if self.summed else None
        # Below two vectors, joining the lanes costs more than they save.
        if line is None or line.size < 2 * self.width or not self._is_dense(line):
            self._write(one, self._folded(one, self.summed, offsets, inits), offsets)
            return
        *outer, line = self.summed
        self._write(one, self._rows(outer, line, offsets, inits), offsets)

    def _rows(
        self, dims: Sequence[LoopDim], line: LoopDim, offsets: list[str], before: list[Held]
    ) -> list[Held]:
        """The accumulator combined with all rows at the points of dims."""
        if not dims:
            return self._line(line, offsets, before)
        first, *rest = dims
        with self.code.loop(0, first.size, carried=carried(before)) as loop:
            here = moved(self.code, offsets, loop.index, first.steps)
            made = self._rows(rest, line, here, grouped(loop.carried, before))
            loop.carry(*texts(made))
        return grouped(loop.carried, before)

    def _line(self, line: LoopDim, offsets: list[str], before: list[Held]) -> list[Held]:
        """The accumulator combined with a row: each lane folds an equal part of it, in order.

        For commutative folds, lanes take interleaved elements instead: contiguous loads.
        """
        v = Vectors(self.code, self.width)
        length = line.size // v.width
        # A fold that is associative alone, such as the first of equals, must not see elements out
        # of order.
        apart = 1 if is_commutative(self.kernel.regions[0]) else length
        step = v.width if apart == 1 else 1
        folded = self._lanes(v, offsets, "0", apart)
        with self.code.loop(1, length, carried=carried(folded)) as loop:
            index = times(self.code, loop.index, step)
            here = self._lanes(v, offsets, index, apart)
            made = self._fold(v, grouped(loop.carried, folded), here)
            loop.carry(*texts(made))
        whole = fold_lanes(v, self.kernel.regions[0], grouped(loop.carried, folded))
        one = Vectors(self.code, 1)
        before = self._fold(one, before, whole)
        rest = LoopDim(line.size - length * v.width, line.steps)
        tail = moved(self.code, offsets, str(length * v.width), line.steps)
        return self._folded(one, [rest], tail, before)

    def _lanes(self, v: Vectors, offsets: list[str], index: str, apart: int) -> list[Held]:
        """The element of that number of each lane's part; parts begin so far apart."""
        here = [plus(self.code, o, index) for o in offsets[: self.count]]
        if apart == 1:
            return self._read(v, here)
        elements, lanes = [], v.mul(v.lanes(), v.constant(apart, "i64"))
        for n, dtype in enumerate(self.dtypes):
            stored_dtype = self.kernel.operands[n].dtype
            at = v.add(v.splat(Vector(here[n], "i64")), lanes)
            held = storage.gather(v, self.buffers[n], at, stored_dtype)
            elements.append(converted(v, held, stored_dtype, dtype))
        return elements
