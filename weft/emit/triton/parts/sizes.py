"""Sizes of tiles: the rows and elements that a program computes at a time, and its warps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft.emit.triton.collapse import reduced_factors
from weft.kernels.kernel import Contract, Kernel, Load, Pick, Reduce, args_of

ROW = 16384  # elements of a row that stay in registers
ELEMENTS = 4096  # elements of a tile of rows


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
    found: list[int] = []
    levels: dict[int, int] = {}
    for n, step in enumerate(kernel.steps):
        level = max([found[a] for a in args_of(step)], default=0)
        if isinstance(step, Reduce | Pick | Contract):
            level += 1
            levels[n] = level
        found.append(level)
    return levels


def tile_of(kernel: Kernel, rows: int, length: int) -> tuple[int, int, int]:
    """The rows and elements of a tile, and the warps of its program."""
    options = options_of(kernel)
    columns = _runs_along_rows(kernel)
    whole = power_of_two(length)
    if columns:
        height = options.get("rows", power_of_two(rows) if rows <= 128 else 64)
        width = options.get("block", min(whole, max(1, ELEMENTS // height)))
    else:
        width = options.get("block", _width(kernel, whole))
        height = options.get("rows", _height(rows, width))
    return (
        height,
        width,
        options.get("warps", _warps_of_rows(height * width, width)),
    )


def _warps_of_rows(elements: int, width: int) -> int:
    """Of long rows each lane holds 64 elements: several programs fit, whose loads overlap."""
    return min(16, max(1, elements // (512 if width < 8192 else 2048)))


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


def _runs_along_rows(kernel: Kernel) -> bool:
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
