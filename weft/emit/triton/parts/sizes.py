"""Sizes of tiles: the rows and elements that a program computes at a time, and its warps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft.emit.triton.collapse import reduced_factors
from weft.kernels.kernel import Contract, Kernel, Load, Pick, Reduce, args_of

ROW = 16384  # elements of a row that stay in registers
ELEMENTS = 4096  # elements of a tile of rows
GRID = 1 << 16  # programs along the second dim of a grid
SHORT = 2048  # elements of a row that is not split in parts
NARROW = 16  # the fewest neighbouring rows of a tile


def power_of_two(size: int) -> int:
    """The least power of two that is not below."""
    # tl.arange and the shapes of tiles take powers of two only; the rest is masked.
    return 1 << max(0, size - 1).bit_length()


def options_of(kernel: Kernel) -> dict[str, int]:
    """The options of a kernel's schedule."""
    return dict(kernel.schedule.options)


def fastest_factor(strides: Sequence[int], sizes: Sequence[int]) -> int | None:
    """The factor of stride 1, if there is one."""
    found = [n for n, stride in enumerate(strides) if abs(stride) == 1 and sizes[n] > 1]
    return found[0] if found else None


def levels_of(kernel: Kernel) -> Mapping[int, int]:
    """By reduction, the number of reductions on the way to it, itself included."""
    depths: list[int] = []
    levels: dict[int, int] = {}
    for n, step in enumerate(kernel.steps):
        level = max([depths[a] for a in args_of(step)], default=0)
        if isinstance(step, Reduce | Pick | Contract):
            level += 1
            levels[n] = level
        depths.append(level)
    return levels


def tile_of(kernel: Kernel, rows: int, length: int, outer: int = 1) -> tuple[int, int, int]:
    """The rows and elements of a tile, and the warps of its program.

    `outer` is how often there are so many rows, each in programs of their own.
    """
    options = options_of(kernel)
    columns = runs_along_rows(kernel)
    whole = power_of_two(length)
    if columns:
        height = options.get("rows", _height_of_columns(rows, whole, outer))
        width = options.get("block", min(whole, max(1, ELEMENTS // height)))
    else:
        width = options.get("block", _width(kernel, whole))
        height = options.get("rows", _height(rows, width))
    return (
        height,
        width,
        options.get("warps", _warps_of_rows(height * width * _tiles_held(kernel), width)),
    )


def column_factor(kernel: Kernel, rows: Sequence[int]) -> int | None:
    """The factor of columns that lie side by side, if others, of programs, enclose it unevenly."""
    if len(rows) < 2 or not runs_along_rows(kernel):
        return None
    inner, size = rows[-1], kernel.factors[rows[-1]].size
    outer = math.prod(kernel.factors[n].size for n in rows[:-1])
    loads = [step for step in kernel.steps if isinstance(step, Load)]
    runs = all(step.at.strides[inner] in (0, 1) for step in loads)
    return inner if runs and size % 64 and size >= 16 and outer < GRID else None


def _height_of_columns(rows: int, length: int, outer: int) -> int:
    """Neighbouring rows of a tile.

    Where few rows are short, as those of partial results are, more programs share them; few long
    ones are split in parts.
    """
    height = power_of_two(rows) if rows <= 128 else 64
    few = rows <= 128 and outer < 8
    while few and height > NARROW and ELEMENTS // height < length <= SHORT:
        height //= 2
    return height


def _warps_of_rows(elements: int, width: int) -> int:
    """Of long rows each lane holds 64 elements: several programs fit, whose loads overlap."""
    return min(16, max(1, elements // (512 if width < 8192 else 2048)))


def _tiles_held(kernel: Kernel) -> int:
    """How many operands of whole rows a program holds, rounded up to a power of two."""
    every = {n for n, factor in enumerate(kernel.factors) if factor.size > 1}
    loads = [step for step in kernel.steps if isinstance(step, Load)]
    held = sum({n for n, k in enumerate(load.at.strides) if k} >= every for load in loads)
    return power_of_two(max(1, held))


def _width(kernel: Kernel, whole: int) -> int:
    """Elements of a block of a row: the row, if its tile is not too large for the registers.

    A long row with one reduction is read twice, the second time from cache, which takes less than
    waiting for the whole row.
    """
    if whole <= 4096:
        return whole
    if any(isinstance(step, Pick) for step in kernel.steps):
        return 2048
    if max(levels_of(kernel).values(), default=0) == 1:
        return 4096
    return whole if whole <= ROW else 2048


def _height(rows: int, width: int) -> int:
    """Rows of a tile: as many as fill it, if enough programs are left."""
    height = max(1, 1024 // width)
    # Programs before rows of a tile: about two for each of 132 multiprocessors.
    while height > 1 and rows // height < 256:
        height //= 2
    return height


def runs_along_rows(kernel: Kernel) -> bool:
    """Whether neighbouring rows, not neighbouring elements of a row, are adjacent in memory."""
    reduced = reduced_factors(kernel)
    votes = 0
    for step in kernel.steps:
        if isinstance(step, Load):
            sizes = [f.size for f in kernel.factors]
            fastest = fastest_factor(step.at.strides, sizes)
            if fastest is not None:
                weight = math.prod(s for s, k in zip(sizes, step.at.strides, strict=True) if k)
                votes += weight if fastest not in reduced else -weight
    return votes > 0
