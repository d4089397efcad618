"""Kernels of loops without reductions: elementwise ones, by points.

A program computes a block of the flat iteration space, or a tile of two dims where an operand is
read along another dim than the results are written.
"""

from __future__ import annotations

import math
from dataclasses import replace

from weft.emit.triton.emitted import GridLaunch
from weft.emit.triton.loops import finished, program_number, store_all
from weft.emit.triton.parts.sizes import fastest_factor, options_of, power_of_two
from weft.emit.triton.tiles import TileAxis, TileWriter
from weft.kernels.kernel import Kernel, Load, Store

POINTS = 1024  # points of a program
FLAT = 2048  # points of a program that moves at most four bytes for each
VECTOR = 16  # elements of the longest vector that a lane loads


def by_points(kernel: Kernel) -> GridLaunch:
    """A kernel without reductions, of collapsed loops."""
    across = _read_across(kernel)
    if across is not None:
        return _by_tiles(kernel, across)
    options = options_of(kernel)
    size = kernel.points
    # Few bytes for each point: a program of twice the points has as many loads in flight, and half
    # the programs to schedule.
    light = len(kernel.factors) == 1 and sum(o.nbytes for o in kernel.operands) <= 4 * size
    most = FLAT if light and size >= FLAT * 1024 else POINTS
    block = options.get("block", min(most, max(32, power_of_two(size))))
    axis = TileAxis("x", tuple(range(len(kernel.factors))), size, block)
    tiles = TileWriter(kernel, {"x": axis})
    view = ("x",)
    # One program for each block, none of them in a loop: `place` masks the last one.
    tiles.line(f"x = {program_number(tiles, 0)} * {block} + tl.arange(0, {block})")
    whole = size // block
    if axis.is_even or not whole or size % VECTOR == 0:
        tiles.place(view, axis, "x")
        store_all(tiles, view)
    else:
        # A mask that ends inside of a vector makes loads one by one, in all programs.
        for head, part in (
            (f"if tl.program_id(0) < {whole}:", replace(axis, size=whole * block)),
            ("else:", axis),
        ):
            with tiles.loop(head):
                tiles.place(view, part, "x")
                store_all(tiles, view)
    return finished(
        tiles, kernel.name, (axis.blocks, 1, 1), warps=options.get("warps", min(4, _warps(block)))
    )


def _warps(points: int) -> int:
    """About eight points a lane, at least one warp and at most eight."""
    return min(8, max(1, points // 256))


def _read_across(kernel: Kernel) -> int | None:
    """The factor that the largest such load runs along fastest, if not the one of the stores."""
    store = next(s for s in kernel.steps if isinstance(s, Store))
    sizes = [f.size for f in kernel.factors]
    last = fastest_factor(store.at.strides, sizes)
    counts: dict[int, int] = {}  # by factor: elements that are read along it
    for step in kernel.steps:
        if isinstance(step, Load):
            # The store decides the order of points; a load along another factor would then touch a
            # cache line for each element.
            strides = step.at.strides
            first = fastest_factor(strides, sizes)
            is_slow = last is not None and abs(strides[last]) > 1
            if first is not None and first != last and is_slow and sizes[first] >= 8:
                count = math.prod([n for n, stride in zip(sizes, strides, strict=True) if stride])
                counts[first] = counts.get(first, 0) + count
    return max(counts, key=lambda factor: counts[factor], default=None)


def _by_tiles(kernel: Kernel, across: int) -> GridLaunch:
    """Tiles of two dims: the factor that a load runs along, and all others."""
    options = options_of(kernel)
    size = kernel.factors[across].size
    rest = tuple(n for n in range(len(kernel.factors)) if n != across)
    count = math.prod(kernel.factors[n].size for n in rest)
    wide = options.get("block", 64)
    # A square tile, so that loads are coalesced along one dim and stores along the other; Triton
    # transposes it through shared memory.
    y = TileAxis("y", (across,), size, min(wide, power_of_two(size)))
    x = TileAxis("x", rest, count, min(wide, power_of_two(count)))
    tiles = TileWriter(kernel, {"y": y, "x": x})
    view = ("y", "x")
    tiles.line(f"program = {program_number(tiles, 0)}")
    for axis, number in ((y, f"program // {x.blocks}"), (x, f"program % {x.blocks}")):
        flat = tiles.let(f"{number} * {axis.block} + tl.arange(0, {axis.block})", axis.name)
        tiles.place(view, axis, flat)
    store_all(tiles, view)
    warps = options.get("warps", _warps(x.block * y.block // 2))
    return finished(tiles, kernel.name, (x.blocks * y.blocks, 1, 1), warps=warps)
