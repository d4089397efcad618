"""Bytes that a device sends in a step: XLA's partitioner beside Weft's, on the whole corpus.

    python benchmarks/lean.py [--only TEXT] [--level 0|1|2] [--refresh] [--kinds] [--rows]

Both sides get the same annotated program and mesh. XLA's collectives are read from its optimized
HLO, compiled for forced host devices with Shardy; Weft's are those of the local program after the
passes of an optimization level. With n devices in a group a gather counts (n-1)/n of its result, a
reduction 2(n-1)/n of its operand, a reduce-scatter or all-to-all (n-1)/n, a permutation the share
of devices that send; loops count as often as they run. A full gather, in
one step or several, gives every device what all of them held.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jaxlib
from rich.console import Console
from rich.table import Table

from tests.oracles.xla_collectives import collectives
from tests.partition.lean import Key, Traffic, keys, known, ours, partitioned, refresh
from tests.shard.corpus import MESHES, annotated
from weft.cost.sent import bytes_sent
from weft.errors import WeftError
from weft.ir.module import Module


def shown(bytes_: float) -> str:
    """Bytes as a number with separators."""
    return f"{bytes_:,.0f}"


def ratio(made: float, theirs: float) -> str:
    """Ours by theirs."""
    if theirs == 0:
        return "-" if made == 0 else "inf"
    return f"{made / theirs:.2f}"


def verdict(made: Traffic, theirs: Traffic) -> str:
    """How the two compare, in a word."""
    if made.bytes > theirs.bytes * 1.0001:
        return "MORE"
    if made.full_gathers and not theirs.full_gathers:
        return "FULL GATHER"
    return "less" if made.bytes < theirs.bytes * 0.9999 else "equal"


def kinds(traffic: Traffic) -> str:
    """The bytes of each kind of collective."""
    return ", ".join(f"{name} {shown(size)}" for name, size in sorted(traffic.kinds.items()))


def list_rows(key: Key, local: Module) -> None:
    """Every collective of both sides."""
    devices = MESHES[key[1]][0].size
    print(" / ".join(key))
    for theirs in collectives(annotated(*key).text(), devices):
        each = f"{theirs.count:4} x {shown(theirs.bytes):>12}"
        print(f"  XLA   {each}  {theirs.name:20} {theirs.devices:3} devices")
    for row in bytes_sent(local):
        each = f"{row.count:4} x {shown(row.bytes):>12}"
        print(f"  Weft  {each}  {row.name:27} {row.devices:3} devices  {row.loc.describe()}")


def main() -> None:
    """Print the table and its summary."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", default="", help="programs with this in `name / mesh / how`")
    options.add_argument("--refresh", action="store_true", help="ask XLA again where needed")
    options.add_argument("--kinds", action="store_true", help="show the kinds of collectives")
    options.add_argument("--level", type=int, default=1, choices=(0, 1, 2), help="of optimization")
    options.add_argument("--rows", action="store_true", help="list both sides' collectives")
    given = options.parse_args()
    if given.refresh:
        refresh(given.only)
    table = Table(title="Bytes sent by a device in a step")
    heads = ["program", "mesh", "annotation", "XLA", "Weft", "ratio", "full gathers", ""]
    for n, head in enumerate(heads + (["XLA's", "Weft's"] if given.kinds else [])):
        table.add_column(head, justify="right" if 3 <= n <= 6 else "left", no_wrap=n < 8)
    counts: dict[str, int] = {}
    logs = []
    for key in keys():
        theirs = known(key) if given.only in " / ".join(key) else None
        if theirs is None:
            continue
        try:
            local = partitioned(key, given.level)
            made = ours(local)
        except WeftError as error:
            table.add_row(*key, shown(theirs.bytes), "", "", "", f"REFUSED {error.message[:60]}")
            counts["REFUSED"] = counts.get("REFUSED", 0) + 1
            continue
        word = verdict(made, theirs)
        counts[word] = counts.get(word, 0) + 1
        if made.bytes and theirs.bytes:
            logs.append(math.log(made.bytes / theirs.bytes))
        if given.rows:
            list_rows(key, local)
        row = [*key, shown(theirs.bytes), shown(made.bytes), ratio(made.bytes, theirs.bytes)]
        row += [f"{theirs.full_gathers} / {made.full_gathers}", word]
        table.add_row(*row, *([kinds(theirs), kinds(made)] if given.kinds else []))
    console = Console(width=None if sys.stdout.isatty() else 200 if given.kinds else 120)
    console.print(table)
    summary = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
    mean = math.exp(sum(logs) / len(logs)) if logs else 1.0
    console.print(f"{summary}; geometric mean {mean:.2f}; XLA of jaxlib {jaxlib.__version__}")


if __name__ == "__main__":
    main()
