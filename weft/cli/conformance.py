"""`weft conformance`: run a folder of programs that check their own results."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from weft.cli.parser import Subparsers, command
from weft.cli.screen import console, has_rich, plural
from weft.conformance import NUMPY, TARGETS, Outcome, Status, find_cases, run_files
from weft.errors import WeftError

if TYPE_CHECKING:
    from rich.console import Console

_STYLES: dict[Status, str] = {"pass": "green", "fail": "bold red", "refused": "yellow"}


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = command(
        commands,
        run,
        "conformance",
        "Evaluate programs that check their own results, and count what passes.",
        "weft conformance cases/ --only scatter_add --json report.json",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="a folder of .mlir files, or one")
    parser.add_argument(
        "--target",
        choices=TARGETS,
        default=TARGETS[0],
        help="what runs them: numpy, or kernels, with constants as arguments (default: reference)",
    )
    parser.add_argument("--json", metavar="OUT", help="write the outcomes to this file (-: stdout)")
    parser.add_argument(
        "--jobs", type=_positive, default=2, metavar="N", help="files at once (default: 2)"
    )
    parser.add_argument("--only", metavar="PATTERN", help="files whose names match, such as 'dot*'")
    parser.add_argument(
        "--timeout",
        type=_positive,
        default=300,
        metavar="SECONDS",
        help="a file that takes longer fails (default: 300)",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="do not list what passes")


def run(arguments: argparse.Namespace) -> int:
    """Run the files and show each; status 1 if one of them fails."""
    files = find_cases(arguments.folder, arguments.only)
    # JSON needs no rich: without it, and with JSON on stdout, the screen stays empty.
    silent = arguments.json == "-" or (arguments.json is not None and not has_rich())
    screen = None if silent else console()
    found = run_files(
        files,
        arguments.folder,
        jobs=arguments.jobs,
        timeout=float(arguments.timeout),
        target=arguments.target,
    )
    outcomes = []
    for outcome in _with_progress(found, len(files), screen):
        outcomes.append(outcome)
        if screen is not None and not (arguments.quiet and outcome.status == "pass"):
            _show(screen, outcome)
    outcomes.sort(key=lambda o: o.file)
    if arguments.json is not None:
        _write(arguments.json, outcomes)
    if screen is not None:
        _totals(screen, outcomes)
    return 1 if any(o.status == "fail" for o in outcomes) else 0


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)


def _with_progress(
    outcomes: Iterator[Outcome], count: int, screen: Console | None
) -> Iterator[Outcome]:
    """The same outcomes, with a bar on standard error while they come in, if that is a terminal."""
    if screen is None or not sys.stderr.isatty():
        yield from outcomes
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    # Lines and bar on one terminal must pass through one console.
    shared = screen if sys.stdout.isatty() else console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=shared, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task("running", total=count)
        for outcome in outcomes:
            yield outcome
            bar.advance(task)


def _show(screen: Console, outcome: Outcome) -> None:
    from rich.text import Text

    line = Text.assemble((f"{outcome.status:<8}", _STYLES[outcome.status]), outcome.file)
    if outcome.detail:
        line.append(f"  {outcome.detail}", style="dim")
    screen.print(line, soft_wrap=True)


def _write(target: str, outcomes: list[Outcome]) -> None:
    rows = [{"file": o.file, "status": o.status, "detail": o.detail} for o in outcomes]
    text = json.dumps(rows, indent=1) + "\n"
    if target == "-":
        sys.stdout.write(text)
        return
    try:
        Path(target).write_text(text, encoding="utf-8")
    except OSError as error:
        raise WeftError(
            f"cannot write {target}: {error.strerror}", help="give another path after --json"
        ) from None


def _totals(screen: Console, outcomes: list[Outcome]) -> None:
    """A table of counts by op, those with failures first, and the sum."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("op")
    for status in _STYLES:
        table.add_column(status, justify="right")
    counts = _by_op(outcomes)
    for op in sorted(counts, key=lambda op: (-counts[op]["fail"], -counts[op]["refused"], op)):
        cells = [_cell(counts[op][status], status) for status in _STYLES]
        table.add_row(op, *cells)
    screen.print()
    screen.print(table)
    total = Counter(o.status for o in outcomes)
    parts = [f"[{style}]{total[status]:,} {status}[/]" for status, style in _STYLES.items()]
    screen.print(f"\n{plural(len(outcomes), 'file')}: {', '.join(parts)}")
    left = [o for o in outcomes if o.detail.startswith(NUMPY)]
    if left:
        screen.print(
            f"[dim]{len(left):,} of those that pass ran in part by numpy, without kernels[/]"
        )


def _by_op(outcomes: Iterable[Outcome]) -> dict[str, Counter[Status]]:
    counts: dict[str, Counter[Status]] = {}
    for outcome in outcomes:
        counts.setdefault(outcome.op, Counter())[outcome.status] += 1
    return counts


def _cell(count: int, status: Status) -> str:
    return f"[{_STYLES[status]}]{count}[/]" if count else "[dim]·[/]"
