"""Rows and sums of their columns in one pass: gradients of norms, and those of their weights.

Each program computes every n-th row and adds to sums of columns, which stay in registers; it writes
these partial sums to scratch, and a second kernel adds them up and computes the steps that follow.
Loads of the next rows are in flight while a row is computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from weft.emit.triton import dtypes
from weft.emit.triton.emitted import GridLaunch
from weft.emit.triton.loops import RowLoops, finished, program_number
from weft.emit.triton.parts.sizes import levels_of, options_of, power_of_two
from weft.emit.triton.rebuild import StepList
from weft.emit.triton.tiles import TileAxis, TileWriter, needed_by
from weft.ir.types import DType
from weft.kernels.kernel import (
    Affine,
    Contract,
    Kernel,
    Load,
    Operand,
    Pick,
    Reduce,
    Store,
    args_of,
    held_in,
)
from weft.records import dataclass

LONGEST = 1 << 14  # elements of a row, which is held in registers
ROWS = 1 << 10  # rows from which partial sums pay off
PROGRAMS = 132  # one for each multiprocessor
TILE = 1 << 12  # elements of a tile of short rows
IN_FLIGHT = 200 << 10  # bytes of shared memory for rows on their way


@dataclass(frozen=True, slots=True)
class CrossedSums:
    """Sums along the columns of a kernel's rows."""

    columns: tuple[int, ...]  # the factors that these sums run along
    row: tuple[int, ...]  # the factors of a row
    sums: tuple[int, ...]  # their steps
    late: frozenset[int]  # the steps that depend on them


def crossed_sums(kernel: Kernel) -> CrossedSums | None:
    """The sums along columns of a kernel of rows, of collapsed loops; None if it has another form.

    Steps after the sums along columns do not run along these again.
    """
    sums = [n for n, s in enumerate(kernel.steps) if isinstance(s, Reduce | Pick | Contract)]
    sets = {frozenset(s.over) for n in sums if isinstance(s := kernel.steps[n], Reduce)}
    if len(sets) != 2 or any(not isinstance(kernel.steps[n], Reduce) for n in sums):
        return None
    long = {f for f, factor in enumerate(kernel.factors) if factor.size > 1}
    row = next((s for s in sets if s & _fastest(kernel)), frozenset())
    (columns,) = sets - {row} if row else (frozenset(),)
    if not row or row & columns or row | columns != long:
        return None
    if _size(kernel, row) > LONGEST or _size(kernel, columns) < ROWS:
        return None
    own = [n for n in sums if {*kernel.steps[n].over} == columns]  # type: ignore[union-attr]
    late = _depending(kernel, own)
    for n in (*own, *late):
        step = kernel.steps[n]
        at = [step.at, *[g.index for g in step.guards]] if isinstance(step, Store) else []
        spans = {f for one in at for f, stride in enumerate(one.strides) if stride}
        is_sum = isinstance(step, Reduce)
        if is_sum and (n in late or step.how != "add" or not step.dtype.is_float):  # type: ignore[union-attr]
            return None
        if (kernel.spans[n] | spans) & columns:
            return None
    return CrossedSums(tuple(sorted(columns)), tuple(sorted(row)), tuple(own), frozenset(late))


def _fastest(kernel: Kernel) -> set[int]:
    """The factors along which loads of whole tiles are adjacent in memory."""
    whole = max((operand.size for operand in kernel.operands), default=0)
    return {
        f
        for s in kernel.steps
        if isinstance(s, Load) and kernel.operands[s.operand].size == whole
        for f, stride in enumerate(s.at.strides)
        if abs(stride) == 1 and kernel.factors[f].size > 1
    }


def _size(kernel: Kernel, factors: Sequence[int] | frozenset[int]) -> int:
    return math.prod(kernel.factors[f].size for f in factors)


def _depending(kernel: Kernel, numbers: Sequence[int]) -> set[int]:
    """The steps that read these, directly or not."""
    readers: set[int] = set()
    for n, step in enumerate(kernel.steps):
        if any(arg in readers or arg in numbers for arg in args_of(step)):
            readers.add(n)
    return readers


@dataclass(frozen=True, slots=True)
class CrossedLaunches:
    """The launch of rows and its operands, and the epilogue kernel and its operands."""

    rows: GridLaunch
    operands: tuple[int, ...]
    after: Kernel
    after_operands: tuple[int, ...]
    scratch: tuple[Operand, ...]


def by_rows_and_columns(kernel: Kernel, form: CrossedSums) -> CrossedLaunches:
    """Both launches; scratch follows the operands of the kernel."""
    stores = [n for n, s in enumerate(kernel.steps) if isinstance(s, Store) and n not in form.late]
    reads = [s.arg for n in form.sums if isinstance(s := kernel.steps[n], Reduce)]
    steps = StepList()
    for n in sorted(needed_by(kernel, [*stores, *reads])):
        steps.keep(n, kernel.steps[n])
    for n in form.sums:
        reduce = kernel.steps[n]
        assert isinstance(reduce, Reduce)
        steps.add(replace(reduce, arg=steps.numbers[reduce.arg], init=None))
    first, operands = steps.kernel(kernel, f"{kernel.name}_rows", kernel.factors, kernel.operands)
    writer = _RowsAndColumns(first, form)
    length = _size(kernel, form.row)
    scratch = tuple([Operand(dtype, (writer.programs, length), True) for dtype in writer.held])
    count = len(kernel.operands)
    launch = writer.launch()
    after, after_operands = _after(kernel, form, scratch)
    numbers = (*operands, *range(count, count + len(scratch)))
    return CrossedLaunches(launch, numbers, after, after_operands, scratch)


class _RowsAndColumns(RowLoops):
    """The launch of rows: a loop over rows in each program."""

    def __init__(self, kernel: Kernel, form: CrossedSums) -> None:
        self.kernel, self.options = kernel, options_of(kernel)
        rows, length = _size(kernel, form.columns), _size(kernel, form.row)
        width = power_of_two(length)
        height = self.options.get("rows", max(1, min(TILE // width, rows // PROGRAMS)))
        height = 1 << (height.bit_length() - 1)
        self.x = TileAxis("x", form.columns, rows, height)
        self.r = TileAxis("r", form.row, length, width)
        self.warps = self.options.get("warps", min(16, max(4, height * width // 1024)))
        self.tiles = TileWriter(kernel, {"x": self.x, "r": self.r})
        self.view = ("x", "r")
        self.is_whole, self.online = True, {}
        self.sums = [n for n, s in enumerate(kernel.steps) if _runs_along(s, form.columns)]
        self.levels = {n: k for n, k in levels_of(kernel).items() if n not in self.sums}
        self.programs = min(PROGRAMS, self.x.blocks)
        self.held: list[DType] = [
            held_in(s.dtype) for n in self.sums if isinstance(s := kernel.steps[n], Reduce)
        ]

    @property
    def stages(self) -> int:
        """Rows in flight: as many as fit in shared memory, at most three."""
        loads = [s for s in self.kernel.steps if isinstance(s, Load)]
        tiles = [s for s in loads if self.tiles.span([s.at]) == {"x", "r"}]
        nbytes = sum(s.dtype.numpy.itemsize for s in tiles) * self.x.block * self.r.block
        return max(1, min(3, IN_FLIGHT // max(1, nbytes)))

    def launch(self) -> GridLaunch:
        """The launch; the partial sums are its last operands."""
        tiles, x, r, kernel = self.tiles, self.x, self.r, self.kernel
        program = tiles.let(program_number(tiles, 0), "program")
        tiles.place(self.view, r, tiles.let(f"tl.arange(0, {r.block})", "r"))
        self._hoist_columns()
        shape = f"[{x.block}, {r.block}]"
        totals = [tiles.let(f"tl.full({shape}, 0, {dtypes.computed(d)})", "a") for d in self.held]
        stop, step = x.blocks * x.block, self.programs * x.block
        bounds = f"p.bound({program} * {x.block}), {stop}, {step}, num_stages={self.stages}"
        with tiles.loop(f"for start in tl.range({bounds}):"):
            tiles.place(self.view, x, tiles.let(f"start + tl.arange(0, {x.block})", "x"))
            for level in range(1, self._depth + 1):
                for number in self._at(level):
                    self._reduce_block(number)
            stores = [s for s in kernel.steps if isinstance(s, Store)]
            values = [tiles.value(store.arg, self.view) for store in stores]
            terms = [self._term(n) for n in self.sums]
            for store, value in zip(stores, values, strict=True):
                tiles.store(store, value, self.view)
            for total, term in zip(totals, terms, strict=True):
                tiles.line(f"{total} = {total} + {term}")
        position = self._flat()
        inside = tiles.inside(frozenset({"r"}), self.view)
        mask = f", mask={inside[0]}" if inside else ""
        for number, total in enumerate(totals):
            sums = f"p.sum_columns({total})" if x.block > 1 else total
            at = f"part{number} + ({program} * {r.size} + {position})"
            tiles.line(f"tl.store({at}, {sums}{mask})")
        launch = finished(tiles, kernel.name, (self.programs, 1, 1), self.warps, 3)
        # The first `):` of the text ends its parameters, to which the partial sums are appended.
        names = "".join([f", part{n}" for n in range(len(totals))])
        pointers = [dtypes.pointer(dtype) for dtype in self.held]
        operands = tuple(range(len(kernel.operands) + len(totals)))
        return replace(
            launch,
            text=launch.text.replace("):\n", f"{names}):\n", 1),
            signature=(*launch.signature, *pointers),
            operands=operands,
        )

    def _hoist_columns(self) -> None:
        """Hoist the loads that all rows share out of the loop."""
        for n, step in enumerate(self.kernel.steps):
            if isinstance(step, Load) and self.tiles.span([step.at]) <= {"r"} and not step.shifts:
                self.tiles.value(n, self.view)

    def _term(self, number: int) -> str:
        """The terms of a sum in a tile: 0 outside of its rows."""
        step, tiles = self.kernel.steps[number], self.tiles
        assert isinstance(step, Reduce)
        text = tiles.broadcast(tiles.value(step.arg, self.view), self.view)
        inside = tiles.inside(frozenset({"x", "r"}), self.view)
        return tiles.let(f"tl.where({' & '.join(inside)}, {text}, 0)" if inside else text)


def _runs_along(step: object, factors: Sequence[int]) -> bool:
    return isinstance(step, Reduce) and {*step.over} == {*factors}


def _after(
    kernel: Kernel, form: CrossedSums, scratch: Sequence[Operand]
) -> tuple[Kernel, tuple[int, ...]]:
    """The kernel that adds up the partial sums, and computes the steps that follow."""
    cut = form.columns[0]  # this factor now counts the programs
    parts = scratch[0].shape[0]
    factors = [
        replace(f, size=parts if n == cut else f.size if n in form.row else 1)
        for n, f in enumerate(kernel.factors)
    ]
    strides, size = [0] * len(factors), 1
    for f in reversed(form.row):
        strides[f] = size
        size *= kernel.factors[f].size
    strides[cut] = size
    stores = [n for n in form.late if isinstance(kernel.steps[n], Store)]
    inits = [s.init for n in form.sums if isinstance(s := kernel.steps[n], Reduce)]
    wanted = needed_by(kernel, [*stores, *[n for n in inits if n is not None]], form.sums)
    steps = StepList()
    for n in sorted(wanted | {*form.sums}):
        step = kernel.steps[n]
        if n not in form.sums:
            steps.keep(n, step)
            continue
        assert isinstance(step, Reduce)
        number = form.sums.index(n)
        load = Load(len(kernel.operands) + number, Affine(tuple(strides)), scratch[number].dtype)
        init = None if step.init is None else steps.numbers[step.init]
        steps.numbers[n] = steps.add(Reduce("add", steps.add(load), init, (cut,), step.dtype))
    read = [replace(operand, output=False) for operand in scratch]
    return steps.kernel(kernel, kernel.name, factors, (*kernel.operands, *read))
