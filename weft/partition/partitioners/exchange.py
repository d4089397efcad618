"""Planning of range exchanges: every device gets a range of a split dim.

A dim is in equal shards on the devices along axes (padded at its end). The device at index t wants
the `width` elements from starts[t] on, of which it needs those in needs[t]. Each overlap of a shard
with a wanted range is an edge of a bipartite graph from owners to takers. Edges that share no owner
and no taker (a matching) go in one permute, cut to the longest overlap among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

from weft.records import dataclass

STEP = 64.0  # the cost of one more collective in bytes
_FAR = 32  # the most shards that a device reads from; beyond it the dim is gathered

# A number for each index along the axes, None where none is needed.
DeviceTable = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class DimRanges:
    """The ranges of a dim that devices want: of one width, from a start per device."""

    starts: tuple[int, ...]
    width: int
    needs: tuple[tuple[int, int], ...]  # bounds of the needed part, within the dim


@dataclass(frozen=True, slots=True)
class Slab:
    """Parts of shards of one length, sliced on their owners and written on their takers."""

    # For each taker the owner, or -1; None where all take their own.
    sources: tuple[int, ...] | None
    cut: DeviceTable  # for each owner the part's offset in its shard
    length: int
    at: DeviceTable  # for each taker the part's offset in its range

    @property
    def moves(self) -> int:
        """The number of devices that send."""
        return sum(s not in (-1, t) for t, s in enumerate(self.sources or ()))


@dataclass(frozen=True, slots=True)
class PieceExchange:
    """The slabs of every device's range; without slabs the whole dim is gathered."""

    slabs: tuple[Slab, ...]
    is_gather: bool
    bytes: float  # bytes sent per device, on average


@dataclass(frozen=True, slots=True)
class _Edge:
    owner: int
    taker: int
    begin: int  # offset in the owner's shard
    end: int
    base: int  # the shard's offset in the taker's range


def ranges(
    starts: Iterable[int], width: int, size: int, stops: Sequence[int] = (), low: int = 0
) -> DimRanges:
    """The ranges of that width; elements beyond the dim or a device's stop are not needed."""
    starts = tuple(starts)
    ends = stops or [s + width for s in starts]
    needs = []
    for start, end in zip(starts, ends, strict=True):
        begin, end = max(start, low), min(start + width, end, size)
        needs.append((begin, end) if begin < end else (0, 0))
    return DimRanges(starts, width, tuple(needs))


@lru_cache(maxsize=16384)
def exchange(piece: int, wanted: DimRanges, row: float) -> PieceExchange:
    """The cheapest exchange for shards of that length, with `row` bytes per element."""
    count = len(wanted.starts)
    gather = PieceExchange((), True, piece * (count - 1) * row)
    # Bounds the time of planning, too: each device has as many edges as shards that it reads from.
    far = max((_span(need, piece) for need in wanted.needs), default=0)
    if far > _FAR:
        return gather
    edges = [edge for taker in range(count) for edge in _edges(taker, piece, wanted)]
    # Equal offsets on all devices need no table of starts, so they come first; else edges are
    # coloured in two orders, of which the cheaper is taken.
    slabs = _uniform(edges, wanted.starts, piece)
    if slabs is None:
        options = [_coloured(e, count, piece) for e in (edges, _longest_first(edges))]
        slabs = min(options, key=lambda made: _bytes(made, count, row) + STEP * _steps(made))
    sent = _bytes(slabs, count, row)
    is_gather = gather.bytes + STEP < sent + STEP * _steps(slabs)
    return gather if is_gather else PieceExchange(slabs, False, sent)


def no_exchange(wanted: DimRanges, size: int) -> Slab:
    """The exchange for a replicated dim: nothing is sent."""
    length = max(end - begin for begin, end in wanted.needs)
    # Moved down at the end of the dim: a slice is clamped there, which would shift its elements.
    cut = [min(b, size - length) if b < e else None for b, e in wanted.needs]
    at = [None if c is None else c - s for c, s in zip(cut, wanted.starts, strict=True)]
    return Slab(None, tuple(cut), length, tuple(at))


def _span(need: tuple[int, int], piece: int) -> int:
    begin, end = need
    return (end - 1) // piece - begin // piece + 1 if begin < end else 0


def _edges(taker: int, piece: int, wanted: DimRanges) -> Iterable[_Edge]:
    begin, end = wanted.needs[taker]
    if begin == end:
        return
    for owner in range(begin // piece, (end - 1) // piece + 1):
        first = owner * piece
        yield _Edge(
            owner,
            taker,
            max(begin - first, 0),
            min(end - first, piece),
            first - wanted.starts[taker],
        )


def _longest_first(edges: list[_Edge]) -> list[_Edge]:
    return sorted(edges, key=lambda e: e.begin - e.end)


def _bytes(slabs: Sequence[Slab], count: int, row: float) -> float:
    return sum(slab.length * slab.moves / count * row for slab in slabs)


def _steps(slabs: Sequence[Slab]) -> int:
    return sum(slab.moves > 0 for slab in slabs)


def _uniform(edges: list[_Edge], starts: tuple[int, ...], piece: int) -> tuple[Slab, ...] | None:
    """A slab for each offset of a shard in the ranges, if these do not overlap."""
    count = len(starts)
    places = sorted({edge.base for edge in edges})
    if any(b - a < piece for a, b in pairwise(places)):
        return None
    slabs = []
    for base in places:
        group = [edge for edge in edges if edge.base == base]
        if len({edge.owner for edge in group}) < len(group):
            return None
        begin, end = min(e.begin for e in group), max(e.end for e in group)
        slab = _slab(group, count, [begin] * len(group), end - begin)
        if slab.sources is None:
            if any(t * piece - s != base for t, s in enumerate(starts)):
                return None  # a device's own shard would be written at a wrong offset
            # A table of one number on all devices is a static offset in the program.
            slab = replace(slab, at=(base + begin,) * count)
        slabs.append(slab)
    return tuple(slabs)


def _coloured(edges: list[_Edge], count: int, piece: int) -> tuple[Slab, ...]:
    """Greedy edge colouring: own parts first, then each edge in the first free permute."""
    groups: list[list[_Edge]] = [[e for e in edges if e.owner == e.taker]]
    busy: list[tuple[set[int], set[int]]] = [(set(), set())]
    for edge in edges:
        if edge.owner == edge.taker:
            continue
        for n in range(1, len(groups)):
            if edge.owner not in busy[n][0] and edge.taker not in busy[n][1]:
                break
        else:
            n = len(groups)
            groups.append([])
            busy.append((set(), set()))
        groups[n].append(edge)
        busy[n][0].add(edge.owner)
        busy[n][1].add(edge.taker)
    slabs = []
    for group in groups:
        if group:
            # All parts of a permute have one static length; shorter ones take more of their
            # owner's shard than needed, moved down so that the slice stays inside of it.
            length = max(e.end - e.begin for e in group)
            begins = [min(e.begin, piece - length) for e in group]
            slabs.append(_slab(group, count, begins, length))
    return tuple(slabs)


def _slab(group: list[_Edge], count: int, begins: list[int], length: int) -> Slab:
    sources: list[int] = [-1] * count
    cut: list[int | None] = [None] * count
    at: list[int | None] = [None] * count
    for edge, begin in zip(group, begins, strict=True):
        sources[edge.taker] = edge.owner
        cut[edge.owner] = begin
        at[edge.taker] = edge.base + begin
    is_own = all(edge.owner == edge.taker for edge in group)
    return Slab(None if is_own else tuple(sources), tuple(cut), length, tuple(at))
