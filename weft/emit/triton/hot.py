"""Rows of which one element differs, as those of the gradient of cross-entropy: it is stored apart.

A comparison of all positions with a place holds a predicate for each element of a lane, which has
registers for seven.
"""

from __future__ import annotations

from collections.abc import Collection

from weft.emit.triton.tiles import TileAxis, needed_by
from weft.kernels.kernel import Apply, Kernel, Pick, Position, Reduce, Step, Store, args_of
from weft.ops.elementwise.pointwise import Compare
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class HotElement:
    """The comparison that holds at one element of a row, and the step that is its place."""

    comparison: int
    place: int
    stores: tuple[Store, ...]  # those that depend on it


def hot_element(kernel: Kernel, row: TileAxis) -> HotElement | None:
    """The only comparison of positions along the row with a place that stores alone read."""
    steps = kernel.steps
    reduced = [n for n, step in enumerate(steps) if isinstance(step, Reduce | Pick)]
    early = needed_by(kernel, [arg for n in reduced for arg in args_of(steps[n])])
    found = [
        (n, place)
        for n, step in enumerate(steps)
        if n not in early and (place := _place(kernel, step, row)) is not None
    ]
    if len(found) != 1:
        return None
    comparison, place = found[0]
    stores = [step for step in steps if isinstance(step, Store)]
    depend = [one for one in stores if comparison in needed_by(kernel, [one.arg])]
    # Of others no element differs; those that have no element for each of the row are no rows.
    every = all(_spans(kernel, steps.index(one), row.factors) for one in depend)
    return HotElement(comparison, place, tuple(depend)) if depend and every else None


def _place(kernel: Kernel, step: Step, row: TileAxis) -> int | None:
    """The place that a step compares positions along the row with; None if it is another step."""
    if not isinstance(step, Apply) or not isinstance(step.op, Compare):
        return None
    if step.op.comparison_direction != "EQ":
        return None
    for position, place in (step.args, step.args[::-1]):
        along = kernel.steps[position]
        if not isinstance(along, Position) or along.dtype.is_float:
            continue
        # Positions beyond the type would wrap around, and several be equal.
        if row.size - 1 > along.dtype.limits[1] or not _is_flat(kernel, along, row):
            continue
        if not any(_spans(kernel, n, row.factors) for n in needed_by(kernel, [place])):
            return place
    return None


def _is_flat(kernel: Kernel, position: Position, row: TileAxis) -> bool:
    """Whether a position is that in the row."""
    wanted, step = dict.fromkeys(range(len(kernel.factors)), 0), 1
    for factor in reversed(row.factors):
        wanted[factor] = step
        step *= kernel.factors[factor].size
    at = position.at
    strides = [(at.strides[f], wanted[f]) for f in wanted if kernel.factors[f].size > 1]
    return at.offset == 0 and all(one == other for one, other in strides)


def _spans(kernel: Kernel, number: int, factors: Collection[int]) -> bool:
    return bool(kernel.spans[number] & {*factors})
