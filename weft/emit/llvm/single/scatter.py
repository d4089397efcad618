"""Scatter: updates combined into a tensor, in the order of the updates.

Tasks partition the dims that are not indexed (devices, batches, window dims), so that no two tasks
write to one element: no atomics, and deterministic. A task iterates over all index rows in order.
Many updates of few elements are combined in parts (`scatter_parts`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack

from weft.emit.llvm.emitted import Emitted, Phase
from weft.emit.llvm.single.copies import copy_whole
from weft.emit.llvm.single.gather import read_index
from weft.emit.llvm.single.region import inline
from weft.emit.llvm.single.scatter_parts import combining, part_count, table_bytes, table_of
from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.code import Writer, module_text
from weft.emit.llvm.writer.elements import bytes_of
from weft.emit.llvm.writer.nest import (
    LineTasks,
    cut,
    function,
    lanes_of,
    larger,
    moved,
    plus,
    pointers,
    smaller,
    times,
    vectors_and_rest,
)
from weft.emit.llvm.writer.vector import Vectors
from weft.kernels.nest.loop_dims import LoopDim, merged
from weft.kernels.single_node import SingleNode, strides
from weft.ops.index import Windows
from weft.ops.scatter import Scatter
from weft.records import dataclass

_PIECE = 256  # elements of a window a task: every task reads all indices again


@dataclass(frozen=True, slots=True)
class _Dim:
    """A dim of the updates: its walk, and the input dim that it runs along."""

    along: LoopDim
    target: int | None  # input dim; None if it counts index rows
    pointed: bool  # whether the input dim is indexed
    batching: bool = False

    @property
    def ordered(self) -> bool:
        """Whether two of its points may fall on one element."""
        return self.pointed or (self.target is None and not self.batching)


def scatter(kernel: SingleNode) -> Emitted:
    """The inputs copied, unless they alias the results; then the updates, in order."""
    op = kernel.op
    assert isinstance(op, Scatter)
    count = len(kernel.outputs)
    outputs = kernel.outputs
    first = len(kernel.inputs)
    codes, phases = [], []
    for n, out in enumerate(outputs):
        # An input that may be overwritten is in the result's memory already: the copy sees equal
        # addresses and does nothing.
        if out.size:
            code, phase = copy_whole(kernel, n, first + n, f"{kernel.name}_copy{n}")
            codes.append(code)
            phases.append(phase)
    shared = 0
    if outputs[0].size and kernel.operands[count + 1].size:
        work = _Scatter(kernel, op)
        parts = part_count(kernel) if work.counts_rows else 1
        if parts > 1:
            combine, phase = combining(kernel, parts)
            codes += [work.emit_parts(parts), combine]
            phases += [Phase(kernel.name, parts), phase]
            shared = parts * table_bytes(outputs[0])
        else:
            code, tasks = work.emit()
            codes.append(code)
            phases.append(tasks.phase(code.name))
    return Emitted(module_text(*codes), tuple(phases), shared=shared)


def refuses_scatter(kernel: SingleNode) -> str | None:
    """Why this kernel is unsupported."""
    pairs = zip(kernel.inputs, kernel.outputs, strict=False)
    wider = any(given.dtype is not made.dtype for given, made in pairs)
    return "it gives a wider type than its inputs have" if wider else None


class _Scatter:
    """The function that applies the updates."""

    def __init__(self, kernel: SingleNode, op: Scatter) -> None:
        self.kernel = kernel
        self.windows = op.windows
        self.count = len(kernel.outputs)
        self.lead = kernel.lead
        self.first = len(kernel.inputs)  # operand number of the first output
        self.shape = kernel.outputs[0].shape[kernel.lead :]
        self.steps = [strides(o.shape) for o in kernel.operands]
        self.dims = self._dims(self.windows)
        self.vector = self._vector()
        free = [d.along for d in self.dims if not d.ordered and d is not self.vector]
        devices = [
            LoopDim(n, tuple([s[d] for s in self.steps])) for d, n in enumerate(kernel.devices)
        ]
        self.ordered = [d for d in self.dims if d.ordered and d is not self.vector]
        self.tasks = self._tasks(merged([*devices, *free]))

    def _dims(self, windows: Windows) -> list[_Dim]:
        """The dims of the updates, in order."""
        lead, count = self.lead, self.count
        indices, update = self.kernel.operands[count], self.kernel.operands[count + 1]
        operand_dims = iter(windows.operand_dims(len(self.shape)))
        rows = iter([d for d in range(len(indices.shape) - lead) if d != windows.vector])
        batching = dict(zip(windows.indices_batching, windows.operand_batching, strict=True))
        dims = []
        for dim, size in enumerate(update.shape[lead:]):
            if dim in windows.window:
                target: int | None = next(operand_dims)
                row = None
            else:
                row = next(rows)
                target = batching.get(row)
            along = LoopDim(size, self._step(target, row, dim))
            pointed = row is None and target in windows.start_map
            dims.append(_Dim(along, target, pointed, row is not None and target is not None))
        return dims

    def _step(self, target: int | None, row: int | None, update: int) -> tuple[int, ...]:
        """The strides of a dim of the updates in every operand."""
        steps = []
        for n, own in enumerate(self.steps):
            if n < self.count:
                steps.append(0)  # the inputs are not read here
            elif n == self.count:
                steps.append(0 if row is None else own[self.lead + row])
            elif n < self.first:
                steps.append(own[self.lead + update])
            else:
                steps.append(0 if target is None else own[self.lead + target])
        return tuple(steps)

    def _vector(self) -> _Dim | None:
        """The last dim of the updates, if it is contiguous in them and in the results."""
        if not self.dims:
            return None
        last = self.dims[-1]
        steps = last.along.steps
        whole = all(step == 1 for step in steps[self.count + 1 :])
        return last if whole and last.target is not None and not last.batching else None

    def _tasks(self, outer: list[LoopDim]) -> LineTasks:
        """The tasks: points of unordered dims, and pieces of the vectorized dim if it is long."""
        cost = 2 * sum(bytes_of(o) for o in self.kernel.outputs)
        cost *= math.prod(d.along.size for d in self.ordered)
        # A line that is indexed is clipped by each row of indices: it is not cut in pieces.
        if self.vector is None or self.vector.pointed:
            cost *= 1 if self.vector is None else self.vector.along.size
            return cut(outer, LoopDim(1, (0,) * len(self.steps)), 1, cost)
        line = self.vector.along
        return cut(outer, line, min(line.size, _PIECE), cost)

    def emit(self) -> tuple[Writer, LineTasks]:
        """The function and its tasks."""
        kernel = self.kernel
        code = function(kernel.name, excess_precision=kernel.excess_precision)
        buffers = pointers(code, len(self.kernel.operands))
        with self.tasks.each(code) as (offsets, begin, end), ExitStack() as loops:
            self._window(code, buffers, offsets, self.ordered, loops, (begin, end))
        return code, self.tasks

    def _window(
        self,
        code: Writer,
        buffers: list[str],
        offsets: list[str],
        ordered: Sequence[_Dim],
        loops: ExitStack,
        piece: tuple[str, str] | None = None,
    ) -> None:
        """Loops over ordered dims, and the update at each point; a whole line if no piece."""
        positions: dict[int, str] = {}  # offset inside of the window, by input dim
        for dim in ordered:
            loop = loops.enter_context(code.loop(0, dim.along.size))
            offsets = moved(code, offsets, loop.index, dim.along.steps)
            if dim.target is not None:
                positions[dim.target] = loop.index
        self._row(code, buffers, offsets, positions, piece or ("0", str(self.tasks.line.size)))

    @property
    def counts_rows(self) -> bool:
        """Whether one task has all updates, by index rows first."""
        return self.tasks.tasks == 1 and bool(self.ordered) and self.ordered[0].target is None

    def emit_parts(self, parts: int) -> Writer:
        """The function that combines each part of the index rows into a table of its own."""
        kernel = self.kernel
        code = function(kernel.name, excess_precision=kernel.excess_precision)
        buffers = pointers(code, len(kernel.operands))
        rows, *inner = self.ordered
        each = -(-rows.along.size // parts)
        with code.loop("%begin", "%end") as part:
            table = table_of(code, kernel, part.index)
            first = times(code, part.index, each)
            last = smaller(code, plus(code, first, each), rows.along.size)
            with ExitStack() as loops:
                row = loops.enter_context(code.loop(first, larger(code, first, last)))
                offsets = moved(code, ["0"] * len(self.steps), row.index, rows.along.steps)
                self._window(code, [*buffers[:-1], table], offsets, inner, loops)
        return code

    def _row(
        self,
        code: Writer,
        buffers: list[str],
        offsets: list[str],
        inside: dict[int, str],
        piece: tuple[str, str],
    ) -> None:
        """Apply one index row's window, clipped to the input."""
        starts = self._starts(code, buffers, offsets)
        clipped = self.vector.target if self.vector and self.vector.pointed else None
        hit, shift = "true", "0"
        for dim, start in starts.items():
            place = plus(code, start, inside.get(dim, "0"))
            shift = plus(code, shift, times(code, start, self.steps[self.first][self.lead + dim]))
            if dim != clipped:
                # Unsigned: a negative index is a huge one, so one comparison checks both ends.
                within = code.let(f"icmp ult i64 {place}, {self.shape[dim]}")
                hit = within if hit == "true" else code.let(f"and i1 {hit}, {within}")
        offsets = [plus(code, o, shift) if n >= self.first else o for n, o in enumerate(offsets)]
        with ExitStack() as guard:
            if hit != "true":
                guard.enter_context(code.when(hit))
            if self.vector is None:
                self._combine(code, 1, buffers, offsets)
                return
            begin, end = piece
            if clipped is not None:
                begin, end = self._clip(code, starts[clipped], self.shape[clipped])
            self._line(code, buffers, offsets, begin, end)

    def _starts(self, code: Writer, buffers: list[str], offsets: list[str]) -> dict[int, str]:
        """The start of a row's window, by input dim."""
        indices = self.kernel.operands[self.count]
        vector = self.windows.vector + self.lead
        step = self.steps[self.count][vector] if vector < len(indices.shape) else 0
        base, offset = buffers[self.count], offsets[self.count]
        return {
            dim: read_index(code, base, plus(code, offset, n * step), indices)
            for n, dim in enumerate(self.windows.start_map)
        }

    def _clip(self, code: Writer, start: str, room: int) -> tuple[str, str]:
        """The valid part of the vectorized dim."""
        assert self.vector is not None
        size = self.vector.along.size
        # clamped: a far start must not overflow
        near = smaller(code, larger(code, start, -size), room)
        begin = larger(code, code.let(f"sub nsw i64 0, {near}"), 0)
        end = smaller(code, code.let(f"sub nsw i64 {room}, {near}"), size)
        return begin, larger(code, begin, end)

    def _line(
        self, code: Writer, buffers: list[str], offsets: list[str], begin: str, end: str
    ) -> None:
        assert self.vector is not None
        widest = max(bytes_of(o) for o in self.kernel.outputs)
        lanes = lanes_of(widest, self.vector.along.size)
        for width, index in vectors_and_rest(code, begin, end, lanes):
            self._combine(
                code, width, buffers, moved(code, offsets, index, self.vector.along.steps)
            )

    def _combine(self, code: Writer, width: int, buffers: list[str], offsets: list[str]) -> None:
        """Combine contiguous elements of results and updates."""
        v = Vectors(code, width)
        dtypes = [o.dtype for o in self.kernel.outputs]
        firsts = (self.first, self.count + 1)
        args = [
            storage.load(v, buffers[first + n], offsets[first + n], dtype)
            for first in firsts
            for n, dtype in enumerate(dtypes)
        ]
        made = inline(v, self.kernel.regions[0], args)
        for n, (value, dtype) in enumerate(zip(made, dtypes, strict=True)):
            storage.store(v, value, buffers[self.first + n], offsets[self.first + n], dtype)
