"""`benchmarks/against.py`: what it measures, and what it calls slower."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("rich")
from benchmarks import against, sides
from benchmarks.against import Compared, Measured, compared, confirmed, mean, race, verdict

ROOT = Path(__file__).parent.parent


def row(*ratios, table="t", case="c", unit="s"):
    return Compared(table, case, "8", 1.0, ratios, unit)


class Fixed:
    """A side that takes given seconds, turn by turn."""

    memory = None

    def __init__(self, *seconds):
        self.seconds, self.turns = iter(seconds), 0

    def turn(self):
        self.turns += 1
        return {"": next(self.seconds)}


def test_medians_of_turns(monkeypatch):
    monkeypatch.setattr(against, "REST", 0)
    new, old = Fixed(1, 9, 2), Fixed(4, 3, 50)
    assert race({"new": new, "old": old}, 3) == {"new": {"": 2}, "old": {"": 4}}
    assert new.turns == old.turns == 3


def test_a_ratio_above_one_is_a_faster_working_tree():
    one = Measured("t", "c", "8", "", ())
    (found,) = compared(one, {"": 2.0}, {"": 3.0})
    assert found.ratio == 1.5
    staged = compared(one, {"read": 1.0, "tile": 1.0, "x": 1e-6}, {"read": 2.0, "x": 1e-6})
    assert [(r.case, r.ratio) for r in staged] == [("read", 2.0)]  # neither one side's nor noise


@pytest.mark.parametrize(
    "ratios, runs, is_slower",
    [
        ((0.95,), 1, False),
        ((0.9, 0.97), 2, False),
        ((0.9, 0.8, 1.1), 3, False),
        ((0.9, 0.8, 0.92), 3, True),
    ],
)
def test_a_slow_row_is_confirmed(ratios, runs, is_slower):
    left = iter(ratios)
    (found,) = confirmed([row(next(left))], lambda: [row(next(left))])
    assert len(found.ratios) == runs
    assert found.is_slower == is_slower


def test_only_slow_rows_get_more_runs():
    fine, slow = row(1.0, case="fine"), row(0.5, case="slow")
    again = [row(2.0, case="fine"), row(0.6, case="slow")]
    assert [r.ratios for r in confirmed([fine, slow], lambda: again)] == [(1.0,), (0.5, 0.6, 0.6)]


def test_the_verdict():
    assert verdict([row(1.0), row(0.97)]) == []
    assert mean([row(0.5), row(2.0)]) == 1.0
    (told,) = verdict([row(0.97), row(0.97), row(1.0, table="other")])
    assert told == "t: geometric mean 0.970, below 0.98"
    slow = row(0.9, 0.92, 0.91)
    assert verdict([slow, row(2.0)]) == ["t: c 8: 0.90, 0.92, 0.91, below 0.93"]
    assert len(verdict([row(0.9, unit="B"), row(2.0)])) == 1


@pytest.mark.parametrize("table", sides.TABLES)
def test_rows_are_listed_and_can_be_made(table):
    listed = list(sides.rows(table, quick=True))
    assert len({(one.table, one.case, one.shape) for one in listed}) == len(listed) > 1
    for maker in {one.maker for one in listed}:
        module, _, name = maker.partition(":")
        module = f"benchmarks.{module}" if module == "sides" else module
        assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.long
def test_it_runs():
    line = [sys.executable, "benchmarks/against.py", "HEAD", "--quick", "--only", "lockstep"]
    line += ["--rows", "collectives 1 device"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    assert "geometric mean" in done.stdout


def test_an_unknown_revision_is_refused():
    line = [sys.executable, "benchmarks/against.py", "no-such-revision"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    assert "no revision no-such-revision" in done.stderr
