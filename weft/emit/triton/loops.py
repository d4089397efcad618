"""Kernels of loops: reductions by rows.

A program computes a block of rows (all factors that are not reduced) by blocks of their elements:
in one pass if a row is one block, else in one pass for each level of reductions and one that
writes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from weft.emit.triton import dtypes
from weft.emit.triton.collapse import reduced_factors
from weft.emit.triton.emitted import GridLaunch
from weft.emit.triton.hot import hot_element
from weft.emit.triton.online import OnlineSum, online_sums
from weft.emit.triton.parts.sizes import (
    column_factor,
    levels_of,
    options_of,
    tile_of,
)
from weft.emit.triton.tiles import (
    TileAxis,
    TileValue,
    TileView,
    TileWriter,
    needed_by,
    parameters,
)
from weft.ir.rule import Combine
from weft.ir.types import DType
from weft.kernels.kernel import (
    Contract,
    Kernel,
    Load,
    Pick,
    Position,
    Reduce,
    Step,
    Store,
    args_of,
    held_in,
    is_rounded,
    value_dtype,
)
from weft.ops.combiners import identity, in_dtype

_ROW_FUNCTIONS: dict[Combine, str] = {
    "add": "sum_row",
    "mul": "product_row",
    "max": "max_row",
    "min": "min_row",
    "and": "and_row",
    "or": "or_row",
    "xor": "xor_row",
}
LANES = 32  # of a warp
AHEAD = 128  # registers of a lane that hold rows which are not needed yet
_NOWHERE: frozenset[str] = frozenset()  # axes of what is the same everywhere

_INFIX: dict[Combine, str] = {"add": "+", "mul": "*", "and": "&", "or": "|", "xor": "^"}


def finished(
    tiles: TileWriter, name: str, grid: tuple[int, int, int], warps: int, stages: int = 2
) -> GridLaunch:
    """The launch of a written function."""
    kernel = tiles.kernel
    head = f"@triton.jit\ndef {name}({', '.join(parameters(kernel))}):"
    text = "\n".join([head, *tiles.lines]) + "\n"
    signature = tuple([dtypes.pointer(o.dtype) for o in kernel.operands])
    operands = tuple(range(len(kernel.operands)))
    # A sum of a product that is rounded must not be fused into one rounding.
    kinds = {s.dtype for s in kernel.steps if not isinstance(s, Store)}
    fused = kernel.excess_precision and not any(map(is_rounded, kinds))
    return GridLaunch(name, text, signature, operands, grid, warps, stages, fused)


def program_number(tiles: TileWriter, dim: int) -> str:
    """The number of this program along a dim of the grid."""
    # program_id is an i32: its product with a block would overflow in operands of 2^31 elements.
    return f"tl.program_id({dim})" + (".to(tl.int64)" if tiles.is_wide else "")


def store_all(tiles: TileWriter, view: tuple[str, ...]) -> None:
    """All results, in place or not: every element is read before one is written."""
    stores = [step for step in tiles.kernel.steps if isinstance(step, Store)]
    values = [tiles.value(store.arg, view) for store in stores]
    for store, value in zip(stores, values, strict=True):
        tiles.store(store, value, view)


# By rows


def by_rows(kernel: Kernel) -> GridLaunch:
    """A kernel of reductions, all along the same factors, of collapsed loops."""
    return RowLoops(kernel).launch()


class RowLoops:
    """The passes of one kernel over its rows."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        reduced = sorted(reduced_factors(kernel))
        rows = [n for n in range(len(kernel.factors)) if n not in reduced]
        self.options = options_of(kernel)
        count = math.prod(kernel.factors[n].size for n in rows)
        length = math.prod(kernel.factors[n].size for n in reduced)
        inner = column_factor(kernel, rows)
        self.outer = TileAxis("o", (), 1, 1)
        if inner is not None:
            # Triton does not see that x % 97 of a flat index is contiguous: it loads one by one.
            outer = tuple([n for n in rows if n != inner])
            size = kernel.factors[inner].size
            self.outer = TileAxis("o", outer, count // size, 1)
            rows, count = [inner], size
        # Powers of two, as `tl.arange` needs them: rows and elements beyond the sizes are masked.
        height, width, self.warps = tile_of(kernel, count, length, self.outer.size)
        self.x = TileAxis("x", tuple(rows), count, height)
        self.r = TileAxis("r", tuple(reduced), length, width)
        axes = {axis.name: axis for axis in (self.x, self.r, self.outer)}
        self.tiles = TileWriter(kernel, axes)
        self.view = ("x", "r")
        self.is_whole = self.r.blocks == 1
        self.levels = levels_of(kernel)
        self.online = {} if self.is_whole else online_sums(kernel)

    def launch(self) -> GridLaunch:
        """The launch."""
        tiles, x, r = self.tiles, self.x, self.r
        self._place_rows(self.view)
        # The row stays in registers: reductions of later levels read it without another load.
        if self.is_whole:
            tiles.place(self.view, r, tiles.let(f"tl.arange(0, {r.block})", "r"))
            self._load_ahead()
            for level in range(1, self._depth + 1):
                for number in self._at(level):
                    self._reduce_block(number)
            with self._stored_apart():
                store_all(tiles, self.view)
        else:
            self._passes()
        grid = (x.blocks, self.outer.size, 1)
        return finished(tiles, self.kernel.name, grid, warps=self.warps, stages=3)

    def _place_rows(self, view: TileView) -> None:
        """Define the indices of the program's rows in a view."""
        tiles, x = self.tiles, self.x
        start = "" if x.blocks == 1 else f"{program_number(tiles, 0)} * {x.block} + "
        kind = f".to({tiles.integer})" if tiles.is_wide and not start else ""
        tiles.place(view, x, tiles.let(f"{start}tl.arange(0, {x.block}){kind}", "x"))
        if self.outer.factors:
            wide = ".to(tl.int64)" if tiles.is_wide else ""
            tiles.place(view, self.outer, tiles.let(f"tl.program_id(1){wide}", "o"))

    @property
    def _depth(self) -> int:
        return max(self.levels.values(), default=0)

    def _at(self, level: int) -> list[int]:
        """The reductions of a level."""
        return [n for n, found in self.levels.items() if found == level]

    @contextmanager
    def _stored_apart(self) -> Iterator[None]:
        """The stores of rows, and then of the element of each row that differs, if there is one."""
        hot, tiles = hot_element(self.kernel, self.r), self.tiles
        if hot is None:
            yield
            return
        place = tiles.value(hot.place, self.view).name
        at = tiles.let(f"tl.minimum(tl.maximum({place}, 0), {self.r.size - 1})")
        found = tiles.let(f"{at} == {place}")
        view = ("x", "one")
        self._hoist([store.arg for store in hot.stores], [*self.levels])
        self._place_rows(view)
        tiles.place(view, self.r, tiles.let(f"{at}.to({tiles.integer})", "r"))
        tiles.share(self.view, view)
        tiles.know(hot.comparison, view, TileValue(tiles.let("tl.full([], 1, tl.int1)"), _NOWHERE))
        # Before anything is stored, since a result may be written over an operand.
        values = [tiles.value(store.arg, view) for store in hot.stores]
        never = TileValue(tiles.let("tl.full([], 0, tl.int1)"), _NOWHERE)
        tiles.know(hot.comparison, self.view, never)
        yield
        tiles.line("tl.debug_barrier()")
        for store, value in zip(hot.stores, values, strict=True):
            tiles.store(store, value, view, found)

    # A row in one block

    def _load_ahead(self) -> None:
        """Begin with the loads of rows, as far as they fit in registers.

        A reduction is a barrier, over which neither compiler moves a load: those behind it would
        wait for memory once more. What all rows share is in L2, and loaded where it is needed.
        """
        held = self.x.block * self.r.block // (self.warps * LANES)
        left = AHEAD
        for number, step in enumerate(self.kernel.steps):
            if not isinstance(step, Load) or step.shifts or held > left:
                continue
            if self.tiles.span([step.at]) >= {"x", "r"}:
                self.tiles.value(number, self.view)
                left -= held

    def _reduce_block(self, number: int) -> None:
        step, tiles = self.kernel.steps[number], self.tiles
        if isinstance(step, Pick):
            found = self._pick_row(step, self._picked(step))
        else:
            found = tiles.let(self._row(step, self._masked(step)))
        self._finish(number, found)

    def _row(self, step: Step, value: str) -> str:
        """The reduction of a tile along its rows."""
        how, dtype = _combine(step)
        text = f"p.{_ROW_FUNCTIONS[how]}({value})"
        return f"({text}).to({dtypes.computed(dtype)})" if not dtype.is_float else text

    def _masked(self, step: Step) -> str:
        """The operand of a reduction on the whole tile, with the identity outside of the row."""
        how, dtype = _combine(step)
        tiles, view = self.tiles, self.view
        if isinstance(step, Contract):
            value = self._products(step)
        else:
            assert isinstance(step, Reduce)
            value = tiles.value(step.arg, view)
        text = tiles.broadcast(value, view)
        if inside := tiles.inside(frozenset({"r"}), view):
            neutral = dtypes.literal(identity(how, dtype), dtype)
            # Masked lanes hold zeros of the loads, and whatever was computed from them: exp(0) is
            # 1.
            text = f"tl.where({inside[0]}, {text}, {neutral})"
        if dtype.kind == "bool":
            text = f"({text}).to(tl.int32)"
        return tiles.let(text)

    def _products(self, step: Contract) -> TileValue:
        tiles, kind = self.tiles, dtypes.computed(step.held)
        a, b = tiles.value(step.lhs, self.view), tiles.value(step.rhs, self.view)
        return TileValue(tiles.let(f"{a.name}.to({kind}) * {b.name}.to({kind})"), a.axes | b.axes)

    def _pick_row(self, step: Pick, held: Sequence[str]) -> str:
        """The value at the best key of each row: that of the tile, or of accumulators."""
        if not self._is_position(step):
            return self.tiles.let(f"p.pick_{step.how}_row({', '.join(held)})[2]")
        found = f"p.place_{step.how}_row({', '.join(held[:2])})[1]"
        return self.tiles.let(f"{found}.to({dtypes.computed(step.dtype)})")

    def _is_position(self, step: Pick) -> bool:
        """Whether the value of a pick is the position in the row: then there is none to carry."""
        value = self.kernel.steps[step.value]
        if not isinstance(value, Position) or value.at.offset:
            return False
        wanted, size = [0] * len(self.kernel.factors), 1
        for f in reversed(self.r.factors):
            wanted[f] = size
            size *= self.kernel.factors[f].size
        pairs = zip(value.at.strides, wanted, self.kernel.factors, strict=True)
        return all(stride == want for stride, want, factor in pairs if factor.size > 1)

    def _picked(self, step: Pick) -> tuple[str, ...]:
        """The keys, their positions, and values that are not these, on the whole tile."""
        tiles, view = self.tiles, self.view
        key = tiles.broadcast(tiles.value(step.key, view), view)
        dtype = value_dtype(self.kernel.steps[step.key])
        position = tiles.broadcast(TileValue(self._flat(), frozenset({"r"})), view)
        if dtype.kind == "bool":
            key = f"({key}).to(tl.int32)"
        if inside := tiles.inside(frozenset({"r"}), view):
            # Last of all, even among the least keys.
            position = f"tl.where({inside[0]}, {position}, {self.r.size})"
            worst = dtypes.literal(identity(step.how, dtype), dtype)
            kind = ".to(tl.int32)" if dtype.kind == "bool" else ""
            key = f"tl.where({inside[0]}, {key}, {worst}{kind})"
        if self._is_position(step):
            return tiles.let(key), tiles.let(position)
        value = tiles.broadcast(tiles.value(step.value, view), view)
        return tiles.let(key), tiles.let(position), tiles.let(value)

    def _flat(self) -> str:
        """The position in the row."""
        known = self.tiles.variable(self.view, "r flat")
        assert known is not None
        return known

    def _finish(self, number: int, result: str) -> None:
        """A reduction's result: with the initial value, rounded as the contract says."""
        step, tiles = self.kernel.steps[number], self.tiles
        axes = frozenset({"x"})
        assert isinstance(step, Reduce | Pick | Contract)
        dtype = step.dtype
        if isinstance(step, Contract):
            result = f"{result}.to({dtypes.computed(dtype)})"
        elif dtype.kind == "bool":
            result = f"({result} != 0)"
        if isinstance(step, Reduce) and step.init is not None:
            init = tiles.value(step.init, self.view)
            result = combined(step.how, dtype, init.name, result)
        rounded = not isinstance(step, Pick) and is_rounded(
            dtype, excess_precision=self.kernel.excess_precision
        )
        if rounded:
            result = f"{dtypes.rounded(f'({result})', dtype)}.to(tl.float32)"
        tiles.know(number, self.view, TileValue(tiles.let(result), axes))

    # A row in several blocks

    def _passes(self) -> None:
        stores = [s for s in self.kernel.steps if isinstance(s, Store)]
        # Stores along the row need its final reductions, so they come in a pass of their own; the
        # others have one element a row.
        late = [s for s in stores if self._spans(s)]
        reads = self._depth + bool(late) - len({*self.online.values()})
        known: list[int] = []
        done: set[int] = set()
        for level in range(1, self._depth + 1):
            numbers = [n for n in self._at(level) if n not in done]
            joined = [self.online[n] for n in numbers if n in self.online]
            numbers += [one.total for one in joined]
            if numbers:
                last = level == self._depth and not late
                # The next pass reads the row again: keep it in L2, until the last one lets go of
                # it.
                self._pass(numbers, known, "evict_first" if last and reads > 1 else "evict_last")
            done.update(numbers)
            known += numbers
        for store in stores:
            if store not in late:
                value = self.tiles.value(store.arg, self.view)
                self.tiles.store(store, value, self.view)
        if late:
            self._hoist([s.arg for s in late], known)
            self.tiles.hint = "evict_first"
            with self._stored_apart(), self._blocks():
                values = [self.tiles.value(s.arg, self.view) for s in late]
                for store, value in zip(late, values, strict=True):
                    self.tiles.store(store, value, self.view)
            self.tiles.hint = ""

    def _spans(self, store: Store) -> bool:
        return "r" in self.tiles.span([store.at, *[g.index for g in store.guards]])

    def _hoist(self, numbers: Sequence[int], known: Sequence[int]) -> None:
        """Hoist values that do not vary along the row out of the loop over blocks."""
        for n in sorted(needed_by(self.kernel, numbers, known)):
            step = self.kernel.steps[n]
            if not self.kernel.spans[n] & {*self.r.factors} and not isinstance(step, Store):
                self.tiles.value(n, self.view)

    def _pass(self, numbers: Sequence[int], known: Sequence[int], hint: str) -> None:
        """One pass over the row: these reductions, each in an accumulator of a tile."""
        tiles = self.tiles
        sums = {one.total: one for one in self.online.values() if one.total in numbers}
        reads = [a for n in numbers if n not in sums for a in args_of(self.kernel.steps[n])]
        inits = [s.init for n in numbers if isinstance(s := self.kernel.steps[n], Reduce)]
        self._hoist([*reads, *[n for n in inits if n is not None]], [*known, *numbers])
        # A whole tile each, reduced to a column after the loop only: within it nothing is exchanged
        # between lanes.
        held = {n: self._start(n) for n in numbers}
        tiles.hint = hint
        with self._blocks():
            for n in numbers:
                if n in sums:
                    continue
                step = self.kernel.steps[n]
                if isinstance(step, Pick):
                    self._accumulate_pick(step, held[n])
                elif found := [s for s in sums.values() if s.top == n]:
                    self._accumulate_online(found[0], held[n][0], held[found[0].total][0])
                else:
                    how, dtype = _combine(step)
                    made = combined(how, dtype, held[n][0], self._masked(step))
                    tiles.line(f"{held[n][0]} = {made}")
        tiles.hint = ""
        for n in numbers:
            step = self.kernel.steps[n]
            if isinstance(step, Pick):
                self._finish(n, self._pick_row(step, held[n]))
            elif n in sums:
                self._finish_online(sums[n], held[sums[n].top][0], held[n][0])
            else:
                self._finish(n, tiles.let(self._row(step, held[n][0])))

    def _start(self, number: int) -> tuple[str, ...]:
        """The accumulators of a reduction."""
        steps, tiles = self.kernel.steps, self.tiles
        step, shape = steps[number], f"[{self.x.block}, {self.r.block}]"
        if isinstance(step, Pick):
            dtype, value = value_dtype(steps[step.key]), value_dtype(steps[step.value])
            worst = _number(identity(step.how, dtype))
            kind = "tl.int32" if dtype.kind == "bool" else dtypes.computed(dtype)
            if self._is_position(step):
                # The first block's positions: right even where no key is better than the worst.
                first = f"tl.arange(0, {self.r.block})[None, :].to({tiles.integer})"
                return (
                    tiles.let(f"tl.full({shape}, {worst}, {kind})", "a"),
                    tiles.let(f"tl.broadcast_to({first}, {shape})", "a"),
                )
            return (
                tiles.let(f"tl.full({shape}, {worst}, {kind})", "a"),
                tiles.let(f"tl.full({shape}, {self.r.size}, {tiles.integer})", "a"),
                tiles.let(f"tl.full({shape}, 0, {dtypes.computed(value)})", "a"),
            )
        how, dtype = _combine(step)
        kind = "tl.int32" if dtype.kind == "bool" else dtypes.computed(dtype)
        return (tiles.let(f"tl.full({shape}, {_number(identity(how, dtype))}, {kind})", "a"),)

    def _accumulate_pick(self, step: Pick, held: tuple[str, ...]) -> None:
        names = ", ".join(held)
        found = ", ".join(self._picked(step))
        # Blocks come in order: of equal keys the first stays.
        how = f"later_{step.how}" if self._is_position(step) else f"pick_{step.how}"
        self.tiles.line(f"{names} = p.{how}({names}, {found})")

    def _accumulate_online(self, one: OnlineSum, top: str, total: str) -> None:
        """A running maximum, and a sum of exponentials relative to it."""
        tiles = self.tiles
        value = self._masked(self.kernel.steps[one.top])
        larger = tiles.let(combined("max", one.dtype, top, value))
        # -inf - -inf would be NaN: before the first finite element everything is relative to 0.
        base = tiles.let(f"tl.where({larger} == float('-inf'), 0.0, {larger})")
        # Each lane has a maximum and a sum of its own: earlier terms are scaled to the new maximum,
        # as in an online softmax.
        tiles.line(f"{total} = {total} * p.exp({top} - {base}) + p.exp({value} - {base})")
        tiles.line(f"{top} = {larger}")

    def _finish_online(self, one: OnlineSum, top: str, total: str) -> None:
        tiles = self.tiles
        row = tiles.let(f"p.max_row({top})")
        base = tiles.let(f"tl.where({row} == float('-inf'), 0.0, {row})")
        found = tiles.let(f"p.sum_row({total} * p.exp({top} - {base}))")
        # As the two reductions one after another give it: exp(-inf - -inf) is NaN.
        self._finish(one.total, f"tl.where({row} == float('-inf'), float('nan'), {found})")

    @contextmanager
    def _blocks(self) -> Iterator[None]:
        """A loop over the blocks of a row."""
        tiles, r = self.tiles, self.r
        with tiles.loop(f"for start in range(0, {r.size}, {r.block}):"):
            tiles.place(self.view, r, tiles.let(f"start + tl.arange(0, {r.block})", "r"))
            yield


def combined(how: Combine, dtype: DType, a: str, b: str) -> str:
    """Two values, combined."""
    how = in_dtype(how, dtype)
    if how in _INFIX:
        return f"{a} {_INFIX[how]} {b}"
    return f"{'p' if dtype.is_float else 'tl'}.{how}imum({a}, {b})"


def _combine(step: Step) -> tuple[Combine, DType]:
    """How a step combines, and the type of its accumulator."""
    if isinstance(step, Contract):
        return "add", step.held
    assert isinstance(step, Reduce)
    held = held_in(step.dtype) if step.dtype.is_float else step.dtype
    return in_dtype(step.how, held), held


def _number(value: bool | int | float) -> str:
    """A constant in the text of a function."""
    if isinstance(value, float) and (math.isinf(value) or math.isnan(value)):
        return f"float('{value}')"
    return repr(value)
