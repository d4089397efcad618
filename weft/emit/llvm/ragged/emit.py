"""The ragged dot: tasks find the group of their rows, pack a part of each side, and multiply.

The number of tasks is fixed, although groups are not: m rows in g groups are never more than
m / (rows of a task) + g tiles of rows of one group each. A task whose number is too high does
nothing. Rows in no group are a group of their own, without anything to sum.
"""

from __future__ import annotations

import math

from weft.emit.llvm.emitted import Emitted, Phase
from weft.emit.llvm.jit.processor import Processor
from weft.emit.llvm.product.blocking.blocking import chip_of
from weft.emit.llvm.ragged.blocks import BLOCK_K, FEW, INNER, BlockCalls, blocks_for, cut_rows
from weft.emit.llvm.ragged.pack import RaggedPacking
from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.code import module_text
from weft.emit.llvm.writer.nest import (
    TASK,
    divided,
    function,
    larger,
    located,
    plus,
    pointers,
    smaller,
    times,
)
from weft.emit.llvm.writer.storage import register_kind
from weft.emit.llvm.writer.vector import BITS, Vector, Vectors
from weft.kernels.nest.ragged import LHS, OUT, RHS, SIZES, RaggedRoles, held_type
from weft.kernels.single_node import SingleNode
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Tile:
    """The part of a product that a task computes: rows, steps of the sum, and where they lie."""

    rows: str  # how many
    near: str  # the first step of the sum, and the end
    far: str
    columns: str  # how many
    lhs: str  # the elements where the operands and the result begin
    rhs: str
    out: str


def ragged_dot(kernel: SingleNode, processor: Processor) -> Emitted:
    """The products of all groups."""
    if not kernel.outputs[0].size:
        return Emitted("", ())
    return _RaggedProduct(kernel, processor).emit()


class _RaggedProduct:
    """The function of a ragged dot, and the blocks that it calls."""

    def __init__(self, kernel: SingleNode, processor: Processor) -> None:
        self.roles = roles = RaggedRoles(kernel)
        self.dtypes = [operand.dtype for operand in kernel.operands]
        kind = register_kind(held_type(kernel))
        # The packed LHS keeps its lines; those of rows are vectors of rows.
        by_rows = roles.rows.steps[LHS] == 1 and roles.k.steps[LHS] != 1
        self.blocks = blocks_for(
            chip_of(processor), kind, "rows" if by_rows else "k", roles.rows.size
        )
        self.code = function(kernel.name, excess_precision=kernel.excess_precision)
        self.buffers = pointers(self.code, 4)
        self.calls = BlockCalls(self.code, self.blocks)
        self.pack = RaggedPacking(self.code, self.blocks)
        self.one, self.v = Vectors(self.code, 1), Vectors(self.code, self.blocks.width)
        b, size = self.blocks, BITS[kind] // 8
        lines = b.task_rows if b.lines == "k" else BLOCK_K
        self.lhs = 0
        self.rhs = _aligned(lines * b.line * size)
        self.sums = self.rhs + _aligned((BLOCK_K + b.width) * b.panel * size)
        self.scratch = self.sums + _aligned(b.task_rows * b.task_columns * size)
        self.element = size

    def emit(self) -> Emitted:
        """The function and its tasks: outer points, columns, and tiles of rows."""
        code, roles, b = self.code, self.roles, self.blocks
        tiles, chunks = self._tiles(), -(-roles.columns.size // b.task_columns)
        with code.loop("%begin", "%end") as task:
            rest, tile = divided(code, task.index, tiles)
            point, chunk = divided(code, rest, chunks)
            offsets = located(code, point, roles.outer, ["0"] * 4)
            first = times(code, chunk, b.task_columns)
            left = code.let(f"sub nsw i64 {roles.columns.size}, {first}")
            for buffer in (RHS, OUT):
                across = times(code, first, roles.columns.steps[buffer])
                offsets[buffer] = plus(code, offsets[buffer], across)
            self._tile(tile, offsets, smaller(code, left, b.task_columns))
        count = math.prod(dim.size for dim in roles.outer) * chunks * tiles
        cost = min(roles.rows.size, b.task_rows) * b.task_columns * max(1, roles.k.size)
        phase = Phase(code.name, count, max(1, 8 * TASK // cost))
        text = module_text(*self.calls.microkernels.values(), code)
        return Emitted(text, (phase,), scratch=self.scratch)

    # Tiles

    def _tiles(self) -> int:
        """The number of tiles of rows."""
        rows, groups = self.roles.rows.size, self.roles.groups
        fixed = -(-rows // self.blocks.task_rows)
        match self.roles.mode:
            case "free":
                return min(rows, rows // self.blocks.task_rows + groups + 1)
            case "contracting":
                return fixed * groups
            case "batch":
                return fixed

    def _tile(self, number: str, offsets: list[str], columns: str) -> None:
        """Locate the group and the rows of a tile, and compute it."""
        code, roles = self.code, self.roles
        if roles.mode == "free":
            group, begin, end = self._find(number, offsets[SIZES])
            with code.when(code.let(f"icmp sge i64 {group}, 0")):
                in_none = code.let(f"icmp eq i64 {group}, {roles.groups}")
                far = code.let(f"select i1 {in_none}, i64 0, i64 {roles.k.size}")
                known = code.let(f"select i1 {in_none}, i64 0, i64 {group}")
                self._group_tile(offsets, known, (begin, end), ("0", far), columns)
            return
        count = -(-roles.rows.size // self.blocks.task_rows)
        group, tile = divided(code, number, count)
        begin = times(code, tile, self.blocks.task_rows)
        end = smaller(code, plus(code, begin, self.blocks.task_rows), roles.rows.size)
        span = ("0", str(roles.k.size))
        if roles.mode == "contracting":
            span = self._span(group, offsets[SIZES])
        self._group_tile(offsets, group, (begin, end), span, columns)

    def _group_tile(
        self,
        offsets: list[str],
        group: str,
        rows: tuple[str, str],
        span: tuple[str, str],
        columns: str,
    ) -> None:
        code, steps = self.code, self.roles.rows.steps
        rhs, _, out = self.roles.group_steps
        tile = Tile(
            code.let(f"sub nsw i64 {rows[1]}, {rows[0]}"),
            *span,
            columns,
            plus(code, offsets[LHS], times(code, rows[0], steps[LHS])),
            plus(code, offsets[RHS], times(code, group, rhs)),
            plus(
                code,
                plus(code, offsets[OUT], times(code, group, out)),
                times(code, rows[0], steps[OUT]),
            ),
        )
        self._product(tile)

    def _size(self, group: str, base: str) -> str:
        """The size of a group, as an i64."""
        at = plus(self.code, base, times(self.code, group, self.roles.group_steps[1]))
        (found,) = storage.load(self.one, self.buffers[SIZES], at, self.dtypes[SIZES])
        way = "zext" if self.dtypes[SIZES].kind == "uint" else "sext"
        return self.one.cast(way, found, "i64").text

    def _ended(self, begin: str, size: str, most: int) -> str:
        """The end of a group: no less than its begin, no more than there is."""
        code = self.code
        inside = smaller(code, larger(code, size, 0), most)  # first: the sum must not overflow
        return smaller(code, plus(code, begin, inside), most)

    def _find(self, number: str, base: str) -> tuple[str, str, str]:
        """The group and the rows of a tile; -1 if there is no such tile."""
        code, rows = self.code, self.roles.rows.size
        most = self.blocks.task_rows
        carried = [("i64", v) for v in ("0", number, "-1", "0", "0")]
        with code.loop(0, self.roles.groups + 1, carried=carried) as loop:
            # `left` is the number of the tile less the tiles of all groups before: negative after
            # its group.
            begin, left, *hits = loop.carried
            is_group = code.let(f"icmp slt i64 {loop.index}, {self.roles.groups}")
            # The last round is for rows in no group: it reads some size and ignores it.
            inside = smaller(code, loop.index, max(0, self.roles.groups - 1))
            size = self._size(inside, base) if self.roles.groups else "0"
            size = code.let(f"select i1 {is_group}, i64 {size}, i64 {rows}")
            end = self._ended(begin, size, rows)
            count = code.let(f"sub nsw i64 {end}, {begin}")
            tiles = code.let(f"udiv i64 {plus(code, count, most - 1)}, {most}")
            low = code.let(f"icmp sge i64 {left}, 0")
            high = code.let(f"icmp slt i64 {left}, {tiles}")
            here = code.let(f"and i1 {low}, {high}")
            first = plus(code, begin, times(code, left, most))
            last = smaller(code, plus(code, first, most), end)
            news = [
                code.let(f"select i1 {here}, i64 {new}, i64 {old}")
                for new, old in zip((loop.index, first, last), hits, strict=True)
            ]
            loop.carry(end, code.let(f"sub nsw i64 {left}, {tiles}"), *news)
        group, first, last = loop.carried[2:]
        return group, first, last

    def _span(self, group: str, base: str) -> tuple[str, str]:
        """The steps of the sum that are in a group."""
        code, most = self.code, self.roles.k.size
        with code.loop(0, group, carried=[("i64", "0")]) as loop:
            loop.carry(self._ended(loop.carried[0], self._size(loop.index, base), most))
        begin = loop.carried[0]
        return begin, self._ended(begin, self._size(group, base), most)

    # Products

    def _product(self, tile: Tile) -> None:
        """The sums of a tile, then the result."""
        code, roles = self.code, self.roles
        sums = self._scratch(self.sums)
        with code.when(code.let(f"icmp sge i64 {tile.near}, {tile.far}")):
            self._clear(tile, sums)
        in_place = roles.k.steps[LHS] == 1 and roles.k.steps[RHS] == 1
        in_place = in_place and roles.columns.steps[RHS] != 1
        if in_place:
            few = code.let(f"icmp sle i64 {tile.rows}, {FEW}")
            with code.when(few):
                self._inner(tile, sums)
            with code.when(code.let(f"xor i1 {few}, true")):
                self._steps(tile, sums)
        else:
            self._steps(tile, sums)
        self._store(tile, sums)

    def _steps(self, tile: Tile, sums: str) -> None:
        """Pack a part of K of both sides, and multiply; then the next part."""
        code, roles, b = self.code, self.roles, self.blocks
        down = roles.k.steps
        with code.loop(tile.near, tile.far, BLOCK_K) as k:
            k_count = smaller(code, code.let(f"sub nsw i64 {tile.far}, {k.index}"), BLOCK_K)
            more = code.let(f"icmp ne i64 {k.index}, {tile.near}")
            lhs = plus(code, tile.lhs, times(code, k.index, down[LHS]))
            self._pack_lhs(lhs, tile.rows, k_count)
            with code.loop(0, tile.columns, b.panel) as panel:
                rhs = plus(code, tile.rhs, times(code, k.index, down[RHS]))
                across = times(code, panel.index, roles.columns.steps[RHS])
                source = self._address(RHS, plus(code, rhs, across))
                columns = code.let(f"sub nsw i64 {tile.columns}, {panel.index}")
                out = self.one.at(sums, panel.index, b.kind)
                self._panel(source, tile.rows, (k_count, more), columns, out)

    def _panel(self, source: str, rows: str, part: tuple[str, str], columns: str, out: str) -> None:
        """Multiply the packed rows with a panel of columns, read in place for few rows."""
        code, roles, b = self.code, self.roles, self.blocks
        dtype, packed = self.dtypes[RHS], self._scratch(self.rhs)
        step, apart = roles.k.steps[RHS], roles.columns.steps[RHS]
        is_even = roles.columns.size % b.panel == 0
        line = b.panel * self.element
        if apart == 1 or roles.columns.size == 1:
            few = code.let(f"icmp sle i64 {rows}, {FEW}")
            with code.when(few):
                self._in_place(source, step, rows, part, columns, out)
            with code.when(code.let(f"xor i1 {few}, true")):
                self.pack.panel(source, dtype, step, part[0], packed, None if is_even else columns)
                self._rows(b.row_counts, rows, (packed, line), part, out)
            return
        here = smaller(code, columns, b.panel)
        if step == 1:
            self.pack.transposed(source, dtype, apart, here, part[0], packed)
        else:
            self.pack.lines(source, dtype, (step, apart), (part[0], here), (packed, b.panel))
        self._rows(b.row_counts, rows, (packed, line), part, out)

    def _in_place(
        self, source: str, step: int, rows: str, part: tuple[str, str], columns: str, out: str
    ) -> None:
        """A panel whose lines are read where they lie; the last one, if narrower, is packed."""
        code, b, dtype = self.code, self.blocks, self.dtypes[RHS]
        full = code.let(f"icmp sge i64 {columns}, {b.panel}")
        counts = tuple([n for n in b.row_counts if n <= FEW])
        with code.when(full):
            rhs = source, step * dtype.numpy.itemsize
            self._rows(counts, rows, rhs, part, out, in_place=True)
        if self.roles.columns.size % b.panel:
            with code.when(code.let(f"xor i1 {full}, true")):
                packed = self._scratch(self.rhs)
                self.pack.panel(source, dtype, step, part[0], packed, columns)
                self._rows(counts, rows, (packed, b.panel * self.element), part, out)

    def _rows(
        self,
        counts: tuple[int, ...],
        rows: str,
        rhs: tuple[str, int],
        part: tuple[str, str],
        out: str,
        *,
        in_place: bool = False,
    ) -> None:
        """Blocks of rows over one panel."""
        code, b, dtype = self.code, self.blocks, self.dtypes[RHS]
        stored = dtype if in_place and storage.memory_kind(dtype) != b.kind else None
        line = b.task_columns * self.element
        base = self._scratch(self.lhs)
        for size, begin, end in cut_rows(code, rows, counts):
            name = self.calls.block(size, in_place=in_place, stored=stored)
            with code.loop(begin, end, size) as row:
                apart = b.line if b.lines == "k" else 1
                lhs = self.one.at(base, times(code, row.index, apart), b.kind)
                to = code.let(f"getelementptr i8, ptr {out}, i64 {times(code, row.index, line)}")
                sides = (lhs, b.line * self.element), rhs, (to, line)
                self.calls.call(name, *sides, part[0], part[1])

    def _inner(self, tile: Tile, sums: str) -> None:
        """A few rows times columns that lie along K, both in place."""
        code, roles, b = self.code, self.roles, self.blocks
        stored = [
            d if storage.memory_kind(d) != b.kind else None for d in self.dtypes[LHS : RHS + 1]
        ]
        lhs_step, rhs_step = (
            step * dtype.numpy.itemsize
            for step, dtype in (
                (roles.rows.steps[LHS], self.dtypes[LHS]),
                (roles.columns.steps[RHS], self.dtypes[RHS]),
            )
        )
        k_count = code.let(f"sub nsw i64 {tile.far}, {tile.near}")
        line = b.task_columns * self.element
        bases = [
            self._address(side, plus(code, start, tile.near))
            for side, start in ((LHS, tile.lhs), (RHS, tile.rhs))
        ]
        some = code.let(f"icmp sgt i64 {k_count}, 0")
        rows_to_do = code.let(f"select i1 {some}, i64 {tile.rows}, i64 0")
        for columns, first, last in cut_rows(code, tile.columns, (INNER, 1)):
            with code.loop(first, last, columns) as column:
                far = times(code, column.index, rhs_step)
                rhs = code.let(f"getelementptr i8, ptr {bases[1]}, i64 {far}")
                for rows, begin, end in cut_rows(code, rows_to_do, (INNER, 1)):
                    name = self.calls.inner(rows, columns, *stored)
                    with code.loop(begin, end, rows) as row:
                        far = times(code, row.index, lhs_step)
                        lhs = code.let(f"getelementptr i8, ptr {bases[0]}, i64 {far}")
                        at = plus(code, times(code, row.index, b.task_columns), column.index)
                        out = self.one.at(sums, at, b.kind)
                        sides = (lhs, lhs_step), (rhs, rhs_step), (out, line)
                        self.calls.call(name, *sides, k_count)

    # Memory

    def _scratch(self, at: int) -> str:
        return self.code.let(f"getelementptr i8, ptr %scratch, i64 {at}")

    def _address(self, buffer: int, at: str) -> str:
        kind = storage.memory_kind(self.dtypes[buffer])
        return self.one.at(self.buffers[buffer], at, kind)

    def _pack_lhs(self, start: str, rows: str, k_count: str) -> None:
        """Widen a part of the rows into scratch memory."""
        b = self.blocks
        steps = self.roles.rows.steps[LHS], self.roles.k.steps[LHS]
        counts = rows, k_count
        if b.lines == "rows":
            steps, counts = steps[::-1], counts[::-1]
        source = self._address(LHS, start)
        to = self._scratch(self.lhs), b.line
        self.pack.lines(source, self.dtypes[LHS], steps, counts, to)

    def _clear(self, tile: Tile, sums: str) -> None:
        """Sums of nothing."""
        code, b = self.code, self.blocks
        zero = self.v.constant(0, b.kind)
        with code.loop(0, tile.rows) as row:
            line = self.one.at(sums, times(code, row.index, b.task_columns), b.kind)
            with code.loop(0, tile.columns, b.width) as column:
                self.v.store(zero, self.v.at(line, column.index, b.kind))

    def _store(self, tile: Tile, sums: str) -> None:
        """Round the sums to the result."""
        code, b, v = self.code, self.blocks, self.v
        dtype, target = self.dtypes[OUT], self.buffers[OUT]
        is_even = self.roles.columns.size % b.width == 0
        with code.loop(0, tile.rows) as row:
            line = self.one.at(sums, times(code, row.index, b.task_columns), b.kind)
            down = plus(code, tile.out, times(code, row.index, self.roles.rows.steps[OUT]))
            with code.loop(0, tile.columns, b.width) as column:
                loaded = v.load(v.at(line, column.index, b.kind), b.kind)
                mask: Vector | None = None
                if not is_even:
                    mask = v.first(code.let(f"sub nsw i64 {tile.columns}, {column.index}"))
                storage.store(v, (loaded,), target, plus(code, down, column.index), dtype, mask)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 64) * 64
