"""Offsets for buffers whose lifetimes are known: best fit, from both ends of the program."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64  # bytes
_TIGHT = 1.01  # times the most bytes in use at once: a placement that low is not improved
_FEW = 1500  # buffers up to which the largest-first placement is tried, too


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes that are in use from one point of the program to another, both included."""

    size: int
    begin: int
    end: int


def aligned(size: int) -> int:
    """The size that a buffer takes up."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def place(spans: Sequence[Span]) -> tuple[list[int], int]:
    """An offset for each span, and the height of them all.

    Spans that meet in time never overlap. A placement that is not tight is tried in other orders.
    """
    placed = _in_time(spans)
    enough = most_alive(spans) * _TIGHT
    if placed[1] > enough:
        last = max(s.end for s in spans)
        mirrored = [Span(s.size, last - s.end, last - s.begin) for s in spans]
        placed = min(placed, _in_time(mirrored), key=_height)
    if placed[1] > enough and len(spans) <= _FEW:
        placed = min(placed, _largest_first(spans), key=_height)
    return placed


def _height(placed: tuple[list[int], int]) -> int:
    return placed[1]


def most_alive(spans: Sequence[Span]) -> int:
    """The most bytes that are in use at once: no placement is lower."""
    return int(alive(spans).max(initial=0))


def alive(spans: Sequence[Span]) -> npt.NDArray[np.int64]:
    """The bytes in use at every point, from the first to the last."""
    if not spans:
        return np.zeros(0, np.int64)
    first = min(s.begin for s in spans)
    change = np.zeros(max(s.end for s in spans) - first + 2, np.int64)
    np.add.at(change, [s.begin - first for s in spans], [aligned(s.size) for s in spans])
    np.add.at(change, [s.end - first + 1 for s in spans], [-aligned(s.size) for s in spans])
    return np.cumsum(change)[:-1]


class _Free:
    """The free blocks below the top, by size and by address."""

    def __init__(self) -> None:
        self.by_size: list[tuple[int, int]] = []
        self.sizes: dict[int, int] = {}  # of the free block that begins at an offset
        self.ends: dict[int, int] = {}  # where the free block that ends at an offset begins
        self.top = 0

    def take(self, size: int) -> int:
        """The smallest block that fits, or bytes at the top."""
        at = bisect_left(self.by_size, (size, 0))
        if at < len(self.by_size):
            held, offset = self.by_size[at]
            self._drop(offset, held)
            if held > size:
                self._add(offset + size, held - size)
            return offset
        offset = self.ends.get(self.top, self.top)  # a free block below the top grows
        if offset < self.top:
            self._drop(offset, self.top - offset)
        self.top = offset + size
        return offset

    def give(self, offset: int, size: int) -> None:
        """A block is free again, together with the free ones beside it."""
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
    """Place spans as they begin, the large ones first, each into the smallest gap that fits."""
    free = _Free()
    offsets = [0] * len(spans)
    ending: list[tuple[int, int]] = []
    for index in sorted(range(len(spans)), key=lambda n: (spans[n].begin, -spans[n].size, n)):
        span = spans[index]
        while ending and ending[0][0] < span.begin:
            done = heapq.heappop(ending)[1]
            free.give(offsets[done], aligned(spans[done].size))
        if span.size:
            offsets[index] = free.take(aligned(span.size))
            heapq.heappush(ending, (span.end, index))
    return offsets, free.top


def _largest_first(spans: Sequence[Span]) -> tuple[list[int], int]:
    """Place the largest spans first, each into the lowest gap between those it meets in time."""
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
    """The lowest offset at which so many bytes fit between the taken ones."""
    if lows.size == 0 or lows.min() >= size:
        return 0
    order = np.argsort(lows, kind="stable")
    tops = np.maximum.accumulate(highs[order])
    gaps = np.flatnonzero(lows[order][1:] - tops[:-1] >= size)
    return int(tops[gaps[0]] if gaps.size else tops[-1])
