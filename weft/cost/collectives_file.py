"""Tables of collectives in files: read with their errors by line, predicted row by row."""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from weft.cost.collective_time import OP_NAMES, GroupExtent, TrafficKind, travel_estimate
from weft.cost.measured import OPS, PATTERNS, CollectiveShape, Estimate, measured
from weft.errors import WeftError
from weft.ir.types import DTYPES
from weft.machine import MACHINES, Machine, machine
from weft.records import dataclass

COLUMNS = ("machine", "op", "dtype", "groups", "group_size", "pattern", "bytes")
RATE = "bytes_per_second"
_SPELLED = {name.lower(): name for name in DTYPES}  # f8e4m3fn, as XLA prints it
_KINDS: Mapping[str, TrafficKind] = {name: kind for kind, name in OP_NAMES.items()}


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """A row of a file: a collective, and its measured rate where there is one."""

    line: int
    collective: CollectiveShape
    rate: float | None


@dataclass(frozen=True, slots=True)
class EstimatedRow:
    """A row and its estimate."""

    asked: CollectiveRow
    estimate: Estimate

    @property
    def error(self) -> float | None:
        """By which share the seconds are off, where they were measured."""
        if self.asked.rate is None:
            return None
        actual = self.asked.collective.bytes / self.asked.rate
        return abs(self.estimate.seconds / actual - 1)

    def as_json(self) -> dict[str, Any]:
        """The row as data, with `seconds`, `low`, `high` and `source`."""
        rate = {} if self.asked.rate is None else {RATE: self.asked.rate}
        return asdict(self.asked.collective) | rate | asdict(self.estimate)


def read_collectives(path: Path) -> list[CollectiveRow]:
    """The rows of a CSV file; an invalid one is an error with its line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise WeftError(f"cannot read {path}: {why}", help="name a CSV file") from None
    lines = csv.reader(io.StringIO(text))
    header = [name.strip() for name in next(lines, [])]
    _check_header(path, header)
    return [
        _parse_row(path, lines.line_num, header, [cell.strip() for cell in cells])
        for cells in lines
        if any(cell.strip() for cell in cells)
    ]


def predict_collectives(rows: Iterable[CollectiveRow]) -> list[EstimatedRow]:
    """An estimate for each row."""
    return [EstimatedRow(row, estimate(row.collective)) for row in rows]


def estimate(wanted: CollectiveShape) -> Estimate:
    """The seconds of a collective: from the table inside a fast domain, modelled beyond it."""
    if wanted.group_size == 1:  # no row of the table is of one device: it would be extrapolated
        return Estimate(0.0, 0.0, 0.0, "nothing is sent: each group is one device")
    target = _machine(wanted.machine)
    within = target.fast_devices is None or wanted.group_size <= target.fast_devices
    if target.table and within:
        named = replace(wanted, machine=target.table)
        return measured().estimate(named)
    domains = 1 if within else -(-wanted.group_size // (target.fast_devices or 1))
    extent = GroupExtent(wanted.group_size, domains)
    return travel_estimate(_KINDS[wanted.op], wanted.bytes, extent, target, wanted.dtype)


def _machine(name: str) -> Machine:
    """A machine by its name, or by that of its rows in the table."""
    return machine(_tables().get(name, name))


def _tables() -> dict[str, str]:
    """The machines of the table by their names there."""
    known = {MACHINES[name].table: name for name in reversed([*MACHINES])}
    return {table: name for table, name in known.items() if table}


def _check_header(path: Path, header: list[str]) -> None:
    for name in header:
        if name not in (*COLUMNS, RATE) or header.count(name) > 1:
            problem = "is there twice" if header.count(name) > 1 else "is unknown"
            near = difflib.get_close_matches(name, COLUMNS, n=1)
            hint = f"did you mean {near[0]}? " if near and near[0] not in header else ""
            raise WeftError(
                f"{path}: line 1: the column {name!r} {problem}",
                help=f"{hint}the columns are {', '.join(COLUMNS)}, and {RATE} where it is known",
            )
    for name in COLUMNS:
        if name not in header:
            raise WeftError(
                f"{path}: line 1: the column {name} is missing",
                help=f"the columns are {', '.join(COLUMNS)}, and {RATE} where it is known",
            )


def _parse_row(path: Path, line: int, header: list[str], cells: list[str]) -> CollectiveRow:
    def wrong(what: str, help: str) -> WeftError:
        return WeftError(f"{path}: line {line}: {what}", help=help)

    if len(cells) != len(header):
        raise wrong(f"{len(cells)} cells, but {len(header)} columns", "one cell for each column")
    row = dict(zip(header, cells, strict=True))
    row["dtype"] = _SPELLED.get(row["dtype"].lower(), row["dtype"])
    for name, known in (("op", OPS), ("dtype", tuple(DTYPES))):
        if row[name] not in known:
            near = difflib.get_close_matches(row[name], known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise wrong(f"unknown {name} {row[name]!r}", f"{hint}known: {', '.join(known)}")
    try:
        target = _machine(row["machine"])
    except WeftError as error:
        tables = sorted(_tables())
        near = difflib.get_close_matches(row["machine"], tables, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise wrong(
            error.message, f"{hint}{error.help}; of the table: {', '.join(tables)}"
        ) from None
    permutes = row["op"] == "collective-permute"
    if row["pattern"] not in (PATTERNS if permutes else ("",)):
        expected = f"one of {', '.join(PATTERNS)}" if permutes else "empty"
        raise wrong(f"the pattern of {row['op']} is {row['pattern']!r}", f"it must be {expected}")
    numbers = {}
    for name in ("groups", "group_size", "bytes"):
        numbers[name] = _whole(row[name])
        if numbers[name] < 1:
            raise wrong(f"{name} is {row[name]!r}", "write a whole number of at least 1")
    try:
        target.holding(numbers["groups"] * numbers["group_size"])
    except WeftError as error:
        problem = error.message.replace("the mesh has", "all groups are")
        raise wrong(problem, "write fewer groups, or a larger machine") from None
    return CollectiveRow(
        line,
        CollectiveShape(
            row["machine"], row["op"], row["dtype"], numbers["groups"], numbers["group_size"],
            row["pattern"], numbers["bytes"],
        ),
        _rate(row, wrong),
    )  # fmt: skip


def _whole(text: str) -> int:
    """A whole number, which tools may write as 1e6 or 1000000.0; else 0."""
    try:
        number = float(text)
    except ValueError:
        return 0
    if text.isdecimal():
        return int(text)
    return int(number) if number.is_integer() else 0


def _rate(row: Mapping[str, str], wrong: Any) -> float | None:
    text = row.get(RATE, "")
    if not text:
        return None
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise wrong(f"{RATE} is {text!r}", "write a number above 0, or leave the cell empty")
    return rate
