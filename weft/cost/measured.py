"""The table of measured collectives, and estimates for sizes and groups between its rows.

The table is OpenXLA's: throughput of NCCL and RCCL on five machines, as published with its
compiler (August 2026). Some rows of it are not here.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt

from weft.cost.kriging import CovarianceParameters, Fit, TableRows, deviation, fit
from weft.machine.known import SHIPPED
from weft.records import dataclass

TABLE = SHIPPED / "collectives.csv"
OPS = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")
PATTERNS = ("one_way", "mutual", "ring")
_PERMUTE = "collective-permute"

# Fitted by leaving rows of the table out, each family for itself; see benchmarks/cost.py.
_NODE = CovarianceParameters(
    curve=0.158, curve_sizes=8.1, kind=0.137, kind_sizes=3.9, kind_groups=1.5,
    share=0.095, share_sizes=2.3, share_groups=4.2, spot=0.014,
    noise=0.35, quiet=0.05, large=22.9, tails=0.17, machines=0.92, spread=1.3,
)  # fmt: skip
_RACK = CovarianceParameters(
    curve=0.039, curve_sizes=20.0, kind=0.383, kind_sizes=4.0, kind_groups=0.42,
    share=0.505, share_sizes=5.4, share_groups=1.9, spot=0.011,
    noise=0.049, quiet=0.316, large=23.5, tails=0.095, machines=0.9995, spread=0.95,
)  # fmt: skip
_AMD = CovarianceParameters(
    curve=0.146, curve_sizes=10.6, kind=0.231, kind_sizes=2.3, kind_groups=100.0,
    share=0.208, share_sizes=10.3, share_groups=1.9, spot=0.023,
    noise=0.244, quiet=0.028, large=18.8, tails=0.62, machines=0.98, spread=0.8,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Estimate:
    """Predicted seconds, the interval that holds nine of ten measurements, and the source."""

    seconds: float
    low: float
    high: float
    source: str


@dataclass(frozen=True, slots=True)
class CurveFamily:
    """Machines whose curves have one shape."""

    machines: tuple[str, ...]
    like: CovarianceParameters
    one_fit: bool = False  # whether their latencies and bandwidths are the same
    rounding: float = 0.0  # the last digit of its rates, in bytes a second

    def likeness(self, op: str) -> CovarianceParameters:
        """The parameters of an op: permutations have steps that machines share, and no outliers."""
        if op != _PERMUTE:
            return self.like
        if not self.one_fit:
            return replace(self.like, spot=0.3)
        return replace(self.like, spot=0.387, tails=5.0, noise=0.02)


FAMILIES = (
    CurveFamily(("sm_90", "sm_100_B200"), _NODE),
    CurveFamily(("sm_100_GB200", "sm_103"), _RACK, one_fit=True, rounding=1e7),
    CurveFamily(("gfx950",), _AMD),
)


@dataclass(frozen=True, slots=True)
class CollectiveShape:
    """One collective: machine, op, element type, groups, pattern and bytes.

    The bytes are the result's; of a reduce-scatter the operand's.
    """

    machine: str
    op: str
    dtype: str
    groups: int
    group_size: int
    pattern: str
    bytes: int


@dataclass(frozen=True, slots=True)
class _Kind:
    """The measurements of one kind of collective on one family."""

    family: CurveFamily
    asked: tuple[CollectiveShape, ...]
    rows: TableRows
    fits: Mapping[str, Fit]  # by machine
    left: npt.NDArray[np.float64]  # residuals of the fits, in log seconds
    exact: Mapping[CollectiveShape, float]
    patterns: Mapping[str, str]  # to the one whose rows are the same


class CollectiveTable:
    """Estimates from a set of measured rows."""

    def __init__(self, rows: Iterable[tuple[CollectiveShape, float]]) -> None:
        self.rows = tuple(rows)
        self.kinds: dict[tuple[str, str], _Kind] = {}

    @property
    def machines(self) -> tuple[str, ...]:
        """The machines that were measured."""
        return tuple(dict.fromkeys(asked.machine for asked, _ in self.rows))

    def dtypes(self, machine: str, op: str) -> tuple[str, ...]:
        """The element types that were measured."""
        found = (a.dtype for a, _ in self.rows if (a.machine, a.op) == (machine, op))
        return tuple(sorted(set(found), key=lambda name: (name != "f32", name)))

    def estimate(self, wanted: CollectiveShape) -> Estimate:
        """The seconds of a collective on a machine of the table."""
        kind = self.kind(wanted.machine, wanted.op)
        known, instead = self.measured_shape(kind, wanted)
        if known in kind.exact:
            return self.exact(kind, known, f"measured on {wanted.machine}{instead}")
        within, beyond = self.inside(kind, known)
        rows = _rows([(within, 0.0)], kind)
        off, wide = deviation(rows, kind.rows, kind.left, kind.family.likeness(wanted.op))
        group, size = np.array([math.log2(known.group_size)]), np.array([math.log2(known.bytes)])
        at = float(kind.fits[wanted.machine].log_seconds(group, size)[0]) + off
        where = "extrapolated by latency and bandwidth from" if beyond else "interpolated from"
        apart = kind.family.like.spread * wide + 0.05 * beyond
        return Estimate(
            math.exp(at),
            math.exp(at - apart),
            math.exp(at + apart),
            f"{where} {wanted.machine}{instead}",
        )

    def measured_shape(self, kind: _Kind, wanted: CollectiveShape) -> tuple[CollectiveShape, str]:
        """The collective as it was measured: another element type or pattern stands for some."""
        dtypes, instead = self.dtypes(wanted.machine, wanted.op), ""
        if wanted.dtype not in dtypes:
            wanted = replace(wanted, dtype=dtypes[0])
            instead += f", as {wanted.dtype}"
        pattern = kind.patterns.get(wanted.pattern, wanted.pattern)
        if pattern and all(row.pattern != pattern for row in kind.asked):
            pattern = "mutual"
            instead += f", as {pattern}"
        return replace(wanted, pattern=pattern), instead

    def exact(self, kind: _Kind, wanted: CollectiveShape, source: str) -> Estimate:
        """A row of the table as it is, with the interval that its neighbours imply."""
        like, row = kind.family.likeness(wanted.op), _rows([(wanted, 0.0)], kind)
        _, wide = deviation(row, kind.rows, kind.left, like)
        seconds = kind.exact[wanted]
        apart = math.exp(kind.family.like.spread * wide)
        return Estimate(seconds, seconds / apart, seconds * apart, source)

    def inside(self, kind: _Kind, wanted: CollectiveShape) -> tuple[CollectiveShape, float]:
        """The nearest collective in the table's range, and by how many doublings it is beyond."""
        same = [a for a in kind.asked if a.machine == wanted.machine]
        low, high = min(a.bytes for a in same), max(a.bytes for a in same)
        few, many = min(a.group_size for a in same), max(a.group_size for a in same)
        size = min(max(wanted.bytes, low), high)
        group = min(max(wanted.group_size, few), many)
        beyond = abs(math.log2(wanted.bytes / size)) + abs(math.log2(wanted.group_size / group))
        return replace(wanted, bytes=size, group_size=group), beyond

    def kind(self, machine: str, op: str) -> _Kind:
        """The rows of a kind of collective, and their fit."""
        family = next(f for f in FAMILIES if machine in f.machines)
        found = self.kinds.get((family.machines[0], op))
        if found is None:
            found = self.kinds[family.machines[0], op] = self._kind(family, op)
        return found

    def _kind(self, family: CurveFamily, op: str) -> _Kind:
        own_rows = [(a, s) for a, s in self.rows if a.machine in family.machines and a.op == op]
        patterns = _same_patterns(own_rows)
        merged = {replace(a, pattern=patterns.get(a.pattern, a.pattern)): s for a, s in own_rows}
        shapes, seconds = tuple(merged), tuple(merged.values())
        kind = _Kind(family, shapes, _EMPTY, {}, np.zeros(0), merged, patterns)
        rows = _rows(zip(shapes, seconds, strict=True), kind)
        fits: dict[str, Fit] = {}
        left = np.zeros(len(shapes))
        for name in family.machines:
            own = np.array([family.one_fit or a.machine == name for a in shapes])
            if own.any():
                fits[name] = fit(rows.group[own], rows.size[own], rows.seconds[own])
                left[own] = rows.seconds[own] - fits[name].log_seconds(
                    rows.group[own], rows.size[own]
                )
        return replace(kind, rows=rows, fits=fits, left=left)


def _rows(listed: Iterable[tuple[CollectiveShape, float]], kind: _Kind) -> TableRows:
    """Rows as arrays."""
    shapes, seconds = zip(*listed, strict=True)
    times = np.array(seconds)
    size = np.array([float(a.bytes) for a in shapes])
    # The standard deviation of a rounded rate: its error is uniform over half of the last digit.
    half = kind.family.rounding / 2 / math.sqrt(3)
    return TableRows(
        np.array([kind.family.machines.index(a.machine) for a in shapes]),
        np.array([PATTERNS.index(a.pattern) if a.pattern else -1 for a in shapes]),
        np.array([sum(map(ord, a.dtype)) for a in shapes]),  # only compared for equality
        np.array([a.groups * a.group_size for a in shapes]),
        np.log2([float(a.group_size) for a in shapes]),
        np.log2(size),
        np.log(np.maximum(times, 1e-12)),
        half * times / size,
    )


_NAMES, _NUMBERS = np.zeros(0, np.int64), np.zeros(0)
_EMPTY = TableRows(_NAMES, _NAMES, _NAMES, _NAMES, _NUMBERS, _NUMBERS, _NUMBERS, _NUMBERS)


def _same_patterns(rows_measured: Iterable[tuple[CollectiveShape, float]]) -> dict[str, str]:
    """Patterns whose rows are those of another, wherever both were measured."""
    by_pattern: dict[str, dict[CollectiveShape, float]] = {}
    for asked, seconds in rows_measured:
        by_pattern.setdefault(asked.pattern, {})[replace(asked, pattern="")] = seconds
    same_as: dict[str, str] = {}
    for name, rows in by_pattern.items():
        for other, others in by_pattern.items():
            both = rows.keys() & others.keys()
            same = all(math.isclose(rows[b], others[b], rel_tol=1e-3) for b in both)
            # Eight equal rows are no coincidence: the library runs both patterns alike.
            if name > other and len(both) >= 8 and same:
                same_as[name] = other
    return same_as


@cache
def measured() -> CollectiveTable:
    """The table that is shipped with Weft."""
    with TABLE.open(newline="") as lines:
        return CollectiveTable(
            (_collective(row), int(row["bytes"]) / float(row["bytes_per_second"]))
            for row in csv.DictReader(lines)
        )


def _collective(row: Mapping[str, str]) -> CollectiveShape:
    return CollectiveShape(
        row["machine"], row["op"], row["dtype"], int(row["groups"]), int(row["group_size"]),
        row["pattern"], int(row["bytes"]),
    )  # fmt: skip
