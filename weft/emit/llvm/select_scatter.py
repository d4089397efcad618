"""Select and scatter: what pooling's backward pass does, one slice of the plain dims a task."""

from __future__ import annotations

import math
from itertools import product

from weft.emit.llvm import storage
from weft.emit.llvm.code import module_text
from weft.emit.llvm.nest import (
    Along,
    function,
    lines,
    merged,
    moved,
    plus,
    pointers,
    times,
    walk,
)
from weft.emit.llvm.region import inline
from weft.emit.llvm.storage import Held
from weft.emit.llvm.vector import Vector, Vectors
from weft.errors import Unsupported
from weft.kernels.alone import Alone, strides
from weft.kernels.emitted import Emitted
from weft.ops.window import SelectAndScatter

_LARGEST = 64  # elements of a window, all of which are looked at in straight code

Candidate = tuple[Held, str, str]  # an element, its offset in the operand, whether there is one


def select_and_scatter(kernel: Alone) -> Emitted:
    """The places of the window in order, each adding to the element that it selects."""
    op = kernel.op
    assert isinstance(op, SelectAndScatter)
    operand, _, _, out = kernel.operands
    if operand.dtype is not out.dtype or math.prod(op.window_dimensions) > _LARGEST:
        raise Unsupported(
            f"{op.name} with a window of {op.window_dimensions} that gives {out.dtype}",
            help="run the node as the runtime has it",
        )
    return _Selected(kernel, op).emit() if out.size else Emitted("", ())


class _Selected:
    """The function."""

    def __init__(self, kernel: Alone, op: SelectAndScatter) -> None:
        self.kernel = kernel
        self.window = op.window
        lead = kernel.lead
        self.steps = [strides(o.shape) for o in kernel.operands]
        self.sizes = kernel.operands[0].shape[lead:]
        self.places = kernel.operands[1].shape[lead:]
        plain = [d for d in range(len(self.sizes)) if self.window.is_plain(d)]
        self.moving = [d for d in range(len(self.sizes)) if d not in plain]
        devices = [self._along(d, n) for d, n in enumerate(kernel.devices)]
        rest = [self._along(lead + d, self.sizes[d]) for d in plain]
        none = Along(1, (0, 0, 0, 0))
        work = math.prod(self.sizes[d] for d in self.moving) * operand_cost(op)
        self.tasks = lines([*merged([*devices, *rest]), none], work, whole=True)
        self.code = function(kernel.name)
        self.buffers = pointers(self.code, 4)
        self.dtype = kernel.operands[0].dtype
        self.v = Vectors(self.code, 1)

    def _along(self, d: int, size: int) -> Along:
        """A walk along a dim; the initial value has device dims only."""
        return Along(size, tuple([s[d] if d < len(s) else 0 for s in self.steps]))

    def emit(self) -> Emitted:
        """The function: the initial value everywhere, then the places, in order."""
        with self.tasks.each(self.code) as (offsets, _, _):
            init = storage.load(self.v, self.buffers[2], offsets[2], self.dtype)
            lead = self.kernel.lead
            whole = [Along(self.sizes[d], (self.steps[3][lead + d],)) for d in self.moving]
            with walk(self.code, whole, [offsets[3]]) as (place,):
                storage.store(self.v, init, self.buffers[3], place, self.dtype)
            if math.prod(self.places):
                self._places(offsets)
        return Emitted(module_text(self.code), (self.tasks.phase(self.kernel.name),))

    def _places(self, offsets: list[str], at: tuple[str, ...] = ()) -> None:
        """Loops over the places, the first dim outermost."""
        if len(at) == len(self.moving):
            self._place(offsets, at)
            return
        dim = self.moving[len(at)]
        with self.code.loop(0, self.places[dim]) as loop:
            step = self.steps[1][self.kernel.lead + dim]
            here = moved(self.code, offsets, loop.index, (0, step, 0, 0))
            self._places(here, (*at, loop.index))

    def _place(self, offsets: list[str], at: tuple[str, ...]) -> None:
        """Select what one place sees, and add the source's element to it."""
        seen = [self._candidate(offsets, at, inside) for inside in self._window()]
        _, chosen, found = self._select(seen)
        code, v, dtype = self.code, self.v, self.dtype
        with code.when(found):
            target = plus(code, offsets[3], chosen)
            before = storage.load(v, self.buffers[3], target, dtype)
            given = storage.load(v, self.buffers[1], offsets[1], dtype)
            (after,) = inline(v, self.kernel.regions[1], [before, given])
            storage.store(v, after, self.buffers[3], target, dtype)

    def _window(self) -> list[tuple[int, ...]]:
        return list(product(*[range(self.window.sizes[d]) for d in self.moving]))

    def _candidate(
        self, offsets: list[str], at: tuple[str, ...], inside: tuple[int, ...]
    ) -> Candidate:
        """The element of the window that is so far inside of it."""
        code, lead = self.code, self.kernel.lead
        offset, hit = "0", "true"
        for d, place, n in zip(self.moving, at, inside, strict=True):
            low = self.window.padding[d][0]
            index = plus(code, times(code, place, self.window.strides[d]), n - low)
            within = code.let(f"icmp ult i64 {index}, {self.sizes[d]}")
            hit = within if hit == "true" else code.let(f"and i1 {hit}, {within}")
            offset = plus(code, offset, times(code, index, self.steps[0][lead + d]))
        where = plus(code, offsets[0], offset)
        # Outside there is nothing to read; the first element stands for what is not used.
        safe = code.let(f"select i1 {hit}, i64 {where}, i64 0")
        return storage.load(self.v, self.buffers[0], safe, self.dtype), offset, hit

    def _select(self, seen: list[Candidate]) -> Candidate:
        """The winner of neighbouring pairs, of the winners' pairs, and so on."""
        while len(seen) > 1:
            pairs = zip(seen[0::2], seen[1::2], strict=False)
            seen = [self._winner(a, b) for a, b in pairs] + seen[len(seen) // 2 * 2 :]
        return seen[0]

    def _winner(self, a: Candidate, b: Candidate) -> Candidate:
        """The first one if the region says so, or if there is no other."""
        code, v = self.code, self.v
        ((keep,),) = inline(v, self.kernel.regions[0], [a[0], b[0]])
        both = code.let(f"and i1 {a[2]}, {keep.text}")
        alone = code.let(f"xor i1 {b[2]}, true")
        first = Vector(code.let(f"or i1 {both}, {alone}"), "i1")
        held = tuple([v.select(first, x, y) for x, y in zip(a[0], b[0], strict=True)])
        offset = code.let(f"select i1 {first.text}, i64 {a[1]}, i64 {b[1]}")
        return held, offset, code.let(f"or i1 {a[2]}, {b[2]}")


def operand_cost(op: SelectAndScatter) -> int:
    """The bytes that stand for the work at one place."""
    return 8 * math.prod(op.window_dimensions)
