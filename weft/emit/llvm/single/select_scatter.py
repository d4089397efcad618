"""Select and scatter, the backward pass of pooling: one slice of the plain dims a task."""

from __future__ import annotations

import math
from itertools import product

from weft.emit.llvm.emitted import Emitted
from weft.emit.llvm.single.region import inline
from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.code import module_text
from weft.emit.llvm.writer.nest import (
    function,
    lanes_of,
    lines,
    moved,
    plus,
    pointers,
    times,
    vectors_and_rest,
    walk,
)
from weft.emit.llvm.writer.storage import Held
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.kernels.nest.loop_dims import LoopDim, merged
from weft.kernels.single_node import SingleNode, strides
from weft.ops.window import SelectAndScatter

_LARGEST = 64  # elements of a window, unrolled

# Elements, their offset in the slice, and whether the window covers them.
Candidate = tuple[Held, Vector, str]


def select_and_scatter(kernel: SingleNode) -> Emitted:
    """Window positions in order, each adding to the element that it selects."""
    op = kernel.op
    assert isinstance(op, SelectAndScatter)
    return _Selected(kernel, op).emit() if kernel.outputs[0].size else Emitted("", ())


def refuses_select_and_scatter(kernel: SingleNode) -> str | None:
    """Why this kernel is unsupported."""
    op = kernel.op
    assert isinstance(op, SelectAndScatter)
    operand, _, _, out = kernel.operands
    if operand.dtype is not out.dtype or math.prod(op.window_dimensions) > _LARGEST:
        return f"a window of {op.window_dimensions} that gives {out.dtype}"
    return None


class _Selected:
    """The function, vectorized along a plain dim, whose points share no window."""

    def __init__(self, kernel: SingleNode, op: SelectAndScatter) -> None:
        self.kernel = kernel
        self.window = op.window
        lead = kernel.lead
        self.steps = [strides(o.shape) for o in kernel.operands]
        self.sizes = kernel.operands[0].shape[lead:]
        self.places = kernel.operands[1].shape[lead:]
        plain = [d for d in range(len(self.sizes)) if self.window.is_trivial(d)]
        self.moving = [d for d in range(len(self.sizes)) if d not in plain]
        devices = [self._along(d, n) for d, n in enumerate(kernel.devices)]
        rest = [self._along(lead + d, self.sizes[d]) for d in plain]
        self.dtype = kernel.operands[0].dtype
        self.width = 1
        outer = merged([*devices, *rest])
        if outer and outer[-1].steps == (1, 1, 0, 1):
            self.width = lanes_of(self.dtype.numpy.itemsize, outer[-1].size)
        work = math.prod(self.sizes[d] for d in self.moving) * 8 * math.prod(self.window.sizes)
        made = lines(outer or [LoopDim(1, (0, 0, 0, 0))], work)
        # No task gets less than a vector: points of the plain dim share no window, so that any cut
        # of it is safe.
        piece = min(made.line.size, max(made.piece, self.width))
        self.tasks = type(made)(made.outer, made.line, piece, made.chunk)
        self.code = function(kernel.name, excess_precision=kernel.excess_precision)
        self.buffers = pointers(self.code, 4)

    def _along(self, d: int, size: int) -> LoopDim:
        """A walk along a dim; the initial value has device dims only."""
        return LoopDim(size, tuple([s[d] if d < len(s) else 0 for s in self.steps]))

    def emit(self) -> Emitted:
        """The function: fill with the initial value, then the window positions, in order."""
        code, line = self.code, self.tasks.line
        with self.tasks.each(code) as (offsets, begin, end):
            for width, index in vectors_and_rest(code, begin, end, self.width):
                self._slice(Vectors(code, width), moved(code, offsets, index, line.steps))
        return Emitted(module_text(code), (self.tasks.phase(self.kernel.name),))

    def _slice(self, v: Vectors, offsets: list[str]) -> None:
        init = storage.load_splat(v, self.buffers[2], offsets[2], self.dtype)
        lead = self.kernel.lead
        whole = [LoopDim(self.sizes[d], (self.steps[3][lead + d],)) for d in self.moving]
        with walk(self.code, whole, [offsets[3]]) as (place,):
            storage.store(v, init, self.buffers[3], place, self.dtype)
        if math.prod(self.places):
            self._places(v, offsets, ())

    def _places(self, v: Vectors, offsets: list[str], at: tuple[str, ...]) -> None:
        """Loops over the window positions, the first dim outermost."""
        if len(at) == len(self.moving):
            self._place(v, offsets, at)
            return
        dim = self.moving[len(at)]
        with self.code.loop(0, self.places[dim]) as loop:
            step = self.steps[1][self.kernel.lead + dim]
            here = moved(self.code, offsets, loop.index, (0, step, 0, 0))
            self._places(v, here, (*at, loop.index))

    def _place(self, v: Vectors, offsets: list[str], at: tuple[str, ...]) -> None:
        """Select the winner of one window position, and add the source's element to it."""
        inside = product(*[range(self.window.sizes[d]) for d in self.moving])
        seen = [self._candidate(v, offsets, at, part) for part in inside]
        _, winner, any_inside = self._select(v, seen)
        dtype = self.dtype
        with self.code.when(any_inside):
            first = v.add(v.splat(Vector(offsets[3], "i64")), v.lanes())
            target = v.add(first, winner)
            # Lanes are different points of the plain dim: their targets are distinct, and gather,
            # add and scatter cannot lose an update.
            before = storage.gather(v, self.buffers[3], target, dtype)
            addend = storage.load(v, self.buffers[1], offsets[1], dtype)
            (after,) = inline(v, self.kernel.regions[1], [before, addend])
            storage.scatter(v, after, self.buffers[3], target, dtype)

    def _candidate(
        self, v: Vectors, offsets: list[str], at: tuple[str, ...], inside: tuple[int, ...]
    ) -> Candidate:
        """One element of the window."""
        code, lead = self.code, self.kernel.lead
        offset, hit = "0", "true"
        for d, place, n in zip(self.moving, at, inside, strict=True):
            low = self.window.padding[d][0]
            index = plus(code, times(code, place, self.window.strides[d]), n - low)
            within = code.let(f"icmp ult i64 {index}, {self.sizes[d]}")
            hit = within if hit == "true" else code.let(f"and i1 {hit}, {within}")
            offset = plus(code, offset, times(code, index, self.steps[3][lead + d]))
        where = plus(code, offsets[0], offset)
        # Outside of the operand, load its first element; the value is unused.
        safe = code.let(f"select i1 {hit}, i64 {where}, i64 0")
        held = storage.load(v, self.buffers[0], safe, self.dtype)
        return held, v.splat(Vector(offset, "i64")), hit

    def _select(self, v: Vectors, seen: list[Candidate]) -> Candidate:
        """A tournament: winners of neighbouring pairs, of pairs of winners, and so on."""
        while len(seen) > 1:
            pairs = zip(seen[0::2], seen[1::2], strict=False)
            seen = [self._winner(v, a, b) for a, b in pairs] + seen[len(seen) // 2 * 2 :]
        return seen[0]

    def _winner(self, v: Vectors, a: Candidate, b: Candidate) -> Candidate:
        """The first one if the region selects it, or if the other is invalid."""
        code = self.code
        ((keep,),) = inline(v, self.kernel.regions[0], [a[0], b[0]])
        alone = v.splat(Vector(code.let(f"xor i1 {b[2]}, true"), "i1"))
        both = v.binary("and", v.splat(Vector(a[2], "i1")), keep)
        first = v.binary("or", both, alone)
        held = tuple([v.select(first, x, y) for x, y in zip(a[0], b[0], strict=True)])
        return held, v.select(first, a[1], b[1]), code.let(f"or i1 {a[2]}, {b[2]}")
