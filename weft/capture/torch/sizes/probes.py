"""The sizes that a program is captured for, to learn what it is at others."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from weft.capture.torch.sizes.extents import SizeSymbol, SymbolSizes

_COUNT = 3  # captures: two tell a linear function, and one more confirms it
_FAR = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37)  # sizes that few other dims have


def probes_of(
    symbols: Sequence[SizeSymbol], bucket: SymbolSizes, fixed: Collection[int]
) -> Iterator[list[SymbolSizes]]:
    """Sizes of all symbols to capture for: in the bucket and far away, then in the bucket alone.

    A size that other dims have would hide which of them varies: `fixed` ones are avoided, and those
    of other symbols. An op that is repeated log(size) times is the same within a bucket only.
    """
    for far in (_FAR, ()):
        columns: list[list[int]] = []
        for n, (symbol, size) in enumerate(zip(symbols, bucket, strict=True)):
            taken = [{*fixed, *[column[k] for column in columns]} for k in range(_COUNT)]
            columns.append(_three_sizes(symbol, size, far, taken, n))
        rows = [*dict.fromkeys(zip(*columns, strict=True))]
        if all(len(set(column)) > 1 for column in columns):
            yield rows


def _three_sizes(
    symbol: SizeSymbol,
    bucket: int,
    far: Sequence[int],
    used: Sequence[Collection[int]],
    shift: int,
) -> list[int]:
    """Three sizes of a symbol: near the bucket's end, near its beginning, and another."""
    inside = [*range(symbol.smallest(bucket), bucket + 1)]
    middle = len(inside) // 2
    allowed = [size for size in far if symbol.has(size)]
    orders = (inside[::-1], inside, allowed or inside[middle:] + inside[:middle])
    sizes: list[int] = []
    for k in range(_COUNT):
        # In another order for every symbol, so that no two of them grow together.
        order = orders[(k + shift) % _COUNT]
        new = [size for size in order if size not in sizes] or order
        sizes.append(next((size for size in new if size not in used[k]), new[0]))
    return sizes
