"""Reshard planning: the cheapest sequence of collectives from one split of a tensor to another.

A split is a list of axis parts for each dim, major first. Slicing is free; permutes, all-to-alls
and gathers cost the bytes that they send, or by the prices of a machine. The cheapest sequence is
found by Dijkstra's algorithm (there are few distinct reshards in a program, and each is planned
once).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Literal

from weft.cost.collective_time import TrafficKind
from weft.cost.prices import BYTES, STEP, CollectivePrices
from weft.ir.types import TensorType
from weft.mesh import Axis, Mesh
from weft.mesh.algebra import Axes, DimAxes, merged, size_of, total_size
from weft.mesh.cuts import aligned, refined
from weft.partition.piece import local_type
from weft.records import dataclass

ReshardKind = Literal[
    "slice", "permute", "all_to_all", "all_gather", "all_reduce", "reduce_scatter"
]
_TRAFFIC: Mapping[ReshardKind, TrafficKind] = {
    "permute": "permute",
    "all_to_all": "exchange",
    "all_gather": "gather",
    "all_reduce": "reduce",
    "reduce_scatter": "scatter",
}
_LIMIT = 3000  # states expanded before the fallback: gather all, then slice


@dataclass(frozen=True, slots=True)
class ReshardStep:
    """One collective: its kind, dims and axes, and the split after it."""

    kind: ReshardKind
    axes: Axes
    split: DimAxes  # after it
    unreduced: Axes  # after it
    dim: int = 0  # the dim that is sliced, gathered or scattered; an all_to_all concatenates it
    to: int = 0  # the dim that an all_to_all splits
    before: DimAxes = ()  # for a permute


@dataclass(frozen=True, slots=True)
class ReshardPlan:
    """The steps of a reshard, the bytes that each device sends, and their price."""

    steps: tuple[ReshardStep, ...]
    bytes: float
    cost: float  # the bytes themselves without a machine


@dataclass(frozen=True, slots=True)
class _State:
    split: DimAxes
    unreduced: Axes


@lru_cache(maxsize=65536)
def plan(
    type: TensorType,
    start: DimAxes,
    unreduced: Axes,
    target: DimAxes,
    still_unreduced: Axes,
    mesh: Mesh,
    prices: CollectivePrices = BYTES,
) -> ReshardPlan:
    """The cheapest plan between splits; axes missing from `still_unreduced` are reduced."""
    # Axes of size 1 split nothing, and would only multiply the states.
    start, target = _without_ones(start, mesh), _without_ones(target, mesh)
    unreduced = tuple(a for a in unreduced if size_of(a, mesh) > 1)
    still_unreduced = tuple(a for a in still_unreduced if size_of(a, mesh) > 1)
    if start == target and unreduced == still_unreduced:
        return ReshardPlan((), 0.0, 0.0)
    uneven = {
        dim
        for dim, (size, a, b) in enumerate(zip(type.sizes, start, target, strict=True))
        # Padded pieces of one number do not line up with those of another: no exchange of whole
        # pieces maps one to the other.
        if a != b and (size % total_size(a, mesh) or size % total_size(b, mesh))
    }
    if not uneven:
        return _Search(type, mesh, (start, target), (unreduced, still_unreduced), prices).run()
    return _around_uneven(type, (start, target), (unreduced, still_unreduced), uneven, mesh, prices)


def _without_ones(split: DimAxes, mesh: Mesh) -> DimAxes:
    return tuple(tuple(a for a in axes if size_of(a, mesh) > 1) for axes in split)


def _around_uneven(
    type: TensorType,
    ends: tuple[DimAxes, DimAxes],
    over: tuple[Axes, Axes],
    uneven: set[int],
    mesh: Mesh,
    prices: CollectivePrices,
) -> ReshardPlan:
    """A plan for misaligned dims: they are gathered, and split again at the end."""
    start, target = ends
    # Until they are gathered, other dims must not use their axes, nor those of deferred dims.
    waiting: set[int] = set()
    for _ in start:
        held = {d: {a.name for a in start[d]} for d in uneven | waiting}
        waiting |= {
            d
            for d, axes in enumerate(target)
            if d not in uneven and any(a.name in held[e] for a in axes for e in held if e != d)
        }
    first = tuple(
        s if d in uneven or d in waiting else t
        for d, (s, t) in enumerate(zip(start, target, strict=True))
    )
    steps: list[ReshardStep] = []
    begun = plan(type, start, over[0], first, over[1], mesh, prices)
    steps.extend(begun.steps)
    sent, cost = begun.bytes, begun.cost
    split = first
    for dim in sorted(uneven):
        if split[dim]:
            to = _next_of(type, split, target, dim, uneven, mesh)
            if to is not None:
                axes = split[dim]
                share = 1 - 1 / total_size(axes, mesh)
                moved = _padded_bytes(type, split, mesh) * share
                sent, cost = sent + moved, cost + prices.price("exchange", axes, moved)
                split = _with(_with(split, dim, ()), to, (*split[to], *axes))
                steps.append(ReshardStep("all_to_all", axes, split, over[1], dim, to))
                continue
            axes, split = split[dim], _with(split, dim, ())
            steps.append(ReshardStep("all_gather", merged(axes, mesh), split, over[1], dim))
            moved = _bytes(type, split, mesh) * (1 - 1 / total_size(axes, mesh))
            sent, cost = sent + moved, cost + prices.price("gather", axes, moved)
    opened = tuple(() if d in uneven else t for d, t in enumerate(target))
    rest = plan(type, split, over[1], opened, over[1], mesh, prices)
    steps.extend(rest.steps)
    split = opened
    for dim in sorted(uneven):
        if target[dim]:
            split = _with(split, dim, target[dim])
            steps.append(ReshardStep("slice", target[dim], split, over[1], dim))
    return ReshardPlan(tuple(steps), sent + rest.bytes, cost + rest.cost)


def _next_of(
    type: TensorType, split: DimAxes, target: DimAxes, dim: int, uneven: set[int], mesh: Mesh
) -> int | None:
    """The next dim to split, by exactly the axes of another."""
    for to, wanted in enumerate(target):
        made = (*split[to], *split[dim])
        if to != dim and to not in uneven and wanted[: len(made)] == made:
            return to if type.sizes[to] % total_size(made, mesh) == 0 else None
    return None


def _padded_bytes(type: TensorType, split: DimAxes, mesh: Mesh) -> float:
    return local_type(type, split, mesh).size * type.dtype.bits / 8


def _with(split: DimAxes, dim: int, axes: Axes) -> DimAxes:
    return (*split[:dim], axes, *split[dim + 1 :])


def _bytes(type: TensorType, split: DimAxes, mesh: Mesh) -> float:
    pieces = math.prod(total_size(axes, mesh) for axes in split)
    return type.size * type.dtype.bits / 8 / pieces


class _Search:
    """Dijkstra's search over splits."""

    def __init__(
        self,
        type: TensorType,
        mesh: Mesh,
        ends: tuple[DimAxes, DimAxes],
        over: tuple[Axes, Axes],
        prices: CollectivePrices,
    ) -> None:
        self.type, self.mesh, self.prices = type, mesh, prices
        # Axes are split at the boundaries of both ends, so that a sub-axis can move by itself.
        cuts = aligned(ends, over, mesh)
        self.start, self.target = (
            _State(
                tuple(refined(axes, cuts, mesh) for axes in split), refined(unreduced, cuts, mesh)
            )
            for split, unreduced in zip(ends, over, strict=True)
        )
        self.wanted = [set(axes) for axes in self.target.split]

    def run(self) -> ReshardPlan:
        """The cheapest plan."""
        numbers = itertools.count()  # breaks ties in the heap: states have no order
        best: dict[_State, float] = {self.start: 0.0}
        came: dict[_State, tuple[_State, ReshardStep, float]] = {}
        queue: list[tuple[float, int, _State]] = [(0.0, next(numbers), self.start)]
        seen = 0
        while queue:
            cost, _, state = heapq.heappop(queue)
            if state == self.target:
                return self.path(came)
            # An older entry of the heap: the state was reached more cheaply since.
            if cost > best[state]:
                continue
            seen += 1
            # Permutations of many small axes explode; beyond this a gather costs less than the
            # search.
            if seen > _LIMIT:
                return self.plain()
            for step, sent in self.moves(state):
                after = _State(step.split, step.unreduced)
                total = cost + self.price(step, sent) + STEP
                if total < best.get(after, math.inf):
                    best[after] = total
                    came[after] = (state, step, sent)
                    heapq.heappush(queue, (total, next(numbers), after))
        return self.plain()

    def path(self, came: dict[_State, tuple[_State, ReshardStep, float]]) -> ReshardPlan:
        """The steps to the target."""
        steps: list[ReshardStep] = []
        sent = price = 0.0
        state = self.target
        while state != self.start:
            state, step, bytes = came[state]
            sent, price = sent + bytes, price + self.price(step, bytes)
            steps.append(step)
        return ReshardPlan(tuple(reversed(steps)), sent, price)

    def price(self, step: ReshardStep, sent: float) -> float:
        """The price of one collective."""
        kind = _TRAFFIC.get(step.kind)
        return 0.0 if kind is None else self.prices.price(kind, step.axes, sent)

    def plain(self) -> ReshardPlan:
        """The fallback plan: reduce, gather all, slice; always valid."""
        steps: list[ReshardStep] = []
        state, sizes = self.start, list[float]()
        paid = tuple(a for a in state.unreduced if a not in self.target.unreduced)
        if paid:
            left = tuple(a for a in state.unreduced if a not in paid)
            state = _State(state.split, left)
            steps.append(ReshardStep("all_reduce", merged(paid, self.mesh), state.split, left))
            sizes.append(2 * self.bytes(state.split))
        for dim, axes in enumerate(state.split):
            if axes:
                state = _State(_with(state.split, dim, ()), state.unreduced)
                steps.append(ReshardStep("all_gather", axes, state.split, state.unreduced, dim))
                sizes.append(self.bytes(state.split))
        for dim, axes in enumerate(self.target.split):
            if axes:
                state = _State(_with(state.split, dim, axes), state.unreduced)
                steps.append(ReshardStep("slice", axes, state.split, state.unreduced, dim))
        # Slices come last, and are free.
        prices = [self.price(step, sent) for step, sent in zip(steps, sizes, strict=False)]
        return ReshardPlan(tuple(steps), sum(sizes), sum(prices))

    def bytes(self, split: DimAxes) -> float:
        return _bytes(self.type, split, self.mesh)

    def moves(self, state: _State) -> Iterator[tuple[ReshardStep, float]]:
        """The successors of a state: collectives, with the bytes they send."""
        used = {axis for axes in state.split for axis in axes} | set(state.unreduced)
        yield from self.reductions(state)
        yield from self.permutes(state)
        for dim, axes in enumerate(state.split):
            size = self.type.sizes[dim] // total_size(axes, self.mesh)
            for axis in self.target.split[dim]:
                # An axis may split a tensor once; a slice by it is free, since every device has all
                # of the dim.
                if axis not in used and size % size_of(axis, self.mesh) == 0:
                    split = _with(state.split, dim, (*axes, axis))
                    yield ReshardStep("slice", (axis,), split, state.unreduced, dim), 0.0
            # Only minor axes come off: without a major one the shards would not be contiguous.
            for count in range(1, len(axes) + 1):
                yield from self.removals(state, dim, axes[:-count], axes[-count:])

    def removals(
        self, state: _State, dim: int, kept: Axes, moved: Axes
    ) -> Iterator[tuple[ReshardStep, float]]:
        """Gathers and all-to-alls of a dim's minor axes."""
        fewer = _with(state.split, dim, kept)
        share = 1 - 1 / total_size(moved, self.mesh)
        yield (
            ReshardStep("all_gather", moved, fewer, state.unreduced, dim),
            self.bytes(fewer) * share,
        )
        # A gather sends parts of its result, an all_to_all of its (smaller) operand.
        sent = self.bytes(state.split) * share
        for to, wanted in enumerate(self.wanted):
            if to != dim and wanted.issuperset(moved):
                size = self.type.sizes[to] // total_size(fewer[to], self.mesh)
                if size % total_size(moved, self.mesh) == 0:
                    split = _with(fewer, to, (*fewer[to], *moved))
                    yield ReshardStep("all_to_all", moved, split, state.unreduced, dim, to), sent

    def permutes(self, state: _State) -> Iterator[tuple[ReshardStep, float]]:
        """Permutes: to the target's device order, or to one with kept axes first."""
        free = set(state.unreduced)
        # Of all permutations only these two: others send as much and are no closer to the target.
        for split in {self.as_target(state.split), self.kept_first(state.split)}:
            if split is None or split == state.split:
                continue
            # An unreduced axis already holds different terms on its devices: it cannot split a dim
            # as well.
            if not any(axis in free for axes in split for axis in axes):
                step = ReshardStep("permute", (), split, state.unreduced, before=state.split)
                # Every device sends its whole shard, at worst: some may already hold what they
                # need.
                yield step, self.bytes(split)

    def as_target(self, split: DimAxes) -> DimAxes | None:
        """For each dim the prefix of the target's axes with the same number of shards."""
        dims = []
        for axes, wanted in zip(split, self.target.split, strict=True):
            pieces, count, length = total_size(axes, self.mesh), 1, 0
            while count < pieces and length < len(wanted):
                count *= size_of(wanted[length], self.mesh)
                length += 1
            if count != pieces:
                return None
            dims.append(wanted[:length])
        return tuple(dims)

    def kept_first(self, split: DimAxes) -> DimAxes:
        dims = []
        for axes, wanted in zip(split, self.target.split, strict=True):
            shared = tuple(a for a in wanted if a in axes)
            dims.append((*shared, *[a for a in axes if a not in shared]))
        return tuple(dims)

    def reductions(self, state: _State) -> Iterator[tuple[ReshardStep, float]]:
        """All-reduces of unreduced axes, or reduce-scatters along dims that the axes split."""
        paid = [a for a in state.unreduced if a not in self.target.unreduced]
        if not paid:
            return
        size = self.bytes(state.split)
        for some in {tuple(paid), self.unwanted(paid)}:
            if some:
                left = tuple(a for a in state.unreduced if a not in some)
                share = 1 - 1 / total_size(some, self.mesh)
                # Twice: a ring all_reduce is a reduce_scatter and an all_gather.
                yield ReshardStep("all_reduce", some, state.split, left), 2 * size * share
        for dim, axes in enumerate(state.split):
            for some in self.scattered(dim, axes, paid):
                count = total_size(some, self.mesh)
                if self.type.sizes[dim] // total_size(axes, self.mesh) % count == 0:
                    split = _with(state.split, dim, (*axes, *some))
                    left = tuple(a for a in state.unreduced if a not in some)
                    yield (
                        ReshardStep("reduce_scatter", some, split, left, dim),
                        size * (1 - 1 / count),
                    )

    def unwanted(self, paid: list[Axis]) -> Axes:
        return tuple(a for a in paid if not any(a in wanted for wanted in self.wanted))

    def scattered(self, dim: int, axes: Axes, paid: list[Axis]) -> Iterator[Axes]:
        """Runs of unreduced axes that may split the dim."""
        wanted = self.target.split[dim]
        if wanted[: len(axes)] == axes:
            run = tuple(itertools.takewhile(lambda a: a in paid, wanted[len(axes) :]))
            yield from (run[:n] for n in range(1, len(run) + 1))
            return
        yield from ((a,) for a in wanted if a in paid)
