"""Propagation conflicts: for every op, the axes that its tensors want and do not get."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from typing import Literal

from weft.ir.rule import Rule
from weft.ir.types import TensorType
from weft.mesh import Axis, Mesh, Sharding
from weft.mesh.algebra import (
    Axes,
    is_list_prefix,
    is_strict_prefix,
    overlaps,
    prefix_without,
    size_of,
    total_size,
)
from weft.ops.distributed.sharding import PropagationBarrier
from weft.records import dataclass
from weft.shard.meshes import common_mesh
from weft.shard.propagation.factors import BOTH, Projection, compatible_major_axes
from weft.shard.propagation.graph import Graph, Visit
from weft.shard.propagation.projection import factor_sizes, project

ConflictKind = Literal[
    "closed",  # an annotation closes the dim
    "taken",  # the axis splits another dim of the tensor
    "replicated",  # an annotation replicates the tensor along the axis
    "unreduced",  # the tensor is unreduced along the axis
    "indivisible",  # the axis does not divide the rest of the dim
    "strided",  # a shard would not be contiguous in the dim
    "disagree",  # two tensors are split by different axes
    "barrier",  # a propagation barrier is between
    "blocked",  # the op does not propagate shardings along the dim
    "whole",  # the op needs the dim whole
    "padded",  # the axes do not divide the dim
]


@dataclass(frozen=True, slots=True)
class MissedAxis:
    """A tensor without an axis that another tensor of the op has along a factor."""

    kind: ConflictKind
    tensor: int  # operands, then results
    dim: int
    source: int
    source_dim: int
    axes: Axes  # the axis that is missing, or those that disagree
    other: Axes = ()  # the tensor's own axes in their place
    taken_dim: int = 0  # the dim that the axis splits
    size: int = 0  # the size of the factor that it does not divide
    rest: tuple[tuple[int, int], ...] = ()  # more tensors and dims without it, for this reason


@dataclass(frozen=True, slots=True)
class Conflict:
    """A conflict at one op: the axis, the tensors and the reason."""

    visit: Visit
    cut: MissedAxis

    @property
    def kind(self) -> ConflictKind:
        """The kind of conflict."""
        return self.cut.kind

    @property
    def cell(self) -> int:
        """The cell whose sharding lacks the axis."""
        return self.visit.cells[self.cut.tensor]

    @property
    def source(self) -> int:
        """The cell whose sharding has the axis."""
        return self.visit.cells[self.cut.source]

    @property
    def places(self) -> list[tuple[int, int]]:
        """The cells and dims involved."""
        places = [(self.cut.tensor, self.cut.dim), *self.cut.rest]
        return list(dict.fromkeys((self.visit.cells[n], dim) for n, dim in places))


def conflicts(
    graph: Graph, shardings: Sequence[Sharding | None], dead: Container[int] = ()
) -> list[Conflict]:
    """Every conflict that remains at the fixed point, in program order.

    Ops whose results are all dead (by cell) are skipped: they propagate nothing.
    """
    listed: list[Conflict] = []
    memo: dict[object, tuple[MissedAxis, ...]] = {}
    for visit in (*graph.visits, *graph.results):
        if any(cell in dead for cell in visit.cells[len(visit.rule.operands) :]):
            continue
        held = [shardings[cell] for cell in visit.cells]
        if visit.frame is not None and (last := held[-1]) is not None:
            # As the visit sees it: a manual computation hides its own axes.
            held[-1] = visit.frame.before(last)
        name = common_mesh(held, graph.module.meshes)
        if name is None:
            continue
        directions = visit.directions[-1]
        barrier = visit.node is not None and isinstance(visit.node.op, PropagationBarrier)
        key = (visit.rule, tuple(held), directions, visit.elementwise, barrier)
        # Layers repeat: equal ops with equal shardings have equal conflicts.
        cuts = memo.get(key)
        if cuts is None:
            mesh = name if isinstance(name, Mesh) else graph.module.meshes[name]
            # Without axes, everything is on one device.
            tensors = _Tensors(visit, held, mesh) if mesh.axes else None
            cuts = memo[key] = tuple(tensors.cuts(directions, barrier)) if tensors else ()
        listed.extend(Conflict(visit, cut) for cut in cuts)
    return listed


class _Tensors:
    """The operands and results of one visit, as axes along its factors."""

    def __init__(self, visit: Visit, held: Sequence[Sharding | None], mesh: Mesh) -> None:
        rule: Rule = visit.rule
        self.rule = rule
        self.mesh = mesh
        self.held = held
        self.elementwise = visit.elementwise
        self.sizes = factor_sizes(rule)
        self.dims = rule.operands + rule.results
        self.tensors = [
            project(s, d, self.sizes, mesh) for s, d in zip(held, self.dims, strict=True)
        ]
        count = len(rule.operands)
        self.projection = Projection(rule, mesh, self.tensors[:count], self.tensors[count:])

    def cuts(self, directions: tuple[int, ...], barrier: bool) -> Iterator[MissedAxis]:
        for factor, described in enumerate(self.rule.factors):
            holders = [n for n, t in enumerate(self.tensors) if factor in t.factors]
            if not any(self.axes(n, factor) for n in holders):
                continue
            if described.role == "whole":
                yield from self.gathered(factor, holders)
            yield from self.disagreement(factor, holders)
            yield from self.missing(factor, holders, directions[factor], barrier)

    def axes(self, tensor: int, factor: int) -> Axes:
        return self.tensors[tensor].factors[factor].axes

    def dim(self, tensor: int, factor: int) -> int:
        return next(d for d, factors in enumerate(self.dims[tensor]) if factor in factors)

    def gathered(self, factor: int, holders: list[int]) -> Iterator[MissedAxis]:
        """Tensors that are split along a factor which must be whole."""
        for n in holders:
            if axes := self.axes(n, factor):
                yield MissedAxis("whole", n, self.dim(n, factor), n, self.dim(n, factor), axes)

    def disagreement(self, factor: int, holders: list[int]) -> Iterator[MissedAxis]:
        """The first two tensors whose axes along a factor are incompatible: neither is a prefix."""
        for position, n in enumerate(holders):
            for other in holders[:position]:
                mine, theirs = self.axes(n, factor), self.axes(other, factor)
                if not (is_list_prefix(mine, theirs) or is_list_prefix(theirs, mine)):
                    where = self.dim(n, factor), other, self.dim(other, factor)
                    rest = [h for h in holders if h not in (n, other) and not self.axes(h, factor)]
                    both = tuple((h, self.dim(h, factor)) for h in rest)
                    yield MissedAxis("disagree", n, *where, theirs, mine, rest=both)
                    return

    def missing(
        self, factor: int, holders: list[int], direction: int, barrier: bool
    ) -> Iterator[MissedAxis]:
        """Tensors that lack an axis that all others allow."""
        # What all tensors could have if the op passed shardings both ways, and what it does pass.
        wanted = compatible_major_axes(self.projection, factor, BOTH)
        allowed = compatible_major_axes(self.projection, factor, direction)
        sources = [n for n in holders if is_list_prefix(wanted, self.axes(n, factor))]
        if not wanted or not sources:
            return
        source = sources[0]
        for n in holders:
            mine = self.axes(n, factor)
            if not is_strict_prefix(mine, wanted):
                continue
            place = self.dim(n, factor), source, self.dim(source, factor)
            if not is_strict_prefix(mine, allowed):
                kind: ConflictKind = "barrier" if barrier else "blocked"
                yield MissedAxis(kind, n, *place, wanted[-1:])
            elif cut := self.cut(n, factor, wanted, place):
                yield cut

    def cut(
        self, n: int, factor: int, wanted: Axes, place: tuple[int, int, int]
    ) -> MissedAxis | None:
        """The conflict that keeps the next axis from a tensor; None if another one implies it."""
        tensor, entry = self.tensors[n], self.tensors[n].factors[factor]
        # The last axis may be a part of the wanted one ("x":(1)2 of "x"): then that one is missing.
        partly = bool(entry.axes) and entry.axes[-1] != wanted[len(entry.axes) - 1]
        index = len(entry.axes) - partly
        axis, done = wanted[index], total_size(wanted[:index], self.mesh)
        size = self.sizes[factor]

        def missed_axis(kind: ConflictKind, taken: int = 0) -> MissedAxis:
            return MissedAxis(kind, n, *place, (axis,), taken_dim=taken, size=size)

        if prefix_without(axis, tensor.replicated) != axis:
            return missed_axis("replicated")
        if prefix_without(axis, tensor.unreduced) != axis:
            return missed_axis("unreduced")
        if self.is_closed(n, place[0]):
            return missed_axis("closed")
        if not entry.is_minor_most and _is_uneven(size, done, size_of(axis, self.mesh)):
            return missed_axis("indivisible")
        for other, taken in tensor.factors.items():
            if other != factor and any(overlaps(axis, a) for a in taken.axes + taken.overflow):
                return missed_axis("taken", self.dim(n, other))
        if self.elementwise and n < len(self.rule.operands):
            return None  # the result lacks it, too, and reports the reason
        return missed_axis("strided")

    def is_closed(self, n: int, dim: int) -> bool:
        sharding = self.held[n]
        return sharding is not None and not sharding.dims[dim].is_open


def _is_uneven(size: int, done: int, pieces: int) -> bool:
    return bool(size % done) or math.gcd(size // done, pieces) != pieces


# Sizes that do not divide


@dataclass(frozen=True, slots=True)
class Padding:
    """A dim with uneven shards."""

    cell: int
    dim: int
    size: int
    axes: Axes
    pieces: int


def paddings(graph: Graph, shardings: Sequence[Sharding | None]) -> list[Padding]:
    """Every dim whose size the number of its shards does not divide."""
    paddings_of = []
    for cell, sharding in enumerate(shardings):
        type = graph.types[cell]
        if sharding is None or not isinstance(type, TensorType):
            continue
        mesh = sharding.resolve(graph.module.meshes)
        if not mesh.axes:  # a maximal sharding: the tensor is on one device
            continue
        for dim, (size, split) in enumerate(zip(type.bounds, sharding.dims, strict=True)):
            pieces = total_size(split.axes, mesh)
            if size % pieces:
                paddings_of.append(Padding(cell, dim, size, split.axes, pieces))
    return paddings_of


def axes_text(axes: tuple[Axis, ...]) -> str:
    """`"data" and "model"`."""
    return " and ".join(map(str, axes)) or "nothing"
