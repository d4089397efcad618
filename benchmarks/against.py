"""Whether the working tree is slower than an older revision: the tables of both, turn by turn.

    python benchmarks/against.py REV [--only compile lockstep cpu jax_door] [--quick] [--busy]
                                     [--rows softmax block] [--json FILE]

The revision is unpacked into a temporary folder. Each row is measured in two fresh processes, one
with the packages of the working tree and one with those of the revision, which take turns; a
ratio is the revision's median over the working tree's, so above 1 the working tree is faster.
Neither side has peers, and both have a cache of kernels of their own, empty at first. A row below
0.93 is measured again, up to three times in all; its ratio is the median of these runs.

The exit status is 1 if the geometric mean of a table is below 0.98, if a row is below 0.93 in all
three runs, or if the working tree cannot run one. Rows that the revision does not have are listed.
`--quick` has fewer rows and rounds; `--busy` counts seconds of the processor.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.table import Table

from benchmarks.cpu import amount, machine_line, screen
from benchmarks.cpu_rows import REST, ROOT, Ended, Row, Runner, use_busy
from benchmarks.sides import TABLES, Measured, rows

MEAN, LEAST, RUNS = 0.98, 0.93, 3
NOISE = 1e-4  # seconds: shorter parts of a compilation are only clock ticks and garbage
TURN = 0.2  # seconds: several calls even of a whole step, of which single ones vary by a tenth
MEMORY = "Memory of a step, all devices"
Times = dict[str, float]  # by name; "" for the only one of a row


@dataclass(frozen=True, slots=True)
class Compared:
    """One row: what both trees took, in every run."""

    table: str
    case: str
    shape: str
    new: float  # seconds of the working tree in the latest run, or bytes
    ratios: tuple[float, ...]  # the revision's over the working tree's, a run each
    unit: str = "s"

    @property
    def ratio(self) -> float:
        """The median of the runs."""
        return statistics.median(self.ratios)

    @property
    def is_slower(self) -> bool:
        """Whether all runs that there may be agree on it; bytes need only one."""
        return len(self.ratios) == (RUNS if self.unit == "s" else 1) and max(self.ratios) < LEAST

    @property
    def is_open(self) -> bool:
        """Whether another run has to say if it is slower."""
        return self.unit == "s" and len(self.ratios) < RUNS and max(self.ratios) < LEAST


class Trees:
    """The working tree and an older revision, unpacked, with a cache each."""

    def __init__(self, revision: str, folder: Path) -> None:
        self.old = folder / "old"
        archive = subprocess.run(
            ["git", "archive", "--format=tar", revision], cwd=ROOT, capture_output=True, check=False
        )
        if archive.returncode:
            raise SystemExit(f"no revision {revision}: {archive.stderr.decode().strip()}")
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as packed:
            packed.extractall(self.old, filter="data")
        self.folder = folder
        self.caches = itertools.count()
        # Else the side with more modules that are not compiled yet would pay for it in its turn.
        packages = [
            str(tree / name) for tree in (ROOT, self.old) for name in ("weft", "benchmarks")
        ]
        line = [sys.executable, "-m", "compileall", "-q", "-j0", *packages]
        subprocess.run(line, env=os.environ | self._bytecode, check=True)

    @property
    def _bytecode(self) -> dict[str, str]:
        """Variables by which both trees keep their modules compiled, whatever the shell says."""
        where = str(self.folder / "bytecode")
        return {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": where}

    def side(self, name: str, one: Measured) -> Side:
        """A side in a fresh process, or one for each turn."""
        tree = ROOT if name == "new" else self.old
        if one.is_cold:
            return Cold(lambda: self._runner(one, tree, f"{name}-{next(self.caches)}"))
        return Warm(self._runner(one, tree, name))

    def _runner(self, one: Measured, tree: Path, cache: str) -> Runner:
        kept = {"WEFT_CACHE": str(self.folder / "cache" / cache)} | self._bytecode
        env = dict(one.env) | kept
        return Runner(one.maker, one.given, env, tree)


class Warm:
    """A side that is made once; every turn is some calls."""

    def __init__(self, runner: Runner) -> None:
        self.runner, self.memory = runner, runner.facts.get("memory")
        self.runner.seconds = TURN

    def turn(self) -> Times:
        """The seconds of a call."""
        taken = self.runner.turn()
        return taken if isinstance(taken, dict) else {"": taken}

    def close(self) -> None:
        """End the process."""
        self.runner.close()


class Cold:
    """A side that is made anew for every turn, which is what is measured."""

    memory = None

    def __init__(self, make: Callable[[], Runner]) -> None:
        self.make = make

    def turn(self) -> Times:
        """The seconds that the process says it took."""
        runner = self.make()
        runner.close()
        return dict(runner.facts["times"])

    def close(self) -> None:
        """Nothing is left to end."""


Side = Warm | Cold


def race(sides: Mapping[str, Side], rounds: int) -> dict[str, Times]:
    """The medians of both sides, by name; they take turns, and turns at being first."""
    taken: dict[str, list[Times]] = {name: [] for name in sides}
    for n in range(rounds):
        for name in sides if n % 2 == 0 else reversed(list(sides)):
            time.sleep(REST)
            taken[name].append(sides[name].turn())
    return {name: medians(turns) for name, turns in taken.items()}


def medians(turns: list[Times]) -> Times:
    """The median of every number."""
    return {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}


def run_once(trees: Trees, one: Measured, quick: bool) -> tuple[list[Compared], list[str]]:
    """Both trees' rows of one measurement, and what only the working tree has."""
    sides: dict[str, Side] = {"new": trees.side("new", one)}
    name = f"{one.table}: {one.case} {one.shape}".rstrip(": ")
    try:
        sides["old"] = trees.side("old", one)
        taken = race(sides, (2 if quick else 3) if one.is_cold else 5 if quick else 9)
    except Ended as ended:
        if ended.tree == ROOT:
            raise SystemExit(f"{name}: the working tree cannot run it") from ended
        return [], [name]
    finally:
        for side in sides.values():
            side.close()
    made = compared(one, taken["new"], taken["old"])
    new, old = sides["new"].memory, sides["old"].memory
    if new and old:
        door = ", JAX door" if one.env else ""
        made.append(Compared(MEMORY, one.case + door, one.shape, new, (old / new,), "B"))
    return made, [f"{name}, {lost}" for lost in sorted({*taken["new"]} - {*taken["old"]})]


def compared(one: Measured, new: Times, old: Times) -> list[Compared]:
    """A row for every name that both sides have and that is no noise."""
    return [
        Compared(one.table, name or one.case, one.shape, new[name], (old[name] / new[name],))
        for name in new
        if name in old and max(new[name], old[name]) >= (NOISE if name else 0)
    ]


def confirmed(first: list[Compared], again: Callable[[], list[Compared]]) -> list[Compared]:
    """The rows with the ratios of further runs, while one of them is below what is allowed."""
    found = first
    for _ in range(RUNS - 1):
        if not any(row.is_open for row in found):
            break
        more = {(row.table, row.case, row.shape): row for row in again()}
        found = [_joined(row, more.get((row.table, row.case, row.shape))) for row in found]
    return found


def _joined(row: Compared, more: Compared | None) -> Compared:
    if more is None or not row.is_open:
        return row
    return replace(row, new=more.new, ratios=(*row.ratios, *more.ratios))


def measure(
    trees: Trees, listed: Iterable[Measured], quick: bool
) -> Iterator[tuple[list[Compared], list[str]]]:
    """The rows of every measurement, confirmed, and what cannot be compared."""
    for one in listed:
        first, lost = run_once(trees, one, quick)
        yield confirmed(first, lambda one=one: run_once(trees, one, quick)[0]), lost


def mean(found: Iterable[Compared]) -> float:
    """The geometric mean of the ratios."""
    logs = [math.log(row.ratio) for row in found]
    return math.exp(sum(logs) / len(logs))


def verdict(found: list[Compared]) -> list[str]:
    """What is slower, a line each."""
    lines = []
    for title, listed in tables(found).items():
        if mean(listed) < MEAN:
            lines.append(f"{title}: geometric mean {mean(listed):.3f}, below {MEAN}")
    for row in found:
        if row.is_slower:
            runs = ", ".join(f"{ratio:.2f}" for ratio in row.ratios)
            lines.append(f"{row.table}: {row.case} {row.shape}: {runs}, below {LEAST}")
    return lines


def tables(found: Iterable[Compared]) -> dict[str, list[Compared]]:
    """The rows of every title."""
    made: dict[str, list[Compared]] = {}
    for row in found:
        made.setdefault(row.table, []).append(row)
    return made


def table_of(title: str, found: list[Compared]) -> Table:
    """The rows of one title."""
    table = Table(title=title, title_justify="left", box=None, header_style="dim")
    for head in ("case", "shape"):
        table.add_column(head)
    for head in ("working tree", "ratio", "runs"):
        table.add_column(head, justify="right")
    for row in found:
        shown = amount(Row(row.table, row.case, row.shape, row.new, unit=row.unit))
        colour = "red" if row.ratio < LEAST else "default"
        runs = " ".join(f"{ratio:.2f}" for ratio in row.ratios) if len(row.ratios) > 1 else ""
        table.add_row(row.case, row.shape, shown, f"[{colour}]{row.ratio:.2f}[/]", runs)
    table.add_section()
    table.add_row("geometric mean", "", "", f"{mean(found):.3f}", "")
    return table


def main() -> int:
    """Measure, print the tables, and say what is slower."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("revision", metavar="REV", help="a commit, branch or tag")
    options.add_argument("--only", nargs="+", default=list(TABLES), choices=TABLES)
    options.add_argument("--rows", nargs="+", metavar="TEXT", help="those whose names have this")
    options.add_argument("--quick", action="store_true", help="fewer rows and rounds")
    options.add_argument("--busy", action="store_true", help="seconds of the processor")
    options.add_argument("--json", metavar="FILE", help="write all rows to this file, too")
    given = options.parse_args()
    if given.busy:
        use_busy()
    console = screen()
    console.print(f"python benchmarks/against.py {' '.join(sys.argv[1:])}\n{machine_line()}\n")
    found: list[Compared] = []
    missing: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        trees = Trees(given.revision, Path(folder))
        for name in given.only:
            listed = [one for one in rows(name, given.quick) if is_wanted(one, given.rows)]
            with console.status(f"measuring {name}") as status:
                for n, (made, lost) in enumerate(measure(trees, listed, given.quick), 1):
                    found += made
                    missing += lost
                    status.update(f"measured {n} of {len(listed)} of {name}")
            ours = tables(found)
            for title in [t for t in ours if t in {one.table for one in listed}]:
                console.print(table_of(title, ours[title]), "")
    if MEMORY in tables(found):
        console.print(table_of(MEMORY, tables(found)[MEMORY]), "")
    if given.json:
        Path(given.json).write_text(json.dumps([asdict(row) for row in found], indent=1))
    for line in missing:
        console.print(f"not in {given.revision}: {line}", style="yellow", soft_wrap=True)
    lines = verdict(found)
    for line in lines:
        console.print(f"slower: {line}", style="red", soft_wrap=True)
    if not found:
        console.print("nothing was compared", style="red")
    elif not lines:
        console.print(f"not slower than {given.revision}: {len(found)} rows", style="green")
    return 1 if lines or not found else 0


def is_wanted(one: Measured, texts: list[str] | None) -> bool:
    """Whether a row's name has one of these texts."""
    name = f"{one.table} {one.case} {one.shape}"
    return texts is None or any(text in name for text in texts)


if __name__ == "__main__":
    sys.exit(main())
