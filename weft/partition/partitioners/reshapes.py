"""Reshapes: aligned shards stay in place, others are exchanged between neighbours.

A reshape consists of segments, runs of dims with the same elements on both sides. If a segment is
split along its first dim on both sides, every device holds a range of its elements in row-major
order, and wants another range, which overlaps with those of a few neighbours.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from weft.ir.module import Node
from weft.ir.rule import Rule, RuleBuilder
from weft.ir.types import TensorType
from weft.mesh import Mesh
from weft.mesh.algebra import Axes, DimAxes, total_size
from weft.ops.shape import Reshape, shared_factors
from weft.partition.partitioners.exchange import DimRanges, ranges
from weft.partition.partitioners.halo import exchanged, fetch
from weft.partition.piece import Piece, local_type
from weft.partition.site import NodeSite, tensor
from weft.partition.strategy.factors import FactorAxes, split_by_factors
from weft.records import dataclass

_MANY = 3  # the most segments that are tried both ways


@dataclass(frozen=True, slots=True)
class Segment:
    """Dims of both sides with the same elements, without those of size 1."""

    source: tuple[int, ...]
    target: tuple[int, ...]

    @property
    def is_plain(self) -> bool:
        """Whether it is one dim on both sides."""
        return len(self.source) == len(self.target) == 1


def segments(source: Sequence[int], target: Sequence[int]) -> list[Segment]:
    """The shortest runs of dims with equal products."""
    # Dims of size 1 have no elements to align, and would make the runs ambiguous.
    left = [d for d, size in enumerate(source) if size != 1]
    right = [d for d, size in enumerate(target) if size != 1]
    segments_so_far = []
    while left:
        a, b = 1, 1
        at, to = source[left[0]], target[right[0]]
        # The side with the smaller product takes one more dim; this ends, as both sides have as
        # many elements.
        while at != to:
            if at < to:
                at *= source[left[a]]
                a += 1
            else:
                to *= target[right[b]]
                b += 1
        segments_so_far.append(Segment(tuple(left[:a]), tuple(right[:b])))
        left, right = left[a:], right[b:]
    return segments_so_far


def reshape_rules(node: Node, splits: tuple[DimAxes, ...]) -> tuple[Rule, ...]:
    """Shardy's rule, and alternatives with one factor for the first dims of some segments."""
    operand, out = tensor(node.operands[0].type), tensor(node.types[0])
    own = node.op.rule(operand)
    if not operand.size or not any(splits[0]):
        return (own,)
    runs = segments(operand.sizes, out.sizes)
    split = [
        n for n, s in enumerate(runs) if not s.is_plain and any(splits[0][d] for d in s.source)
    ]
    # The alternatives double with each segment, and every one is costed.
    if len(split) > _MANY:
        return (own, _rule(operand, out, runs, set(split)))
    subsets = [
        set(some)
        for count in range(1, len(split) + 1)
        for some in itertools.combinations(split, count)
    ]
    return (own, *[_rule(operand, out, runs, some) for some in subsets])


def _rule(operand: TensorType, out: TensorType, runs: list[Segment], ragged: set[int]) -> Rule:
    """Shardy's factors, but one factor for the first dims of each of these segments."""
    builder = RuleBuilder((operand,), (out,))
    for n, run in enumerate(runs):
        if n in ragged:
            first, to = run.source[0], run.target[0]
            # One factor for dims of different sizes: the shards are uneven, and are exchanged
            # afterwards. The larger size keeps the axes that divide either.
            builder.factor([first], [to], max(operand.sizes[first], out.sizes[to]))
            continue
        sizes = [operand.sizes[d] for d in run.source], [out.sizes[d] for d in run.target]
        for source, target, size in shared_factors(*sizes):
            builder.factor(
                [None if source is None else run.source[source]],
                [None if target is None else run.target[target]],
                size,
                needs_offset=source is None or target is None,
            )
    return builder.build()


@dataclass(frozen=True, slots=True)
class Range:
    """A misaligned segment: its axes, and the ranges that devices want."""

    segment: Segment
    axes: Axes
    wanted: DimRanges


def uneven(
    operand: TensorType, out: TensorType, splits: tuple[DimAxes, DimAxes], mesh: Mesh
) -> Iterator[Range]:
    """The misaligned segments: their shards differ between operand and result."""
    before, after = local_type(operand, splits[0], mesh), local_type(out, splits[1], mesh)
    for run in segments(operand.sizes, out.sizes):
        axes = splits[0][run.source[0]]
        # Only the first dims are split, so each device has one contiguous range, padding at the
        # end.
        held = math.prod(before.sizes[d] for d in run.source)
        width = math.prod(after.sizes[d] for d in run.target)
        if axes and held != width:
            size = math.prod(operand.sizes[d] for d in run.source)
            count = total_size(axes, mesh)
            yield Range(run, axes, ranges((n * width for n in range(count)), width, size))


def reshape_sent(node: Node, rule: Rule, by_factor: FactorAxes, mesh: Mesh) -> float:
    """The bytes of the exchanges."""
    operand, out = tensor(node.operands[0].type), tensor(node.types[0])
    splits = (
        split_by_factors(by_factor, rule.operands[0], rule, mesh),
        split_by_factors(by_factor, rule.results[0], rule, mesh),
    )
    if splits[0] is None or splits[1] is None or not operand.size:
        return 0.0
    local = local_type(operand, splits[0], mesh)
    total = 0.0
    for found in uneven(operand, out, (splits[0], splits[1]), mesh):
        flat, dim = flattened(local, found.segment)
        total += exchanged(flat, dim, found.wanted).bytes
    return total


def flattened(type: TensorType, run: Segment) -> tuple[TensorType, int]:
    """The type with the dims of a segment flattened, and the flattened dim."""
    first, last = run.source[0], run.source[-1]
    sizes = type.sizes
    joined = math.prod(sizes[first : last + 1])
    return type.with_shape((*sizes[:first], joined, *sizes[last + 1 :])), first


def reshape(site: NodeSite) -> tuple[Piece, ...]:
    """The shard in its new shape, after the exchange of misaligned segments."""
    (operand,), (out,) = site.operands, site.node.types
    value, builder = operand.value, site.builder
    if not operand.type.size:
        return site.plain()
    # From the last one on, so that earlier dim numbers stay valid.
    found = list(uneven(operand.type, tensor(out), (operand.split, site.splits[0]), site.mesh))
    for each in reversed(found):
        flat, dim = flattened(tensor(value.type), each.segment)
        value = builder.emit(Reshape(flat), value) if flat is not value.type else value
        value = fetch(builder, value, dim, each.axes, each.wanted)
    return site.result_pieces(builder.emit(Reshape(tensor(site.local_types()[0])), value))
