"""Instances by position: iotas, selects by bounds, tables."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.types import I32, DType
from weft.kernels import kernel as k
from weft.tile.drafts.draft import Definition, Draft, Terms
from weft.tile.drafts.index import Bound, Expr, times


def position(where: Expr, dtype: DType) -> Definition:
    """An expression as a number."""
    return Definition((), lambda numbers, terms: k.Position(terms.affine(where), dtype))


def bounded_select(
    bounds: tuple[Bound, ...], inside: int, outside: int, dtype: DType
) -> Definition:
    """A select by bounds between two instances."""

    def make(numbers: tuple[int, ...], terms: Terms) -> k.Step:
        return k.Choose(terms.guards(bounds), numbers[0], numbers[1], dtype)

    return Definition((inside, outside), make)


def same_as(number: int) -> Definition:
    """An alias of another instance."""
    return Definition((number,), None)


def looked_up(draft: Draft, where: Expr, table: Sequence[int]) -> int:
    """The instance of a constant table at an index."""
    # Permutations of devices are mostly shifts: a select for each run of a few is cheaper than a
    # table in memory, and stays affine.
    *before, last = runs_of(table)
    entry = _run(draft, where, last)
    for run in reversed(before):
        bounds = ((where, run[0], run[1]),)
        entry = draft.anonymous(bounded_select(bounds, _run(draft, where, run), entry, I32))
    return entry


def _run(draft: Draft, where: Expr, run: tuple[int, int, int, int]) -> int:
    begin, _, first, step = run
    return draft.anonymous(position(times(where, step, first - step * begin), I32))


def runs_of(table: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """A table as arithmetic runs: begin, end, first number, step."""
    runs: list[tuple[int, int, int, int]] = []
    begin = 0
    while begin < len(table):
        end = begin + 1
        step = table[end] - table[begin] if end < len(table) else 0
        while end < len(table) and table[end] - table[end - 1] == step:
            end += 1
        runs.append((begin, end, table[begin], step))
        begin = end
    return runs
