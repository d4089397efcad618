"""Ragged dots as one launch: every program finds the group and the rows of its tile by itself.

The sizes of groups are read on the device, so that the host waits for nothing: programs are as many
as any sizes need, and those without a tile end at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from weft.emit.triton import dtypes
from weft.emit.triton.emitted import GridLaunch
from weft.emit.triton.parts.sizes import power_of_two
from weft.emit.triton.tiles import WIDE
from weft.ir.types import F32, I32
from weft.kernels.nest.ragged import LHS, OUT, RHS, SIZES, RaggedRoles, held_type
from weft.kernels.single_node import SingleNode
from weft.ops.contract import allows_tf32
from weft.records import dataclass

_DOTS = {"bf16", "f16", "f32", "f8E4M3FN", "f8E5M2"}  # sides of Triton's dot
GROUPS = 1024  # sizes that a program reads at a time
_PROCESSORS = 132  # fewer programs leave some without work


@dataclass(frozen=True, slots=True)
class TileSizes:
    """The sizes of a tile, warps, and stages of the pipeline of loads."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


class RaggedTiles:
    """The tiles of all groups, each a program."""

    def __init__(self, kernel: SingleNode) -> None:
        self.kernel, self.roles = kernel, RaggedRoles(kernel)
        self.types = [operand.dtype for operand in kernel.operands]
        self.held = held_type(kernel)
        self.lines: list[str] = []
        self.depth = 1
        left, right = self.types[LHS], self.types[RHS]
        self.is_dot = left is right and left.name in _DOTS and self.held is F32
        self.is_dot |= left is right and left.name == "i8" and self.held is I32
        self.blocks = self._blocks()
        sizes = [operand.size for operand in kernel.operands]
        self.is_wide = max(sizes) >= WIDE
        # The first row of a tile's group, the end of its rows, and the span of its sum.
        self.start, self.end = "0", str(self.roles.rows.size)
        self.near, self.far = "0", str(self.k)

    def _blocks(self) -> TileSizes:
        """The sizes of a tile, by the average of the groups."""
        roles, each = self.roles, max(1, self.roles.groups)
        rows, columns, depth = roles.rows.size, roles.columns.size, roles.k.size
        if roles.mode == "free":
            rows = -(-rows // each)
        elif roles.mode == "contracting":
            depth = -(-depth // each)
        if not self.is_dot:
            return TileSizes(min(32, power_of_two(rows)), min(64, power_of_two(columns)), 1, 4, 2)
        wide = self.types[LHS].bits >= 32
        least = 32 if self.types[LHS].bits == 8 else 16  # of Triton's dot
        height = min(64 if wide else 128, max(16, power_of_two(rows)))
        width = min(64 if wide else 256, max(least, power_of_two(columns)))
        count = -(-rows // height) * each * max(1, -(-columns // width))
        if count < 2 * _PROCESSORS and width > 64:
            width //= 2
        large = height * width >= 128 * 256
        k = min(32 if wide else 64, max(least, power_of_two(depth)))
        return TileSizes(height, width, k, 8 if large else 4, 2 if wide else 3 if large else 4)

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def launch(self) -> GridLaunch:
        """The launch: outer points, groups, and their tiles."""
        roles = self.roles
        fixed = -(-roles.rows.size // self.blocks.rows)
        tiles = self.most if roles.mode == "free" else fixed * self.across
        if roles.mode == "contracting":
            tiles *= roles.groups
        points = self.place(tiles)
        match roles.mode:
            case "free":
                self._find_rows()
            case "contracting":
                self._find_span(fixed)
            case "batch":
                self._place_tile("tile", fixed)
        self.begin_tile()
        self._add_up()
        self.store()
        return self.finished(tiles * points)

    def finished(self, programs: int) -> GridLaunch:
        """The launch of the written function."""
        kernel, b = self.kernel, self.blocks
        head = f"@triton.jit\ndef {kernel.name}(in0, in1, in2, in3):"
        text = "\n".join([head, *self.lines]) + "\n"
        signature = tuple([dtypes.pointer(dtype) for dtype in self.types])
        return GridLaunch(
            kernel.name, text, signature, (0, 1, 2, 3), (max(1, programs), 1, 1),
            b.warps, b.stages, kernel.excess_precision,
        )  # fmt: skip

    @property
    def k(self) -> int:
        """The length of the sum."""
        return 0 if self.roles.empty else self.roles.k.size

    @property
    def across(self) -> int:
        """The tiles beside each other."""
        return -(-self.roles.columns.size // self.blocks.columns)

    @property
    def most(self) -> int:
        """The most tiles that rows in groups of any sizes need."""
        # Those of the rows in no group are one group more: they are 0.
        rows = self.roles.rows.size
        return min(rows, rows // self.blocks.rows + self.roles.groups + 1) * self.across

    # Places

    def place(self, tiles: int) -> int:
        """The number of a program's tile, and where its operands begin; returns the points."""
        wide = ".to(tl.int64)" if self.is_wide else ""
        self.line(f"rest = tl.program_id(0){wide}")
        self.line(f"tile = rest % {max(1, tiles)}")
        self.line(f"rest = rest // {max(1, tiles)}")
        points, offsets = 1, [[f"in{n}"] for n in range(4)]
        for n, dim in reversed([*enumerate(self.roles.outer)]):
            self.line(f"o{n} = rest % {dim.size}")
            self.line(f"rest = rest // {dim.size}")
            points *= dim.size
            for terms, step in zip(offsets, dim.steps, strict=True):
                if step:
                    terms.append(f"o{n} * {step}")
        for name, terms in zip(("lhs", "rhs", "sizes", "out"), offsets, strict=True):
            self.line(f"{name} = {' + '.join(terms)}")
        return points

    def _place_tile(self, tile: str, high: int | str) -> None:
        """The first row and column of a tile: rows go first, so that neighbours share columns."""
        self.line(f"m0 = {tile} % {high} * {self.blocks.rows}")
        self.line(f"n0 = {tile} // {high} * {self.blocks.columns}")

    def read_sizes(self, first: str, count: int, limit: int) -> None:
        """The sizes, within bounds, of the groups `g` from one of them on."""
        step, dtype = self.roles.group_steps[1], self.types[SIZES]
        self.line(f"g = {first} + tl.arange(0, {count})")
        loaded = f"tl.load(sizes + g * {step}, mask=g < {self.roles.groups}, other=0)"
        if dtype.kind == "uint" and dtype.bits == 64:
            loaded = f"tl.minimum({loaded}, {limit})"
        self.line(f"size = tl.minimum(tl.maximum({loaded}.to(tl.int64), 0), {limit})")

    @contextmanager
    def _groups(self, count: int, limit: int) -> Iterator[None]:
        """A loop over groups, many at a time."""
        chunk = chunk_of(count)
        self.line("before = tl.full([], 0, tl.int64)")
        self.line(f"for near in range(0, {count}, {chunk}):")
        self.depth += 1
        self.read_sizes("near", chunk, limit)
        yield
        self.depth -= 1

    def read_spans(self, before: str, first: str) -> None:
        """The rows of the groups `g`, and the end of their tiles, after those of others."""
        rows, b = self.roles.rows.size, self.blocks
        # The last group is that of the rows in none.
        self.line(f"size = tl.where(g < {self.roles.groups}, size, {rows})")
        self.line(f"sums = {before} + p.sums(size)")
        self.line(f"ends = tl.minimum(sums, {rows})")
        self.line(f"starts = tl.minimum(sums - size, {rows})")
        self.line(f"tiles = (ends - starts + {b.rows - 1}) // {b.rows} * {self.across}")
        self.line(f"last = {first} + p.sums(tiles)")

    def find(self, operator: str) -> None:
        """The group and the rows of a tile, and its number in the group, if it is in one of `g`."""
        self.line("here = (last - tiles <= tile) & (tile < last)")
        for name, value in (
            ("group", "g"), ("start", "starts"), ("end", "ends"), ("own", "tile - last + tiles"),
        ):  # fmt: skip
            self.line(f"{name} {operator} p.sum(tl.where(here, {value}, 0))")

    def _find_rows(self) -> None:
        """The group and the rows of a tile: one group after another."""
        for name in ("first", "group", "start", "end", "own"):
            self.line(f"{name} = tl.full([], 0, tl.int64)")
        with self._groups(self.roles.groups + 1, self.roles.rows.size):
            self.read_spans("before", "first")
            self.find("+=")
            self.line("before += p.sum(size)")
            self.line("first += p.sum(tiles)")
        self.place_rows()

    def place_rows(self) -> None:
        """The first row and column of a tile of a group, and the span of its sum."""
        roles, b = self.roles, self.blocks
        if not self.is_wide:
            for name in ("group", "start", "end", "own"):
                self.line(f"{name} = {name}.to(tl.int32)")
        self.line(f"high = tl.maximum((end - start + {b.rows - 1}) // {b.rows}, 1)")
        self._place_tile("own", "high")
        # Rows in no group are 0, and a program without a tile has nothing to do.
        self.line(f"near = tl.where((group < {roles.groups}) & (start < end), 0, {self.k})")
        self.line(f"group = tl.minimum(group, {max(0, roles.groups - 1)})")
        self.start, self.end, self.near = "start", "end", "near"

    def _find_span(self, fixed: int) -> None:
        """The group of a tile and its span of the sum."""
        every = fixed * self.across
        self.line(f"group = tile // {every}")
        self.line("own = tl.full([], 0, tl.int64)")
        with self._groups(self.roles.groups, self.k):
            self.line("before += p.sum(tl.where(g < group, size, 0))")
            self.line("own += p.sum(tl.where(g == group, size, 0))")
        kind = "tl.int64" if self.is_wide else "tl.int32"
        self.line(f"near = tl.minimum(before, {self.k}).to({kind})")
        self.line(f"far = tl.minimum(before + own, {self.k}).to({kind})")
        self._place_tile(f"tile % {every}", fixed)
        self.near, self.far = "near", "far"

    # Products

    def begin_tile(self) -> None:
        """The rows and columns of a tile, and its sums."""
        b = self.blocks
        self.line(f"m = {self.start} + m0 + tl.arange(0, {b.rows})")
        self.line(f"n = n0 + tl.arange(0, {b.columns})")
        self.line(f"total = tl.full([{b.rows}, {b.columns}], 0, {dtypes.computed(self.held)})")

    def store(self) -> None:
        """The store of a tile's sums."""
        roles = self.roles
        self.line(f"made = total.to({dtypes.computed(self.types[OUT])})")
        rows, columns = roles.rows.steps[OUT], roles.columns.steps[OUT]
        place = f"(m * {rows})[:, None] + (n * {columns})[None, :]"
        if roles.mode == "contracting":
            place += f" + group * {roles.group_steps[2]}"
        stored = dtypes.to_memory("made", self.types[OUT])
        mask = f"(m < {self.end})[:, None] & (n < {roles.columns.size})[None, :]"
        self.line(f"tl.store(out + {place}, {stored}, mask={mask})")

    def _add_up(self) -> None:
        """The sum over the span from `near` to `far`."""
        roles, b = self.roles, self.blocks
        group = f"group * {roles.group_steps[0]} + " if roles.mode == "free" else ""
        left, right = f"lhs + m * {roles.rows.steps[LHS]}", "rhs + " + group
        inside = [[f"m < {self.end}"], [f"n < {roles.columns.size}"]]
        if roles.mode == "free":
            # Rows beyond the group are read as the last one, and not stored.
            left = f"lhs + tl.minimum(m, {roles.rows.size - 1}) * {roles.rows.steps[LHS]}"
        if roles.mode == "free" or roles.rows.size % b.rows == 0:
            inside[0] = []
        if roles.columns.size % b.columns == 0:
            inside[1] = []
        self.line(f"left = {left}")
        self.line(f"right = {right}n * {roles.columns.steps[RHS]}")
        steps = (roles.k.steps[LHS], roles.k.steps[RHS])
        span = f"p.bound({self.near}), p.bound({self.far})"
        if not self.is_dot:
            kind = dtypes.computed(self.held)
            self.line(f"for k in range({span}):")
            self.depth += 1
            for name, side, step, tests in zip("ab", ("left", "right"), steps, inside, strict=True):
                self.line(f"{name} = tl.load({side} + k * {step}{_masked(tests)}).to({kind})")
            self.line("total += a[:, None] * b[None, :]")
            self.depth -= 1
            return
        wide = ".to(tl.int64)" if self.is_wide else ""
        self.line(f"for begin in range({span}, {b.depth}):")
        self.depth += 1
        self.line(f"k = (begin + tl.arange(0, {b.depth})){wide}")
        is_even = roles.mode != "contracting" and roles.k.size % b.depth == 0
        for name, side, step, tests, own, along in zip(
            "ab", ("left", "right"), steps, inside, ("[:, None]", "[None, :]"),
            ("[None, :]", "[:, None]"), strict=True,
        ):  # fmt: skip
            every = [f"({test}){own}" for test in tests]
            every += [] if is_even else [f"(k < {self.far}){along}"]
            place = f"{side}{own} + (k * {step}){along}"
            self.line(f"{name} = tl.load({place}{_masked(every)})")
        how = "dot_integers" if self.held is I32 else "dot"
        if self.types[LHS] is F32 and allows_tf32(self.kernel.op):
            how = "dot_tf32"
        self.line(f"total = p.{how}(a, b, total)")
        self.depth -= 1


def _masked(tests: Sequence[str]) -> str:
    """The mask of a load, with 0 elsewhere."""
    return f", mask={' & '.join(tests)}, other=0" if tests else ""


def chunk_of(groups: int) -> int:
    """The sizes of groups that are read at a time."""
    return min(GROUPS, max(2, power_of_two(groups)))
