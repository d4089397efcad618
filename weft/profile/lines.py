"""Predicted beside measured seconds of a program, line by line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, TypeAlias

from weft.columns import Column, table_text
from weft.ir.location import Location
from weft.machine import seconds_text
from weft.profile.matching import is_collective, measured_spans
from weft.recording import RecordedRun, Recording
from weft.records import dataclass

LineKey: TypeAlias = tuple[str, str, str]  # name, kind, location
SHOWN = 24  # lines of a table


@dataclass(frozen=True, slots=True)
class LineRow:
    """A line of the program in a run: predicted and measured seconds."""

    name: str
    kind: str
    loc: Location
    predicted: float | None  # None where nothing predicts it
    measured: float | None  # None where it never ran

    def as_json(self) -> dict[str, Any]:
        """The line as data."""
        place, _, source = self.loc.describe().partition("  ") if self.loc.known else ("", "", "")
        return {
            "name": self.name,
            "kind": self.kind,
            "line": place,
            "source": source,
            "predicted": self.predicted,
            "measured": self.measured,
        }


@dataclass(frozen=True, slots=True)
class ProgramProfile:
    """One program: its runs on all workers, and its lines, those of most seconds first."""

    name: str
    digest: str
    workers: int
    runs: int  # of each worker; the first is left out of the medians if there are more
    measured: float  # median seconds of a run
    predicted: float | None
    machine: str
    lines: tuple[LineRow, ...]
    between: float  # seconds of a run in no line: the host between launches

    def as_json(self) -> dict[str, Any]:
        """The program as data."""
        return {
            "program": self.name,
            "digest": self.digest,
            "workers": self.workers,
            "runs": self.runs,
            "measured": self.measured,
            "predicted": self.predicted,
            "machine": self.machine,
            "between": self.between,
            "lines": [line.as_json() for line in self.lines],
        }

    def __str__(self) -> str:
        """The program as a table."""
        head = f"{self.name}: {self.runs} run{'s' if self.runs > 1 else ''}"
        head += f" on each of {self.workers} workers" if self.workers > 1 else ""
        rows = [_row(line) for line in self.lines[:SHOWN]]
        rest = self.lines[SHOWN:]
        if rest:
            rows.append(
                (f"{len(rest)} more", *_pair(_sum(rest, "predicted"), _sum(rest, "measured")), "")
            )
        rows.append(("between launches", "", seconds_text(self.between), "", ""))
        rows.append(
            ("a run", *_pair(self.predicted, self.measured), f"predicted for {self.machine}")
        )
        columns = (Column(), *[Column(right=True)] * 3, Column())
        heads = ("", "predicted", "measured", "ratio", "")
        return "\n".join([head, table_text(columns, [heads, *rows])])


def _row(line: LineRow) -> tuple[str, ...]:
    where = line.loc.describe().partition("  ") if line.loc.known else ("", "", "")
    place = where[0].rpartition("/")[2]
    return (f"  {line.name}", *_pair(line.predicted, line.measured), f"{place}  {where[2][:60]}")


def _pair(predicted: float | None, measured: float | None) -> tuple[str, str, str]:
    """Both times, and measured / predicted."""
    ratio = f"{measured / predicted:.2f}" if predicted and measured is not None else ""
    return _seconds(predicted), _seconds(measured), ratio


def _seconds(value: float | None) -> str:
    return "-" if value is None else seconds_text(value)


def _sum(lines: Sequence[LineRow], what: str) -> float:
    return sum(getattr(line, what) or 0.0 for line in lines)


def program_profiles(recordings: Sequence[Recording]) -> tuple[ProgramProfile, ...]:
    """Every program that ran, by the seconds of all its runs."""
    runs: dict[str, list[tuple[Recording, Mapping[str, Any], list[RecordedRun]]]] = {}
    for one in recordings:
        by_program: dict[int, list[RecordedRun]] = {}
        for run in one.runs:
            by_program.setdefault(run.program, []).append(run)
        for number, listed in by_program.items():
            program = one.programs[number]
            runs.setdefault(program["digest"], []).append((one, program, listed))
    profiles = [_profile(digest, recorded) for digest, recorded in runs.items()]
    return tuple(sorted(profiles, key=lambda p: -p.measured * p.runs))


def _profile(
    digest: str, recorded: Sequence[tuple[Recording, Mapping[str, Any], list[RecordedRun]]]
) -> ProgramProfile:
    # Traced again from another call, the same program has other call sites in its locations.
    each = [_places(program, recorded[0][1]) for _, program, _ in recorded]
    measured: dict[LineKey, list[float]] = {}  # by line: a sum for every run
    whole: list[float] = []
    counts: Counter[int] = Counter()  # runs by recording
    for (one, program, listed), places in zip(recorded, each, strict=True):
        counts[id(one)] += len(listed)
        steady = listed[1:] or listed  # the first run allocates, and loads code
        for run in steady:
            whole.append(1e-9 * (run.end - run.begin))
            for key, seconds in _by_line(run, program["items"], places).items():
                measured.setdefault(key, []).append(seconds)
    expected, in_all, machine = _predicted(recorded, each)
    # A line that ran in some runs only, as of a branch, counts as 0 in the others.
    medians = {
        key: median([*times, *[0.0] * (len(whole) - len(times))]) for key, times in measured.items()
    }
    keys = [*dict.fromkeys([*medians, *expected])]
    lines = [
        LineRow(key[0], key[1], Location(key[2] or "unknown"), expected.get(key), medians.get(key))
        for key in keys
    ]
    lines.sort(key=lambda line: -max(line.predicted or 0.0, line.measured or 0.0))
    run_seconds = median(whole)
    return ProgramProfile(
        recorded[0][1]["name"], digest, len(counts),
        max(counts.values()), run_seconds, in_all, machine, tuple(lines),
        max(0.0, run_seconds - sum(medians.values())),
    )  # fmt: skip


def _places(program: Mapping[str, Any], first: Mapping[str, Any]) -> Mapping[str, str]:
    """The locations of a program's items as those of another program of the same digest."""
    pairs = zip(program["items"], first["items"], strict=False)
    return {own["loc"]: other["loc"] for own, other in pairs}


def _by_line(
    run: RecordedRun, items: Sequence[dict[str, Any]], places: Mapping[str, str]
) -> dict[LineKey, float]:
    """The seconds of each line in one run; of collectives, those that the compute stream waits."""
    by_line: dict[LineKey, float] = {}
    for span in measured_spans(run, items):
        row = items[span.item]
        communicates = is_collective(row)
        spent = span.exposed if communicates else span.end - span.begin
        kind = "collective" if communicates else row["kind"]
        key = (row["name"], kind, places[row["loc"]])
        by_line[key] = by_line.get(key, 0.0) + 1e-9 * spent
    return by_line


def _predicted(
    recorded: Sequence[tuple[Recording, Mapping[str, Any], list[RecordedRun]]],
    each: Sequence[Mapping[str, str]],
) -> tuple[dict[LineKey, float], float | None, str]:
    """The predicted seconds of each line, of a run, and the machine."""
    for (one, program, _), places in zip(recorded, each, strict=True):
        prediction = one.predicted.get(program["number"])
        if prediction is not None:
            rows = {
                (name, kind, places.get(loc, "" if loc == "unknown" else loc)): seconds
                for name, kind, loc, seconds in prediction["rows"]
            }
            return rows, prediction["seconds"], prediction["machine"]
    return {}, None, "no machine"
