"""`weft cost`: predict a table of collectives."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from weft.cli.files import write
from weft.cli.parser import Subparsers, command
from weft.cli.screen import plural, print_json, print_table, print_text, working
from weft.columns import Column
from weft.cost.collectives_file import EstimatedRow, predict_collectives, read_collectives
from weft.machine import bytes_text, seconds_text

_MOST = 40  # rows that are shown one by one


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = command(
        commands,
        run,
        "cost",
        "Predict the seconds of collectives in a CSV file, each with an interval that holds nine "
        "of ten measurements and with its source; where rates are given, show the errors by "
        "machine and kind.",
        "weft cost examples/collectives.csv --json predicted.json",
    )
    parser.add_argument(
        "file",
        metavar="FILE.csv",
        help="the columns are machine, op, dtype, groups, group_size, pattern, bytes, and "
        "bytes_per_second where it is known",
    )
    parser.add_argument("--json", metavar="OUT", help="write the rows as JSON; - prints them")


def run(arguments: argparse.Namespace) -> int:
    """Predict the rows, and show or write them."""
    with working(f"predicting {arguments.file}"):
        rows = predict_collectives(read_collectives(Path(arguments.file)))
    if arguments.json == "-":
        print_json([row.as_json() for row in rows])
        return 0
    if arguments.json is not None:
        found = json.dumps([row.as_json() for row in rows], indent=1)
        write(Path(arguments.json), found + "\n")
    if len(rows) <= _MOST:
        show_rows(rows)
    if any(row.error is not None for row in rows):
        show_errors(rows)
    written = "" if arguments.json is None else f", written to {arguments.json}"
    print_text(f"{plural(len(rows), 'collective')} predicted{written}")
    return 0


def show_rows(rows: Sequence[EstimatedRow]) -> None:
    """A line for each collective."""
    heads = ("machine", "op", "groups", "bytes", "time", "from", "to")
    columns = [Column(heads[0], fit="cut", least=10), Column(heads[1], fit="wrap", least=10)]
    columns += [Column(head, right=True) for head in heads[2:]]
    columns.append(Column("source", fit="wrap", least=14))
    cells = []
    for row in rows:
        collective, estimate = row.asked.collective, row.estimate
        op = collective.op.removeprefix("collective-") + (
            collective.pattern and f" {collective.pattern}"
        )
        times = [seconds_text(t) for t in (estimate.seconds, estimate.low, estimate.high)]
        groups = f"{collective.groups}x{collective.group_size}"
        cells.append(
            (collective.machine, op, groups, bytes_text(collective.bytes), *times, estimate.source)
        )
    print_table(columns, cells)
    print()


def show_errors(rows: Sequence[EstimatedRow]) -> None:
    """The errors of rows whose rate is known, by machine and kind."""
    known = [row for row in rows if row.error is not None]
    keys = sorted({(row.asked.collective.machine, row.asked.collective.op) for row in known})
    cells = [error_row(*key, known) for key in keys]
    columns = [Column("machine"), Column("op")]
    columns += [Column(head, right=True) for head in ("rows", "median", "95%", "in interval")]
    print_table(columns, [*cells, error_row("all", "", known)])
    print()


def error_row(machine: str, op: str, rows: Sequence[EstimatedRow]) -> tuple[str, ...]:
    """Median, 95th percentile, and how many measurements the interval holds."""
    matches = [
        row
        for row in rows
        if not op or (row.asked.collective.machine, row.asked.collective.op) == (machine, op)
    ]
    errors = np.array([row.error for row in matches], float)
    actual = [row.asked.collective.bytes / (row.asked.rate or 1.0) for row in matches]
    held = [r.estimate.low <= t <= r.estimate.high for r, t in zip(matches, actual, strict=True)]
    middle, most = np.quantile(errors, [0.5, 0.95])
    return machine, op, str(len(matches)), f"{middle:.1%}", f"{most:.1%}", f"{np.mean(held):.0%}"
