"""How fast Weft's kernels are on this machine's processor, beside their peers, in one run.

    python benchmarks/cpu.py [--only chains products attention irregular steps] [--quick] [--busy]

Fused chains, matrix products, attention, ops whose loops are not affine (sorts, scatters, running
sums), and whole steps on virtual devices. Peers are XLA (JAX), torch.compile (Inductor), eager
torch and numpy's BLAS. All sides take turns, and the tables show medians. A ratio is a peer's time
over Weft's: above 1, Weft is faster. `--quick` has smaller cases and fewer rounds; `--busy` counts
seconds of the processor instead of the wall clock, for machines where others work, too.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import itertools
import math
import os
import platform
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
# OpenBLAS's threads look for work for a tenth of a second, while others are at their turn.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "8")

from rich.console import Console
from rich.table import Table

from benchmarks.cpu_rows import Row, use_busy

PARTS = ("chains", "products", "attention", "irregular", "steps")


def show(rows: Iterable[Row]) -> None:
    """Print a table for every title; on a terminal, the latest row while others are measured."""
    console = screen()
    for _, titled in itertools.groupby(rows, lambda row: row.table):
        listed: list[Row] = []
        with console.status("measuring") as status:
            for row in titled:
                listed.append(row)
                status.update(f"{row.table}: {row.case}, {row.shape}: {row.ratio:.2f}")
        console.print(table_of(listed))
        summary(console, listed)


def screen() -> Console:
    """Where tables are printed, wide enough for them when it is no terminal."""
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False)


def table_of(rows: list[Row]) -> Table:
    """The rows of one title as a table."""
    peers = list(dict.fromkeys(name for row in rows for name in row.peers))
    table = Table(title=rows[0].table, title_justify="left", box=None, header_style="dim")
    for head in ("case", "shape"):
        table.add_column(head)
    for head in ("Weft", *(f"{name} /" for name in peers), "goal", "", "rate"):
        table.add_column(head, justify="right")
    table.add_column("", style="dim")
    for row in rows:
        ratios = [ratio_text(row.peers.get(name), row.weft) for name in peers]
        mark = "" if not row.peers else ("[green]✓[/]" if row.met else "[red]✗[/]")
        goal = f"{row.goal:g}" if row.peers else ""
        table.add_row(
            row.case, row.shape, amount(row), *ratios, goal, mark, rate(row), row.note
        )  # fmt: skip
    return table


def ratio_text(theirs: float | None, ours: float) -> str:
    """A peer's number over ours."""
    if theirs is None or math.isnan(theirs):
        return ""
    return f"{theirs / ours:.2f}"


def amount(row: Row) -> str:
    """Seconds or bytes, in three digits."""
    if row.unit == "B":
        return f"{row.weft / 1e6:,.4g} MB"
    units = (("s", 1.0), ("ms", 1e3), ("us", 1e6))
    unit, scale = next((u for u in units if row.weft * u[1] >= 1), units[-1])
    return f"{row.weft * scale:.3g} {unit}"


def rate(row: Row) -> str:
    """What Weft reaches: flops or bytes a second."""
    if row.flops:
        return f"{row.flops / row.weft / 1e9:,.0f} GFLOP/s"
    return f"{row.bytes / row.weft / 1e9:,.1f} GB/s" if row.bytes else ""


def summary(console: Console, rows: list[Row]) -> None:
    """The geometric mean of the ratios against the best peer, and how many goals are met."""
    raced = [row for row in rows if row.peers and not math.isnan(row.ratio)]
    if raced:
        mean = math.exp(sum(math.log(row.ratio) for row in raced) / len(raced))
        met = sum(row.met for row in raced)
        least = min(raced, key=lambda row: row.ratio)
        console.print(
            f"  against the best peer: geometric mean {mean:.2f}, least {least.ratio:.2f} "
            f"({least.case}, {least.shape}); {met} of {len(raced)} goals met\n"
        )


def machine_line() -> str:
    """What this ran on."""
    versions = [f"Python {platform.python_version()}"]
    for name in ("numpy", "jax", "torch", "llvmlite"):
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"no {name}")
    return f"{processor()}, {os.cpu_count()} cores; {', '.join(versions)}"


def processor() -> str:
    """The name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def main() -> None:
    """Measure what is asked for and print the tables."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--only", nargs="*", default=list(PARTS), choices=PARTS)
    options.add_argument("--quick", action="store_true", help="smaller cases, fewer rounds")
    options.add_argument("--busy", action="store_true", help="seconds of the processor")
    given = options.parse_args()
    if given.busy:
        use_busy()
    screen().print(f"python benchmarks/cpu.py {' '.join(sys.argv[1:])}\n{machine_line()}\n")
    for part in given.only:
        module = importlib.import_module(f"benchmarks.cpu_{part}")
        show(module.rows(given.quick))
        if part == "steps" and not given.quick:
            show(module.compile_rows(32))


if __name__ == "__main__":
    main()
