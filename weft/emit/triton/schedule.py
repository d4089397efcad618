"""Schedules on a GPU: by points, by rows, with sums of their columns, or on matrix units.

Matrix units are those of PyTorch's library or of Triton's tiles.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.emit.triton.collapse import collapsed, reduced_factors
from weft.emit.triton.library.product import ALGORITHMS, library_product
from weft.emit.triton.parts.columns import crossed_sums
from weft.emit.triton.persistent import described_sides
from weft.emit.triton.product import refuses_matrix_units
from weft.kernels.kernel import (
    Contract,
    Kernel,
    OptionRanges,
    Pick,
    Reduce,
    Schedule,
    refuses_options,
)

_SIZES = tuple(1 << n for n in range(15))
_WARPS = (1, 2, 4, 8, 16, 32)
_TILES: OptionRanges = {
    **dict.fromkeys(("rows", "columns", "depth"), (16, 32, 64, 128, 256)),
    "warps": (4, 8),
    "stages": range(1, 8),
    "persistent": (1,),
}
OPTIONS: Mapping[str, OptionRanges] = {
    "points": {"block": _SIZES, "warps": _WARPS},
    "rows": {"block": _SIZES, "rows": _SIZES, "warps": _WARPS, "parts": range(1, 1 << 12)},
    "crossed": {"rows": _SIZES, "warps": _WARPS},
    "matrix": {**_TILES, "library": (0,)},
    "library": {**_TILES, "algorithm": range(1, ALGORITHMS + 1)},
}


def schedule_of(kernel: Kernel) -> Schedule:
    """The loops that form programs first, and then those of reductions."""
    reduced = sorted(reduced_factors(kernel))
    outer = [n for n in range(len(kernel.factors)) if n not in reduced]
    return Schedule(kind_of(kernel), (*outer, *reduced), len(outer))


def kind_of(kernel: Kernel) -> str:
    """The form of a kernel's programs."""
    small = collapsed(kernel)
    if any(isinstance(s, Contract) for s in small.steps):
        if library_product(small) is not None:
            return "library"
        return "matrix" if refuses_matrix_units(small) is None else "rows"
    sets = {frozenset(s.over) for s in small.steps if isinstance(s, Reduce | Pick)}
    if len(sets) > 1 and crossed_sums(small) is not None:
        return "crossed"
    return "rows" if sets else "points"


def refuses_schedule(kernel: Kernel) -> str | None:
    """Why a kernel's schedule is invalid on a GPU, or None if it is valid."""
    schedule = kernel.schedule
    if schedule.kind not in OPTIONS:
        return f"unknown schedule {schedule.kind[:40]!r}"
    small = collapsed(kernel)
    contracts = any(isinstance(s, Contract) for s in small.steps)
    if schedule.kind in ("matrix", "library"):
        if not contracts:
            return "it contracts nothing"
        by_tiles = schedule.kind == "matrix" or "rows" in dict(schedule.options)
        if by_tiles and (reason := refuses_matrix_units(small)):
            return reason
        if schedule.kind == "library" and library_product(small) is None:
            return "no library computes this product"
    options = dict(schedule.options)
    if options.get("persistent") and described_sides(small) is None:
        return "no tensor descriptors describe its sides"
    if (schedule.kind == "crossed") != (crossed_sums(small) is not None):
        return f"its sums do not run as {schedule.kind}"
    is_reduced = any(isinstance(s, Reduce | Pick | Contract) for s in small.steps)
    if is_reduced != (schedule.kind != "points"):
        return f"its loops do not run as {schedule.kind}"
    return refuses_options(schedule.options, OPTIONS[schedule.kind])
