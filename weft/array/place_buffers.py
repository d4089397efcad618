"""Buffer placement: offsets for buffers of known live ranges, best fit in both directions."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from weft.records import dataclass

ALIGNMENT = 64  # alignment in bytes
_TIGHT = 1.01  # of the lower bound: a placement below it is good enough
_FEW = 1500  # buffers; placing more of them largest-first, which is quadratic, takes too long


@dataclass(frozen=True, slots=True)
class Span:
    """A buffer's bytes and live range, inclusive."""

    size: int
    begin: int
    end: int


def aligned(size: int) -> int:
    """The size rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def place(spans: Sequence[Span]) -> tuple[list[int], int]:
    """An offset for each span, and the total height.

    Spans that are live together never overlap. A loose placement is retried in other orders.
    """
    placed = _in_time(spans)
    enough = most_alive(spans) * _TIGHT
    if placed[1] > enough:
        # Backward in time: the same overlaps, but greedy placement begins at the other end.
        last = max(s.end for s in spans)
        mirrored = [Span(s.size, last - s.end, last - s.begin) for s in spans]
        placed = min(placed, _in_time(mirrored), key=_height)
    if placed[1] > enough and len(spans) <= _FEW:
        placed = min(placed, _largest_first(spans), key=_height)
    return placed


def _height(placed: tuple[list[int], int]) -> int:
    return placed[1]


def most_alive(spans: Sequence[Span]) -> int:
    """The peak of live bytes: a lower bound of the height."""
    return int(alive(spans).max(initial=0))


def alive(spans: Sequence[Span]) -> npt.NDArray[np.int64]:
    """Live bytes at every point, from the first to the last."""
    if not spans:
        return np.zeros(0, np.int64)
    first = min(s.begin for s in spans)
    change = np.zeros(max(s.end for s in spans) - first + 2, np.int64)
    np.add.at(change, [s.begin - first for s in spans], [aligned(s.size) for s in spans])
    np.add.at(change, [s.end - first + 1 for s in spans], [-aligned(s.size) for s in spans])
    return np.cumsum(change)[:-1]


class _Free:
    """Free blocks below the top, by size and by address."""

    def __init__(self) -> None:
        self.by_size: list[tuple[int, int]] = []
        self.sizes: dict[int, int] = {}  # size of the free block at an offset
        self.ends: dict[int, int] = {}  # start of the free block that ends at an offset
        self.top = 0

    def take(self, size: int) -> int:
        """Allocate from the smallest block that fits, else at the top."""
        at = bisect_left(self.by_size, (size, 0))
        if at < len(self.by_size):
            held, offset = self.by_size[at]
            self._drop(offset, held)
            if held > size:
                self._add(offset + size, held - size)
            return offset
        offset = self.ends.get(self.top, self.top)  # extend the free block at the top
        if offset < self.top:
            self._drop(offset, self.top - offset)
        self.top = offset + size
        return offset

    def give(self, offset: int, size: int) -> None:
        """Free a block, merging it with free neighbours."""
        if offset + size in self.sizes:
            size_after = self.sizes[offset + size]
            self._drop(offset + size, size_after)
            size += size_after
        if offset in self.ends:
            before = self.ends[offset]
            self._drop(before, offset - before)
            offset, size = before, size + offset - before
        self._add(offset, size)

    def _add(self, offset: int, size: int) -> None:
        insort(self.by_size, (size, offset))
        self.sizes[offset] = size
        self.ends[offset + size] = offset

    def _drop(self, offset: int, size: int) -> None:
        del self.by_size[bisect_left(self.by_size, (size, offset))]
        del self.sizes[offset]
        del self.ends[offset + size]


def _in_time(spans: Sequence[Span]) -> tuple[list[int], int]:
    """Place spans in order of begin, large ones first, each best-fit."""
    free = _Free()
    offsets = [0] * len(spans)
    ending: list[tuple[int, int]] = []
    for index in sorted(range(len(spans)), key=lambda n: (spans[n].begin, -spans[n].size, n)):
        span = spans[index]
        # Ranges are inclusive: a buffer that ends where this one begins is still in use.
        while ending and ending[0][0] < span.begin:
            done = heapq.heappop(ending)[1]
            free.give(offsets[done], aligned(spans[done].size))
        if span.size:
            offsets[index] = free.take(aligned(span.size))
            heapq.heappush(ending, (span.end, index))
    return offsets, free.top


def _largest_first(spans: Sequence[Span]) -> tuple[list[int], int]:
    """Place spans by decreasing size, each into the lowest gap among those live with it."""
    order = sorted(range(len(spans)), key=lambda n: (-spans[n].size, spans[n].begin, n))
    offsets = [0] * len(spans)
    begins, ends, lows, highs = (np.zeros(len(spans), np.int64) for _ in range(4))
    count = height = 0
    for index in order:
        span = spans[index]
        size = aligned(span.size)
        if size == 0:
            continue
        met = np.flatnonzero((begins[:count] <= span.end) & (ends[:count] >= span.begin))
        offset = _lowest(lows[met], highs[met], size)
        offsets[index] = offset
        begins[count], ends[count] = span.begin, span.end
        lows[count], highs[count] = offset, offset + size
        count += 1
        height = max(height, offset + size)
    return offsets, height


def _lowest(lows: npt.NDArray[np.int64], highs: npt.NDArray[np.int64], size: int) -> int:
    """The lowest offset with a gap of this size between occupied ranges."""
    if lows.size == 0 or lows.min() >= size:
        return 0
    order = np.argsort(lows, kind="stable")
    tops = np.maximum.accumulate(highs[order])
    gaps = np.flatnonzero(lows[order][1:] - tops[:-1] >= size)
    return int(tops[gaps[0]] if gaps.size else tops[-1])
