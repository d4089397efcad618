"""Cross-validation of predicted collectives: rows of the measured table that the model never saw.

Rows are held out at random (20 folds), by whole sizes, and by whole group sizes, and predicted from
the others; beside it is the nearest row's rate, which is what a lookup gives. `--gaps` shows which
rows of the published table are missing here: its gaps are rows at random, so the first of the three
is how well the missing ones are predicted. Of samples as large as the gaps it says how many keep
the limits.

    python benchmarks/cost.py [--quick] [--gaps]
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from weft.columns import Column, table_text
from weft.cost.measured import CollectiveShape, CollectiveTable, measured
from weft.machine import bytes_text

Row = tuple[CollectiveShape, float]


@dataclass(frozen=True, slots=True)
class Tried:
    """A row that was held out, its error, that of the nearest row, and whether it was in bounds."""

    row: CollectiveShape
    error: float
    nearest: float
    held: bool


def at_random(rows: Sequence[Row], folds: int = 20, seed: int = 0) -> Iterator[set[int]]:
    """Sets of rows to hold out, each row once."""
    order = np.random.default_rng(seed).permutation(len(rows))
    for fold in range(folds):
        yield set(order[fold::folds].tolist())


def by(rows: Sequence[Row], key: Callable[[CollectiveShape], Hashable]) -> Iterator[set[int]]:
    """Sets of rows to hold out that have a key in common."""
    found: dict[Hashable, set[int]] = {}
    for n, (row, _) in enumerate(rows):
        found.setdefault(key(row), set()).add(n)
    yield from found.values()


def size_column(row: CollectiveShape) -> Hashable:
    return row.machine, round(math.log2(row.bytes))


def group_column(row: CollectiveShape) -> Hashable:
    return row.machine, row.op, row.group_size


def nearest(row: CollectiveShape, rows: Sequence[Row]) -> float:
    """The seconds at the rate of the nearest row: by its group first, then by its size."""

    def far(other: CollectiveShape) -> tuple[float, float]:
        group = abs(math.log2(other.group_size / row.group_size))
        return group, abs(math.log2(other.bytes / row.bytes))

    same = (row.machine, row.op, row.dtype, row.pattern)
    alike = [r for r in rows if (r[0].machine, r[0].op, r[0].dtype, r[0].pattern) == same]
    found, seconds = min(alike, key=lambda r: far(r[0]))
    return seconds * row.bytes / found.bytes


def tried(rows: Sequence[Row], held_out: Iterator[set[int]]) -> list[Tried]:
    """All rows of all sets, each set predicted from the rows outside it."""
    found = []
    for out in held_out:
        others = [row for n, row in enumerate(rows) if n not in out]
        model = CollectiveTable(others)
        for n in sorted(out):
            row, seconds = rows[n]
            made = model.estimate(row)
            off, by_nearest = made.seconds / seconds, nearest(row, others) / seconds
            held = made.low <= seconds <= made.high
            found.append(Tried(row, abs(off - 1), abs(by_nearest - 1), held))
    return found


def line(name: tuple[str, str], rows: Sequence[Tried]) -> tuple[str, ...]:
    errors = np.array([row.error for row in rows])
    others = np.array([row.nearest for row in rows])
    held = float(np.mean([row.held for row in rows]))
    return (
        *name,
        str(len(rows)),
        f"{np.median(errors):.1%}",
        f"{np.quantile(errors, 0.95):.1%}",
        f"{np.mean(errors > 0.25):.1%}",
        f"{np.median(others):.1%}",
        f"{np.quantile(others, 0.95):.1%}",
        f"{held:.0%}",
    )


HEADS = ("rows", "median", "95%", "over 25%", "nearest", "its 95%", "in interval")


def show(title: str, found: Sequence[Tried], detail: bool) -> None:
    keys = sorted({(row.row.machine, row.row.op) for row in found}) if detail else []
    cells = [line(k, [r for r in found if (r.row.machine, r.row.op) == k]) for k in keys]
    machines = sorted({row.row.machine for row in found})
    cells += [line((m, "all"), [r for r in found if r.row.machine == m]) for m in machines]
    columns = [Column("machine"), Column("op"), *[Column(head, right=True) for head in HEADS]]
    print(f"\n{title}")
    print(table_text(columns, [*cells, line(("all", ""), found)]), flush=True)


def show_sizes(found: Sequence[Tried]) -> None:
    """The errors by size, over all machines and kinds."""
    bands = [(1 << low, 1 << (low + 4)) for low in range(8, 36, 4)]
    cells = []
    for low, high in bands:
        inside = [row for row in found if low <= row.row.bytes < high]
        if inside:
            cells.append(line((bytes_text(low), bytes_text(high)), inside))
    columns = [Column("from", right=True), Column("to", right=True)]
    columns += [Column(head, right=True) for head in HEADS]
    print("\nby size")
    print(table_text(columns, cells), flush=True)


def show_samples(found: Sequence[Tried], count: int = 591, samples: int = 4000) -> None:
    """The spread of the errors of as many rows as the published table has and this one lacks."""
    errors = np.array([row.error for row in found])
    others = np.array([row.nearest for row in found])
    numbers = np.random.default_rng(0)
    drawn = [numbers.choice(len(errors), count, replace=False) for _ in range(samples)]
    medians = np.array([np.median(errors[rows]) for rows in drawn])
    tails = np.array([np.quantile(errors[rows], 0.95) for rows in drawn])
    twice = np.array([np.median(others[rows]) for rows in drawn]) / medians
    low, middle, high = np.quantile(tails, [0.05, 0.5, 0.95])
    kept = np.mean((medians <= 0.08) & (tails <= 0.25) & (twice >= 2))
    print(
        f"\nsamples of {count} of these rows: median at most {medians.max():.1%}, 95th percentile"
    )
    print(
        f"{middle:.1%} ({low:.1%} to {high:.1%} in nine of ten), {twice.min():.0f} times as good as"
    )
    print(f"the nearest row at least; {kept:.0%} keep 8%, 25% and twice")


def show_gaps(rows: Sequence[Row]) -> None:
    """The rows that each curve lacks on the grid of sizes of its machine, kind and devices."""
    curves: dict[Hashable, set[int]] = {}
    grids: dict[Hashable, set[int]] = {}
    for row, _ in rows:
        where = (row.machine, row.op, row.dtype, row.groups * row.group_size)
        curves.setdefault((where, row.pattern, row.group_size), set()).add(row.bytes)
        grids.setdefault(where, set()).add(row.bytes)
    runs: Counter[int] = Counter()
    lacking = present = 0
    for (where, *_), sizes in curves.items():  # type: ignore[misc]
        marks = "".join("#" if size in sizes else "." for size in sorted(grids[where]))
        present, lacking = present + marks.count("#"), lacking + marks.count(".")
        runs.update(len(run) for run in marks.split("#") if run)
    share = lacking / (lacking + present)
    print(f"{lacking} of {lacking + present} cells of the grid are empty ({share:.1%})")
    total = sum(runs.values())
    for length, count in sorted(runs.items()):
        chance = (1 - share) * share ** (length - 1)
        print(f"  gaps of {length}: {count / total:.1%}; of rows left out at random {chance:.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="rows at random only")
    parser.add_argument("--gaps", action="store_true", help="only what the table lacks")
    given = parser.parse_args()
    rows = measured().rows
    if given.gaps:
        show_gaps(rows)
        return
    found = tried(rows, at_random(rows))
    show("rows at random, 20 folds", found, detail=True)
    show_sizes(found)
    show_samples(found)
    if not given.quick:
        show("a whole size of a machine", tried(rows, by(rows, size_column)), detail=False)
        # Permutations were measured in one or two groups only.
        grouped = [row for row in rows if not row[0].pattern]
        found = tried(grouped, by(grouped, group_column))
        show("a whole group size of a kind", found, detail=False)


if __name__ == "__main__":
    main()
