"""Sliding windows: the fold of each window position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from weft.emit.llvm.emitted import Emitted
from weft.emit.llvm.loops.folding import carried, grouped, read_inits, texts
from weft.emit.llvm.single.region import converted, inline, is_neutral
from weft.emit.llvm.single.scan import scan
from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.code import OpenLoop, module_text
from weft.emit.llvm.writer.nest import (
    divided,
    function,
    lanes_of,
    larger,
    lines,
    moved,
    plus,
    pointers,
    smaller,
    times,
    vectors_and_rest,
)
from weft.emit.llvm.writer.storage import Held
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.kernels.nest.loop_dims import LoopDim
from weft.kernels.single_node import SingleNode, strides
from weft.ops.window import ReduceWindow, WindowDims
from weft.records import dataclass

# Sizes of a dim that is better merged with the dim before it.
_SHORT = (1, 3, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15)


def reduce_window(kernel: SingleNode) -> Emitted:
    """A scan if the window grows from one end to the other, else a fold of each position."""
    op = kernel.op
    assert isinstance(op, ReduceWindow)
    if not kernel.outputs[0].size:
        return Emitted("", ())
    found = _running_dim(op.window, kernel.inputs[0].shape[kernel.lead :])
    if found is not None and is_neutral(kernel):
        return scan(kernel, *found)
    return _Windows(*_merge_last_dim(kernel, op.window)).emit()


def is_scan(kernel: SingleNode) -> bool:
    """Whether a window is a running fold from one end to the other."""
    op = kernel.op
    assert isinstance(op, ReduceWindow)
    found = _running_dim(op.window, kernel.inputs[0].shape[kernel.lead :])
    return found is not None and is_neutral(kernel)


def _merge_last_dim(kernel: SingleNode, window: WindowDims) -> tuple[SingleNode, WindowDims]:
    """A kernel and its window, a short last dim without a window merged with the dim before it.

    Where that has no strides, its windows are those of the merged dim, dilated by the short dim:
    whole vectors instead of a few lanes at each place.
    """
    shape = kernel.inputs[0].shape[kernel.lead :]
    # Powers of two are whole vectors of their own, whose edges need no masks.
    if len(shape) < 2 or shape[-1] not in _SHORT or not window.is_trivial(len(shape) - 1):
        return kernel, window
    if window.strides[-2] != 1 or window.base_dilations[-2:] != (1, 1):
        return kernel, window
    by, rank = shape[-1], kernel.lead + len(shape)
    operands = [
        replace(o, shape=(*o.shape[:-2], o.shape[-2] * by)) if len(o.shape) == rank else o
        for o in kernel.operands
    ]
    low, high = window.padding[-2]
    merged = WindowDims(
        window.sizes[:-1],
        window.strides[:-1],
        (*window.padding[:-2], (low * by, high * by)),
        window.base_dilations[:-1],
        (*window.window_dilations[:-2], window.window_dilations[-2] * by),
    )
    return _merge_last_dim(replace(kernel, operands=tuple(operands)), merged)


def _running_dim(window: WindowDims, shape: tuple[int, ...]) -> tuple[int, bool] | None:
    """The dim of a scan, and whether it runs backward."""
    ones = (1,) * len(shape)
    if (window.strides, window.base_dilations, window.window_dilations) != (ones, ones, ones):
        return None
    moving = [d for d in range(len(shape)) if not window.is_trivial(d)]
    if len(moving) != 1:
        return None
    (dim,) = moving
    size = shape[dim]
    if window.sizes[dim] != size or window.padding[dim] not in ((size - 1, 0), (0, size - 1)):
        return None
    return dim, window.padding[dim] == (0, size - 1)


@dataclass(frozen=True, slots=True)
class _Seen:
    """One dim of a window op: input size, padding, stride and dilations."""

    size: int
    places: int
    window: int
    stride: int
    low: int
    base: int  # base dilation
    spread: int  # window dilation

    @property
    def surely_inside(self) -> bool:
        """Whether all window elements are inside, never padding or holes."""
        last = (self.places - 1) * self.stride + (self.window - 1) * self.spread - self.low
        return self.base == 1 and self.low <= 0 and last < self.size


class _Windows:
    """A function whose tasks are pieces of the last dim at points of the others."""

    def __init__(self, kernel: SingleNode, window: WindowDims) -> None:
        self.kernel = kernel
        self.count = len(kernel.outputs)
        lead = kernel.lead
        self.dims = [
            _Seen(*row)
            for row in zip(
                kernel.inputs[0].shape[lead:],
                kernel.outputs[0].shape[lead:],
                window.sizes,
                window.strides,
                [low for low, _ in window.padding],
                window.base_dilations,
                window.window_dilations,
                strict=True,
            )
        ] or [_Seen(1, 1, 1, 1, 0, 1, 1)]
        self.steps = [strides(o.shape) for o in kernel.operands]
        self.dtypes = [o.dtype for o in kernel.outputs]
        # Padding counts as the initial value: if that is neutral, windows are clipped instead.
        self.clip = is_neutral(kernel)
        widest = max(d.numpy.itemsize for d in self.dtypes)
        shape = (*kernel.devices, *[d.places for d in self.dims])
        cost = widest * (math.prod(d.window for d in self.dims) + 1)
        self.lines = lines([LoopDim(n, (0,)) for n in shape], cost)
        self.width = lanes_of(widest, self.dims[-1].places)
        self.code = function(kernel.name, excess_precision=kernel.excess_precision)
        self.buffers = pointers(self.code, len(kernel.operands))

    def emit(self) -> Emitted:
        """The function."""
        code, lead = self.code, self.kernel.lead
        with code.loop("%begin", "%end") as task:
            places = self.dims[-1].places
            point, piece = divided(code, task.index, -(-places // self.lines.piece))
            begin = times(code, piece, self.lines.piece)
            end = smaller(code, plus(code, begin, self.lines.piece), places)
            at = self._coordinates(point, [d.size for d in self.lines.outer])
            offsets = ["0"] * len(self.kernel.operands)
            for d, index in enumerate(at):
                steps = [s[d] if d < lead or n >= 2 * self.count else 0 for n, s in self._steps()]
                offsets = moved(code, offsets, index, steps)
            for width, index in vectors_and_rest(code, begin, end, self.width, self.width // 4):
                self._places(Vectors(code, width), offsets, [*at[lead:], index])
        return Emitted(module_text(code), (self.lines.phase(self.kernel.name),))

    def _steps(self) -> list[tuple[int, tuple[int, ...]]]:
        return list(enumerate(self.steps))

    def _coordinates(self, number: str, sizes: Sequence[int]) -> list[str]:
        """The point of a row-major number."""
        coordinates: list[str] = []
        for size in reversed(sizes):
            number, index = divided(self.code, number, size)
            coordinates.append(index)
        return coordinates[::-1]

    def _places(self, v: Vectors, offsets: list[str], at: list[str]) -> None:
        """Fold and store contiguous window positions, starting at `at`."""
        count = self.count
        inits = folded = read_inits(v, self.kernel, self.buffers, offsets)
        hits: list[str] = []
        loops: list[OpenLoop] = []
        sources = offsets[:count]
        *outer, last = zip(self.dims, at, strict=True)
        with ExitStack() as stack:

            def entered(seen: _Seen, limits: tuple[str, str]) -> str:
                """The offset inside of the window, in a loop unless it is always 0."""
                nonlocal folded
                if seen.window == 1:
                    return "0"
                loops.append(stack.enter_context(self.code.loop(*limits, carried=carried(folded))))
                folded = grouped(loops[-1].carried, folded)
                return loops[-1].index

            for d, (seen, place) in enumerate(outer):
                inside = entered(seen, self._limits(seen, place))
                index, more = self._source(seen, place, inside)
                hits += more
                steps = [s[self.kernel.lead + d] for s in self.steps[:count]]
                sources = moved(self.code, sources, index, steps)
            inside = entered(last[0], ("0", str(last[0].window)))
            values = self._load(v, sources, (*last, inside), hits, inits)
            ends = texts(inline(v, self.kernel.regions[0], [*folded, *values]))
            for loop in reversed(loops):
                loop.carry(*ends)
                ends = list(loop.carried)
        for n, held in enumerate(grouped(ends, inits)):
            there = plus(self.code, offsets[2 * count + n], at[-1])
            storage.store(v, held, self.buffers[2 * count + n], there, self.dtypes[n])

    def _limits(self, seen: _Seen, place: str) -> tuple[str, str]:
        """The part of the window that covers elements; all of it if padding counts."""
        # Holes of a base dilation have to be tested one by one in any case.
        if not self.clip or seen.base > 1 or seen.surely_inside:
            return "0", str(seen.window)
        # place * stride + n * spread - low lies in 0..size
        code = self.code
        first = plus(code, times(code, place, seen.stride), -seen.low)
        # Both divisions round up, as unsigned ones of numbers that are not negative.
        missing = larger(code, code.let(f"sub nsw i64 {seen.spread - 1}, {first}"), 0)
        left = larger(code, code.let(f"sub nsw i64 {seen.size + seen.spread - 1}, {first}"), 0)
        begin, _ = divided(code, missing, seen.spread)
        end, _ = divided(code, left, seen.spread)
        return begin, smaller(code, end, seen.window)

    def _source(self, seen: _Seen, place: str, inside: str) -> tuple[str, list[str]]:
        """The index of the covered element, and the conditions for it to exist."""
        code = self.code
        at = plus(code, times(code, place, seen.stride), times(code, inside, seen.spread))
        at = plus(code, at, -seen.low)
        if seen.surely_inside or (self.clip and seen.base == 1 and seen.window > 1):
            return at, []
        within = (seen.size - 1) * seen.base + 1 if seen.size else 0
        hits = [code.let(f"icmp ult i64 {at}, {within}")]
        if seen.base > 1:
            at, left = divided(code, at, seen.base)
            hits.append(code.let(f"icmp eq i64 {left}, 0"))
        return at, hits

    def _load(
        self,
        v: Vectors,
        sources: list[str],
        last: tuple[_Seen, str, str],
        hits: list[str],
        inits: list[Held],
    ) -> list[Held]:
        """The elements at contiguous window positions; the initial value at the edges."""
        seen, start, inside = last
        step = self.steps[0][-1] if self.steps[0] else 0
        own = v.mul(v.lanes(), v.constant(seen.stride, "i64"))
        first = plus(
            self.code, times(self.code, start, seen.stride), times(self.code, inside, seen.spread)
        )
        first = plus(self.code, first, -seen.low)
        at = v.add(v.splat(Vector(first, "i64")), own)
        mask = self._mask(v, seen, at, hits)
        together = seen.stride == seen.base == 1
        if seen.base > 1:
            at = v.binary("udiv", at, v.constant(seen.base, "i64"))
        values = []
        for n, dtype in enumerate(self.dtypes):
            stored_dtype = self.kernel.operands[n].dtype
            if together:
                place = plus(self.code, sources[n], times(self.code, first, step or 1))
                held = storage.load(v, self.buffers[n], place, stored_dtype, mask)
            else:
                where = v.add(at, v.splat(Vector(sources[n], "i64")))
                held = storage.gather(v, self.buffers[n], where, stored_dtype, mask)
            held = converted(v, held, stored_dtype, dtype)
            if mask is not None:
                pairs = zip(held, inits[n], strict=True)
                held = tuple([v.select(mask, part, init) for part, init in pairs])
            values.append(held)
        return values

    def _mask(self, v: Vectors, seen: _Seen, at: Vector, hits: list[str]) -> Vector | None:
        """The mask of positions that cover an element, or None for all."""
        masks = [v.splat(Vector(hit, "i1")) for hit in hits]
        if not seen.surely_inside:
            within = (seen.size - 1) * seen.base + 1 if seen.size else 0
            masks.append(v.compare("ult", at, v.constant(within, "i64")))
            if seen.base > 1:
                left = v.binary("urem", at, v.constant(seen.base, "i64"))
                masks.append(v.compare("eq", left, v.constant(0, "i64")))
        found: Vector | None = None
        for mask in masks:
            found = mask if found is None else v.binary("and", found, mask)
        return found
