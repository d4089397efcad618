"""Prefix folds (scans) along a dim: cumulative sums, products, maxima and the like."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.emit.llvm.emitted import Emitted
from weft.emit.llvm.loops.folding import (
    carried,
    first_lane,
    fold_lanes,
    grouped,
    in_every_lane,
    is_commutative,
    read_inits,
    read_inputs,
    shuffled,
    texts,
    write_results,
)
from weft.emit.llvm.single.region import inline
from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.code import module_text
from weft.emit.llvm.writer.elements import address
from weft.emit.llvm.writer.nest import (
    TASK,
    cut,
    divided,
    function,
    lanes_of,
    lines,
    located,
    moved,
    plus,
    pointers,
    smaller,
    times,
    vectors_and_rest,
)
from weft.emit.llvm.writer.storage import Held
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.kernels.nest.loop_dims import LoopDim, merged
from weft.kernels.single_node import SingleNode, strides

_TOGETHER = 4  # vectors of columns that one task scans side by side
_PIECE = 1 << 15  # elements of a long row a task
_ROWS = 8  # fewer long rows than these are split into pieces
_SLOT = 8  # bytes of one part of a piece's total


def scan(kernel: SingleNode, dim: int, backward: bool) -> Emitted:
    """out[.., i, ..] = the fold of the input's elements up to i, or from i on if backward."""
    fold = _Fold(kernel, kernel.lead + dim, backward)
    return fold.along_rows() if fold.inner == 1 else fold.down_columns()


class _Fold:
    """The function of a scan."""

    def __init__(
        self, kernel: SingleNode, dim: int, backward: bool, name: str | None = None
    ) -> None:
        self.kernel = kernel
        self.backward = backward
        self.count = len(kernel.outputs)
        self.dtypes = [o.dtype for o in kernel.outputs]
        self.steps = [strides(o.shape) for o in kernel.operands]
        self.shape = kernel.outputs[0].shape
        self.dim = dim
        self.length = self.shape[dim]
        self.inner = math.prod(self.shape[dim + 1 :])
        widest = max(d.numpy.itemsize for d in self.dtypes)
        self.width = lanes_of(widest, self.length if self.inner == 1 else self.inner)
        self.cost = 2 * sum(d.numpy.itemsize for d in self.dtypes)
        self.code = function(name or kernel.name, excess_precision=kernel.excess_precision)
        self.buffers = pointers(self.code, len(kernel.operands))

    def _along(self, d: int) -> LoopDim:
        """A dim of the walk; the initial values have device dims only."""
        lead = self.kernel.lead
        own = [s[d] if d < lead or not self._is_init(n) else 0 for n, s in enumerate(self.steps)]
        return LoopDim(self.shape[d], tuple(own))

    def _is_init(self, n: int) -> bool:
        return self.count <= n < 2 * self.count

    def _line(self) -> LoopDim:
        return self._along(self.dim)

    def _inits(self, v: Vectors, offsets: list[str]) -> list[Held]:
        return read_inits(v, self.kernel, self.buffers, offsets)

    def _fold(self, v: Vectors, before: Sequence[Held], here: Sequence[Held]) -> list[Held]:
        """The accumulator combined with new elements, in the scan's order."""
        args = (*here, *before) if self.backward else (*before, *here)
        return inline(v, self.kernel.regions[0], args)

    def _read(self, v: Vectors, offsets: list[str]) -> list[Held]:
        return read_inputs(v, self.kernel, self.buffers, offsets)

    def _write(self, v: Vectors, values: Sequence[Held], offsets: list[str]) -> None:
        write_results(v, self.kernel, values, self.buffers, offsets)

    # Down columns: vectors of contiguous columns

    def down_columns(self) -> Emitted:
        """Tasks are groups of columns."""
        code = self.code
        outer = [self._along(d) for d in range(self.dim)]
        inner = merged([self._along(d) for d in range(self.dim + 1, len(self.shape))])
        *more, line = inner
        # Several independent columns hide the latency of the fold, which is one chain down each.
        many = _TOGETHER * self.width if line.size >= _TOGETHER * self.width else self.width
        widths = dict.fromkeys((many, self.width))
        block = max(many, TASK // (self.cost * self.length) // many * many)
        tasks = cut(merged([*outer, *more]), line, min(line.size, block), self.cost * self.length)
        with tasks.each(code) as (offsets, begin, end):
            for width, index in vectors_and_rest(code, begin, end, *widths):
                self._column(Vectors(code, width), moved(code, offsets, index, line.steps))
        return Emitted(module_text(code), (tasks.phase(code.name),))

    def _column(self, v: Vectors, offsets: list[str]) -> None:
        inits = self._inits(v, offsets)
        steps = self._line().steps
        with self.code.loop(0, self.length, carried=carried(inits)) as loop:
            before = grouped(loop.carried, inits)
            here = moved(self.code, offsets, self._index(loop.index), steps)
            made = self._fold(v, before, self._read(v, here))
            self._write(v, made, here)
            loop.carry(*texts(made))

    def _index(self, number: str) -> str:
        """The index after that many elements."""
        if not self.backward:
            return number
        return self.code.let(f"sub nsw i64 {self.length - 1}, {number}")

    # Along rows: a prefix fold inside of a vector, then with the carry

    def along_rows(self) -> Emitted:
        """Tasks are rows; or pieces of few long rows, after a pass for their carries."""
        outer = merged([self._along(d) for d in range(self.dim)])
        rows = math.prod(d.size for d in outer)
        # Rows are sequential, so few long ones would leave threads idle; two passes read the row
        # twice.
        if self.length >= 2 * _PIECE and rows < _ROWS:
            return self._in_pieces(outer)
        none = LoopDim(1, (0,) * len(self.steps))
        tasks = lines([*outer, none], self.cost * self.length)
        with tasks.each(self.code) as (offsets, _, _):
            inits = self._inits(Vectors(self.code, 1), offsets)
            self._row(offsets, ("0", str(self.length)), inits)
        return Emitted(module_text(self.code), (tasks.phase(self.code.name),))

    def _in_pieces(self, outer: list[LoopDim]) -> Emitted:
        """Two phases: the total of every piece; then each piece, from the totals before it."""
        totals = _Fold(self.kernel, self.dim, self.backward, f"{self.kernel.name}_totals")
        tasks = cut(outer, LoopDim(self.length, (0,) * len(self.steps)), _PIECE, self.cost)
        pieces = -(-self.length // _PIECE)
        for fold, is_first in ((totals, True), (self, False)):
            code, one = fold.code, Vectors(fold.code, 1)
            (shared,) = pointers(code, 1, first=len(self.steps))
            with code.loop("%begin", "%end") as task:
                row, piece = divided(code, task.index, pieces)
                offsets = located(code, row, outer, ["0"] * len(self.steps))
                begin = times(code, piece, _PIECE)
                end = smaller(code, plus(code, begin, _PIECE), self.length)
                # Initial values are neutral (`reduce_window` asks): counting them once for each
                # piece, or each lane, changes nothing.
                carries = fold._inits(one, offsets)
                if is_first:
                    carries = fold._total(offsets, (begin, end), carries)
                    fold._keep(shared, task.index, carries)
                else:
                    first = code.let(f"sub nsw i64 {task.index}, {piece}")
                    carries = fold._before(shared, (first, task.index), carries)
                    fold._row(offsets, (begin, end), carries)
        phases = (tasks.phase(totals.code.name), tasks.phase(self.code.name))
        shared_bytes = tasks.tasks * _SLOT * sum(storage.parts(d) for d in self.dtypes)
        text = module_text(totals.code, self.code)
        return Emitted(text, phases, shared=shared_bytes)

    def _slots(self, base: str, number: str, like: Sequence[Held]) -> list[str]:
        """The slots of a piece's total."""
        parts = [part for held in like for part in held]
        first = times(self.code, number, len(parts))
        return [
            address(self.code, base, plus(self.code, first, n), "i64") for n in range(len(parts))
        ]

    def _keep(self, base: str, number: str, values: list[Held]) -> None:
        one = Vectors(self.code, 1)
        parts = [part for held in values for part in held]
        for part, slot in zip(parts, self._slots(base, number, values), strict=True):
            one.store(part, slot)

    def _before(self, base: str, pieces: tuple[str, str], inits: list[Held]) -> list[Held]:
        """The initial values combined with the totals of earlier pieces."""
        one = Vectors(self.code, 1)
        with self.code.loop(*pieces, carried=carried(inits)) as loop:
            slots = iter(self._slots(base, loop.index, inits))
            here = [tuple([one.load(next(slots), p.kind) for p in held]) for held in inits]
            made = self._fold(one, grouped(loop.carried, inits), here)
            loop.carry(*texts(made))
        return grouped(loop.carried, inits)

    def _row(
        self, offsets: list[str], piece: tuple[str, str], inits: list[Held], *, write: bool = True
    ) -> list[Held]:
        """Scan a piece of a row from its carry; returns the final carry."""
        code, line = self.code, self._line()
        begin, end = piece
        count = code.let(f"sub nsw i64 {end}, {begin}")
        whole = plus(code, code.let(f"and i64 {count}, {-self.width}"), begin)
        v = Vectors(code, self.width)
        wide = in_every_lane(v, inits)
        with code.loop(begin, whole, self.width, carried=carried(wide)) as loop:
            before = grouped(loop.carried, wide)
            index = loop.index
            if self.backward:
                index = code.let(f"sub nsw i64 {self.length - self.width}, {index}")
            here = moved(code, offsets, index, line.steps)
            # The prefix inside of a vector does not depend on the carry: only one fold a vector is
            # on the chain from vector to vector.
            inside = self._prefix(v, self._read(v, here))
            if write:
                self._write(v, self._fold(v, before, inside), here)
            totals = [tuple([self._last(v, part) for part in held]) for held in inside]
            after = self._fold(v, before, totals)
            loop.carry(*texts(after))
        left = first_lane(v, grouped(loop.carried, wide))
        return self._singly(offsets, (whole, end), left, write=write)

    def _total(self, offsets: list[str], piece: tuple[str, str], inits: list[Held]) -> list[Held]:
        """The total of a piece of a row."""
        code, region, (begin, end) = self.code, self.kernel.regions[0], piece
        # Lanes take every n-th element, which reorders the fold.
        if not is_commutative(region):
            return self._row(offsets, piece, inits, write=False)
        v = Vectors(code, _TOGETHER * self.width)
        wide = in_every_lane(v, inits)
        count = code.let(f"sub nsw i64 {end}, {begin}")
        whole = plus(code, code.let(f"and i64 {count}, {-v.width}"), begin)
        with code.loop(begin, whole, v.width, carried=carried(wide)) as loop:
            index = loop.index
            if self.backward:
                index = code.let(f"sub nsw i64 {self.length - v.width}, {index}")
            here = moved(code, offsets, index, self._line().steps)
            loop.carry(*texts(self._fold(v, grouped(loop.carried, wide), self._read(v, here))))
        left = fold_lanes(v, region, grouped(loop.carried, wide))
        return self._singly(offsets, (whole, end), left, write=False)

    def _singly(
        self, offsets: list[str], piece: tuple[str, str], left: list[Held], *, write: bool
    ) -> list[Held]:
        code, one = self.code, Vectors(self.code, 1)
        with code.loop(*piece, carried=carried(left)) as loop:
            before = grouped(loop.carried, left)
            here = moved(code, offsets, self._index(loop.index), self._line().steps)
            made = self._fold(one, before, self._read(one, here))
            if write:
                self._write(one, made, here)
            loop.carry(*texts(made))
        return grouped(loop.carried, left)

    def _prefix(self, v: Vectors, values: list[Held]) -> list[Held]:
        """The prefix fold inside of vectors, in log2(width) steps (Hillis-Steele)."""
        distance = 1
        while distance < v.width:
            shifted = [tuple([self._shift(v, p, distance) for p in held]) for held in values]
            made = self._fold(v, shifted, values)
            values = [
                tuple([self._choose(v, distance, a, b) for a, b in zip(new, old, strict=True)])
                for new, old in zip(made, values, strict=True)
            ]
            distance *= 2
        return values

    def _shift(self, v: Vectors, part: Vector, distance: int) -> Vector:
        """Lanes shifted up by a distance; lanes without a source keep their own."""
        away = distance if self.backward else -distance
        order = [n + away if 0 <= n + away < v.width else n for n in range(v.width)]
        return shuffled(v, part, order)

    def _choose(self, v: Vectors, distance: int, new: Vector, old: Vector) -> Vector:
        """The new value in lanes with a source at that distance, the old one elsewhere."""
        has = [n + distance < v.width if self.backward else n >= distance for n in range(v.width)]
        lanes = ", ".join(f"i1 {str(yes).lower()}" for yes in has)
        return v.select(Vector(f"<{lanes}>", "i1", v.width), new, old)

    def _last(self, v: Vectors, part: Vector) -> Vector:
        """The last lane, broadcast."""
        return shuffled(v, part, [0 if self.backward else v.width - 1] * v.width)
