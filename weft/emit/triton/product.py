"""Contractions on matrix units: tiles of rows and columns, accumulated along blocks of the depth.

Steps before the contraction are computed on the tiles of its sides, and those after it on the tile
of its result.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from weft.emit.triton import dtypes
from weft.emit.triton.emitted import GridLaunch
from weft.emit.triton.loops import finished
from weft.emit.triton.parts.sizes import options_of, power_of_two
from weft.emit.triton.tiles import TileAxis, TileValue, TileView, TileWriter
from weft.kernels.kernel import Contract, Kernel, Load, Pick, Reduce, Store, is_rounded
from weft.kernels.roles import Roles, roles_of, size_of
from weft.records import dataclass

MATRIX_TYPES = {"f8E4M3FN", "f8E5M2", "bf16", "f16", "f32", "i8"}


def contract_of(kernel: Kernel) -> int:
    """The step of the contraction."""
    return next(n for n, step in enumerate(kernel.steps) if isinstance(step, Contract))


def refuses_matrix_units(
    kernel: Kernel, types: Collection[str] = frozenset(MATRIX_TYPES)
) -> str | None:
    """Why a contraction runs by rows and not on matrix units of these types; None if it can."""
    sums = [s for s in kernel.steps if isinstance(s, Reduce | Pick | Contract)]
    if len(sums) != 1:
        return "it is reduced as well"
    (contract,) = sums
    assert isinstance(contract, Contract)
    sides = [kernel.steps[n] for n in (contract.lhs, contract.rhs)]
    kinds = {side.dtype.name for side in sides if not isinstance(side, Store)}
    if len(kinds) != 1 or not kinds <= {*types}:
        return f"of {' and '.join(sorted(kinds))}"
    roles = roles_of(kernel)
    if not roles.rows or not roles.columns:
        return "it is a product with a vector"
    return None


@dataclass(frozen=True, slots=True)
class Blocks:
    """The sizes of a tile: rows, columns, depth; warps, and stages of the pipeline of loads."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


def blocks_of(kernel: Kernel, m: int, n: int, k: int) -> Blocks:
    """The tile of a product, by its sizes."""
    options = options_of(kernel)
    contract = kernel.steps[contract_of(kernel)]
    assert isinstance(contract, Contract)
    side = kernel.steps[contract.lhs]
    assert not isinstance(side, Store)
    wide = side.dtype.bits >= 32
    large = 64 if wide else 128
    rows = min(large, max(16, power_of_two(m)))
    columns = min(64 if wide else 256, max(16, power_of_two(n)))
    # Fewer tiles than an H100 or H200 has multiprocessors (132): smaller tiles keep more of them
    # busy.
    while not wide and rows * columns > 16 * 16 and -(-m // rows) * -(-n // columns) < 132:
        if columns >= rows and columns > 32:
            columns //= 2
        elif rows > 32:
            rows //= 2
        else:
            break
    least = 32 if side.dtype.bits == 8 else 16  # of Triton's dot
    depth = min(32 if wide else 64, max(least, power_of_two(k)))
    warps = 8 if rows * columns >= 128 * 256 else 4
    stages = 3 if rows * columns >= 128 * 256 else 4
    return Blocks(
        options.get("rows", rows),
        options.get("columns", columns),
        max(least, options.get("depth", depth)),
        options.get("warps", warps),
        options.get("stages", 2 if wide else stages),
    )


def by_matrix_units(kernel: Kernel) -> GridLaunch:
    """A contraction, of collapsed loops."""
    return TileProduct(kernel).launch()


class TileProduct:
    """The tiles of one contraction, each a program."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.at = kernel, contract_of(kernel)
        contract = kernel.steps[self.at]
        assert isinstance(contract, Contract)
        self.contract, self.roles = contract, roles_of(kernel)
        m, n, k = (self._size(f) for f in (self.roles.rows, self.roles.columns, self.roles.depth))
        self.blocks = blocks_of(kernel, m, n, k)
        b = self._size(self.roles.batch)
        sizes = (self.blocks.rows, self.blocks.columns, self.blocks.depth)
        self.m, self.n, self.k = (
            TileAxis(name, tuple(factors), size, block)
            for name, factors, size, block in zip(
                "mnk", _sides(self.roles), (m, n, k), sizes, strict=True
            )
        )
        self.b = TileAxis("b", tuple(self.roles.batch), b, 1)
        axes = {axis.name: axis for axis in (self.m, self.n, self.k, self.b)}
        self.tiles = TileWriter(kernel, axes)

    def _size(self, factors: Sequence[int]) -> int:
        return size_of(self.kernel, factors)

    def launch(self) -> GridLaunch:
        """The launch."""
        tiles, m, n = self.tiles, self.m, self.n
        tiles.line("program = tl.program_id(0)")
        left, right, result = self.place()
        self._accumulate(left, right)
        self.finish(result)
        grid = (m.blocks * n.blocks, self.b.size, 1)
        return finished(tiles, self.kernel.name, grid, self.blocks.warps, self.blocks.stages)

    def place(self) -> tuple[TileView, TileView, TileView]:
        """The indices of a program's tile, in the views of both sides and of the result.

        Programs are in groups of rows, so that neighbours share columns in cache.
        """
        tiles, m, n = self.tiles, self.m, self.n
        group = min(8, m.blocks)
        tiles.line(f"group = program // {group * n.blocks} * {group}")
        tiles.line(f"height = tl.minimum({m.blocks} - group, {group})")
        tiles.line(f"m0 = group + program % {group * n.blocks} % height")
        tiles.line(f"n0 = program % {group * n.blocks} // height")
        wide = ".to(tl.int64)" if tiles.is_wide else ""
        tiles.line(f"m = m0{wide} * {m.block} + tl.arange(0, {m.block})")
        tiles.line(f"n = n0{wide} * {n.block} + tl.arange(0, {n.block})")
        left: TileView = ("m", "k")
        right: TileView = ("k", "n")
        result: TileView = ("m", "n")
        views = (left, right, result)
        if self.b.factors:
            batch = tiles.let(f"tl.program_id(1){wide}", "b")
            for view in views:
                tiles.place(view, self.b, batch)
        for view, axis, name in (
            (left, m, "m"),
            (right, n, "n"),
            (result, m, "m"),
            (result, n, "n"),
        ):
            tiles.place(view, axis, name)
        return views

    def _accumulate(self, left: TileView, right: TileView) -> None:
        tiles, k, contract = self.tiles, self.k, self.contract
        kind = dtypes.computed(contract.held)
        tiles.line(f"total = tl.full([{self.m.block}, {self.n.block}], 0, {kind})")
        with tiles.loop(f"for start in range(0, {k.size}, {k.block}):"):
            tiles.line(f"k = start + tl.arange(0, {k.block})")
            tiles.place(left, k, "k")
            tiles.place(right, k, "k")
            a, b = self._side(contract.lhs, left), self._side(contract.rhs, right)
            tiles.line(f"total = {function_of(contract)}({a}, {b}, total)")

    def _side(self, number: int, view: TileView) -> str:
        """A side's tile in its element type, 0 beyond the depth."""
        tiles, step = self.tiles, self.kernel.steps[number]
        assert not isinstance(step, Store)
        if isinstance(step, Load):
            # `tl.dot` takes the narrow type: it is not widened here, as for other steps.
            tiles.raw = True
            value = tiles.value(number, view)
            tiles.raw = False
            text = tiles.broadcast(value, view)
            return text if text.isidentifier() else tiles.let(text)
        value = tiles.value(number, view)
        text = tiles.broadcast(value, view)
        # Loads are masked to 0 already, but a computed side may make something else of it: exp(0)
        # is 1.
        if inside := tiles.inside(frozenset({"k"}), view):
            text = f"tl.where({inside[0]}, {text}, 0)"
        return tiles.let(f"({text}).to({dtypes.stored(step.dtype)})")

    def finish(self, view: TileView) -> None:
        """The steps after the contraction, whose sum is `total`, and the stores."""
        tiles, contract = self.tiles, self.contract
        text = f"total.to({dtypes.computed(contract.dtype)})"
        if is_rounded(contract.dtype, excess_precision=self.kernel.excess_precision):
            text = f"{dtypes.rounded('total', contract.dtype)}.to(tl.float32)"
        tiles.know(self.at, view, TileValue(tiles.let(text), frozenset(view)))
        stores = [step for step in self.kernel.steps if isinstance(step, Store)]
        # All values before the first store: a result may be written over an operand.
        values = [tiles.value(store.arg, view) for store in stores]
        for store, value in zip(stores, values, strict=True):
            tiles.store(store, value, view)


def function_of(contract: Contract) -> str:
    """The product of two tiles."""
    if not contract.held.is_float:
        return "p.dot_integers"
    return "p.dot_tf32" if contract.tf32 else "p.dot"


def _sides(roles: Roles) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    return roles.rows, roles.columns, roles.depth
