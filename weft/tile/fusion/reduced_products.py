"""Reductions of a contraction's result, fused into the contraction's kernel.

A kernel that only reduces a contraction's result is merged into it: the result is reduced while it
is in cache, and not stored at all without other readers. It is legal if the reduction is along rows
or columns of the contraction and no later step needs the result again; it is profitable if it saves
more bytes than the partial results, one for each block, take.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.ir.module import Node, Value
from weft.kernels.group import Group
from weft.kernels.kernel import Contract, Kernel, Pick, Reduce
from weft.kernels.roles import cannot_reduce, combined_along, results_reduced, roles_of
from weft.kernels.work import bytes_moved
from weft.target import Limits, Target
from weft.tile.fusion.flights import KernelFlights
from weft.tile.fusion.joining import merge_groups


def reduced_products(
    groups: Sequence[Group],
    results: Sequence[Value],
    positions: dict[Node, int],
    flights: KernelFlights,
    target: Target,
) -> list[Group]:
    """The groups, in order, with reductions merged into contractions."""
    if not any(_is_product(g) for g in groups):
        return list(groups)
    joining = _Joining(groups, results, positions, flights, target)
    for n, group in enumerate(groups):
        if _is_reduction(group):
            joining.join(n)
    return [g for g in joining.groups if g is not None]


class _Joining:
    """Groups, some of which are merged."""

    def __init__(
        self,
        groups: Sequence[Group],
        results: Sequence[Value],
        positions: dict[Node, int],
        flights: KernelFlights,
        target: Target,
    ) -> None:
        self.target, self.flights = target, flights
        self.groups: list[Group | None] = list(groups)
        self.positions = positions
        self.spans = [self._span(group) for group in groups]
        self.makers = {v: n for n, g in enumerate(groups) for v in g.outputs}
        self.results = {*results}
        self.readers: dict[Value, set[int]] = {}
        for n, group in enumerate(groups):
            for value in group.inputs:
                self.readers.setdefault(value, set()).add(n)

    def _span(self, group: Group) -> tuple[int, int]:
        """The positions of a group's first and last node."""
        positions = [self.positions[node] for node in group.nodes]
        return min(positions), max(positions)

    def join(self, number: int) -> None:
        """Merge a reduction into the contraction that it reads, if legal and profitable."""
        group = self.groups[number]
        assert group is not None
        makers = dict.fromkeys(self.makers[v] for v in group.inputs if v in self.makers)
        for maker in makers:
            product = self.groups[maker]
            assert product is not None
            if not _is_product(product) or self._waits(group, maker):
                continue
            if self.flights.land(self.spans[maker][1], self.spans[number][1]):
                continue
            read = {v for v in group.inputs if v in product.outputs}
            unread = {v for v in read - self.results if self.readers[v] == {number}}
            merged = merge_groups(product, group, unread, self.target)
            if merged is None or not _pays(product, group, merged, self.target.limits):
                continue
            self.groups[maker], self.groups[number] = merged, None
            self.spans[maker] = self._span(merged)
            self.makers.update(dict.fromkeys(group.outputs, maker))
            for value in group.inputs:
                self.readers[value].discard(number)
                if value in merged.inputs:
                    self.readers[value].add(maker)
            return

    def _waits(self, group: Group, maker: int) -> bool:
        """Whether a group depends on other readers of a group's outputs."""
        begin, _ = self.spans[maker]
        seen = {maker}
        todo = [self.makers[v] for v in group.inputs if v in self.makers]
        while todo:
            number = todo.pop()
            if number in seen:
                continue
            seen.add(number)
            # Groups before the product cannot read it: the walk stops there.
            if self.spans[number][1] < begin:
                continue
            between = self.groups[number]
            assert between is not None
            before = [self.makers[v] for v in between.inputs if v in self.makers]
            if maker in before:
                return True
            todo += before
        return False


def _is_product(group: Group) -> bool:
    kernel = group.kernel
    return isinstance(kernel, Kernel) and any(isinstance(step, Contract) for step in kernel.steps)


def _is_reduction(group: Group) -> bool:
    """Whether a group is one reduction, or several along the same factors, and little else."""
    kernel = group.kernel
    if not isinstance(kernel, Kernel):
        return False
    kinds = {type(step) for step in kernel.steps}
    return Reduce in kinds and not kinds & {Contract, Pick}


def _pays(product: Group, group: Group, made: Group, limits: Limits) -> bool:
    """Whether the merged kernel is valid and moves fewer bytes, partial results included."""
    kernels = [g.kernel for g in (product, group, made) if isinstance(g.kernel, Kernel)]
    one, two, both = kernels
    if len(both.steps) > limits.steps or cannot_reduce(both):
        return False
    old, new = roles_of(one), roles_of(both)
    for was, now in ((old.rows, new.rows), (old.columns, new.columns)):
        left = math.prod(both.factors[f].size for f in now)
        before = math.prod(one.factors[f].size for f in was)
        if left < limits.lines or left < min(limits.cut, before):
            return False
    saved = bytes_moved(one) + bytes_moved(two) - bytes_moved(both)
    # Partial results are written once and read once, hence twice their bytes.
    return saved >= limits.saved and saved > 2 * (_parts(both, limits) - _parts(one, limits))


def _parts(kernel: Kernel, limits: Limits) -> int:
    """The estimated bytes of partial results."""
    roles, total = roles_of(kernel), 0
    points = math.prod(kernel.factors[f].size for f in (*roles.batch, *roles.rows, *roles.columns))
    for n in results_reduced(kernel):
        over, each = combined_along(kernel, n), 1
        for role, size in zip((roles.rows, roles.columns), limits.block, strict=True):
            each *= 1 if over.isdisjoint(role) else size
        step = kernel.steps[n]
        assert isinstance(step, Reduce)
        total += points // each * max(4, step.dtype.numpy.itemsize)
    return total
