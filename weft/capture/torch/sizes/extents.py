"""Sizes as functions of symbols: one program's dims at any sizes of its arguments."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from weft.errors import Unsupported
from weft.ir.location import UNKNOWN, Location
from weft.ir.module import Node
from weft.records import dataclass

SymbolSizes: TypeAlias = tuple[int, ...]  # of every symbol


class SizesDepend(Unsupported):
    """An op whose result at some index depends on what lies behind the end of a padded dim."""


def depends(what: str, loc: Location = UNKNOWN) -> SizesDepend:
    """The error of a program that may not be padded."""
    return SizesDepend(what, help="leave it: every size has a program of its own", loc=loc)


def of_node(what: str, node: Node) -> SizesDepend:
    """The error of an op that may not be padded."""
    return depends(f"{node.op.name} {what}", node.loc)


@dataclass(frozen=True, slots=True)
class SizeSymbol:
    """A size that varies from call to call, by the name and the range of its `torch.export.Dim`."""

    name: str
    least: int = 0
    most: int | None = None

    def has(self, size: int) -> bool:
        """Whether a size is in its range."""
        return self.least <= size and (self.most is None or size <= self.most)

    def bucket(self, size: int) -> int:
        """The size that this one is padded to: the next power of two, or the largest allowed."""
        power = 1 << (size - 1).bit_length() if size else 0
        return power if self.most is None else min(power, self.most)

    def smallest(self, bucket: int) -> int:
        """The smallest size that is padded to a bucket."""
        below = 1 << (bucket - 1).bit_length() >> 1
        return max(below + 1 if bucket > 1 else bucket, self.least, 1)


@dataclass(frozen=True, slots=True)
class Extent:
    """A number `scale * size + offset` of a symbol's size; `offset` alone without a symbol."""

    symbol: int | None
    scale: int
    offset: int

    def at(self, sizes: Sequence[int]) -> int:
        """The number for the sizes of all symbols."""
        return self.offset if self.symbol is None else self.scale * sizes[self.symbol] + self.offset

    def plus(self, number: int) -> Extent:
        """This number and another."""
        return Extent(self.symbol, self.scale, self.offset + number)


# Of one dim: the sizes of the dims merged in it, major first.
Extents: TypeAlias = tuple[Extent, ...]


def fixed(size: int) -> Extent:
    """A size that does not vary."""
    return Extent(None, 0, size)


def size_of(extents: Extents, sizes: Sequence[int]) -> int:
    """The size of a dim for the sizes of all symbols."""
    return math.prod([extent.at(sizes) for extent in extents])


def varies(extents: Extents) -> bool:
    """Whether a dim's size does."""
    return any(extent.symbol is not None for extent in extents)


def merged(parts: Sequence[Extent]) -> Extents:
    """The extents of a dim, with neighbours of fixed sizes multiplied."""
    factors: list[Extent] = []
    for part in parts:
        if part.symbol is None and factors and factors[-1].symbol is None:
            factors[-1] = fixed(factors[-1].offset * part.offset)
        else:
            factors.append(part)
    kept = [part for part in factors if part != fixed(1)]
    return tuple(kept) or (fixed(1),)


def fit(numbers: Sequence[int], probes: Sequence[SymbolSizes]) -> Extents | None:
    """The function of the symbols' sizes that has these values at the probes, or None."""
    if len(set(numbers)) == 1:
        return (fixed(numbers[0]),)
    for found in _candidates(numbers, probes):
        if all(size_of(found, at) == n for at, n in zip(probes, numbers, strict=True)):
            return found
    return None


def _candidates(numbers: Sequence[int], probes: Sequence[SymbolSizes]) -> Iterator[Extents]:
    """Functions of one symbol, then products of several."""
    count = len(probes[0])
    for symbol in range(count):
        pairs = {at[symbol]: n for at, n in zip(probes, numbers, strict=True)}
        # Filled up, as there is one pair alone where a symbol has the same size in all probes.
        (one, first), (other, second) = [*pairs.items(), (0, 0), (0, 0)][:2]
        if len(pairs) > 1 and (second - first) % (other - one) == 0:
            scale = (second - first) // (other - one)
            yield (Extent(symbol, scale, first - scale * one),)
    for symbol in range(count if count > 1 else 0):
        sizes = [at[symbol] for at in probes]
        if not any(n % size for n, size in zip(numbers, sizes, strict=True)):
            rest = fit([n // size for n, size in zip(numbers, sizes, strict=True)], probes)
            if rest is not None:
                yield merged((Extent(symbol, 1, 0), *rest))


def over_factors(extents: Extents, factors: Sequence[int], at: SymbolSizes) -> list[Extents] | None:
    """The extents of a dim by the factors of an op's rule, which divide it; None if they do not.

    A size that varies must not be divided, a fixed one may be.
    """
    queue = [part for part in extents if part != fixed(1)]
    by_factor: list[Extents] = []
    for factor in factors:
        parts: list[Extent] = []
        while factor > 1 and queue:
            size = queue[0].at(at)
            if size and factor % size == 0:
                parts.append(queue.pop(0))
                factor //= size
            elif queue[0].symbol is None and size % factor == 0:
                parts.append(fixed(factor))
                queue[0] = fixed(size // factor)
                factor = 1
            else:
                return None
        if factor != 1:
            return None
        by_factor.append(merged(parts))
    return None if queue else by_factor
