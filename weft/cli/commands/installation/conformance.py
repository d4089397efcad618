"""`weft conformance`: run a folder of programs that check their own results."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from weft.cli.parser import Subparsers, command
from weft.cli.screen import has_rich, plural, print_table, print_text
from weft.columns import Column
from weft.compare.conformance import NUMPY, TARGETS, Outcome, Status, find_cases, run_files
from weft.errors import WeftError

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
    is_shown = arguments.json != "-"  # with JSON on stdout nothing else is printed there
    results = run_files(
        files,
        arguments.folder,
        jobs=arguments.jobs,
        timeout=float(arguments.timeout),
        target=arguments.target,
    )
    outcomes = []
    for outcome in _with_progress(results, len(files)):
        outcomes.append(outcome)
        if is_shown and not (arguments.quiet and outcome.status == "pass"):
            _show(outcome)
    outcomes.sort(key=lambda o: o.file)
    if arguments.json is not None:
        _write(arguments.json, outcomes)
    if is_shown:
        _totals(outcomes)
    return 1 if any(o.status == "fail" for o in outcomes) else 0


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def _with_progress(outcomes: Iterator[Outcome], count: int) -> Iterator[Outcome]:
    """The same outcomes, with a progress bar on standard error if that is a terminal."""
    if not sys.stderr.isatty() or not has_rich():
        yield from outcomes
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("running", total=count)
        for outcome in outcomes:
            yield outcome
            bar.advance(task)


def _show(outcome: Outcome) -> None:
    detail = f"  {outcome.detail}" if outcome.detail else ""
    status = (f"{outcome.status:<7}", _STYLES[outcome.status])
    print_text(f"{outcome.file}{detail}", mark=status)


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


def _totals(outcomes: list[Outcome]) -> None:
    """A table of counts by op, those with failures first, and the totals."""
    counts = _by_op(outcomes)
    ops = sorted(counts, key=lambda op: (-counts[op]["fail"], -counts[op]["refused"], op))
    statuses = [*_STYLES]
    columns = (Column("op", fit="cut"), *[Column(status, right=True) for status in statuses])
    rows = [(op, *[f"{counts[op][s]:,}" if counts[op][s] else "·" for s in statuses]) for op in ops]

    def style(row: int, column: int, nth: int) -> str:
        if column == 0:
            return ""
        return _STYLES[statuses[column - 1]] if rows[row][column] != "·" else "dim"

    print()
    print_table(columns, rows, style)
    total = Counter(o.status for o in outcomes)
    parts = ", ".join(f"{total[status]:,} {status}" for status in _STYLES)
    print_text(f"\n{plural(len(outcomes), 'file')}: {parts}")
    left = [o for o in outcomes if o.detail.startswith(NUMPY)]
    if left:
        print_text(f"{len(left):,} of those that pass ran in part by numpy, without kernels", "dim")


def _by_op(outcomes: Iterable[Outcome]) -> dict[str, Counter[Status]]:
    counts: dict[str, Counter[Status]] = {}
    for outcome in outcomes:
        counts.setdefault(outcome.op, Counter())[outcome.status] += 1
    return counts
