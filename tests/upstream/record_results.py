"""A pytest plugin that writes a JSON line when a test starts and when it ends.

The lines are written at once, so that after a crash the last one names the test that ran.
"""

from __future__ import annotations

import json
import sys
from hashlib import sha256
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

LONGEST = 3000  # characters of a failure's text that are kept


class OfCheckout(MetaPathFinder):
    """Utilities of JAX's tests that its wheel leaves out, from the checkout."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        if not fullname.startswith("jax._src."):
            return None
        named = Path(*fullname.split(".")).resolve()
        files = (named / "__init__.py", named.with_suffix(".py"))
        found = next((file for file in files if file.exists()), None)
        return found and spec_from_file_location(fullname, found)


class Recorder:
    """Lines of one run of pytest, appended to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reports: list[Any] = []

    def write(self, **line: object) -> None:
        """Append a line; opened each time, since some tests close every file descriptor."""
        with self.path.open("a") as lines:
            lines.write(json.dumps(line) + "\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.reports = []
        self.write(start=nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.reports.append(report)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        outcome = outcome_of(self.reports)
        seconds = sum(r.duration for r in self.reports)
        self.write(
            test=nodeid, outcome=outcome, seconds=round(seconds, 2), text=text_of(self.reports)
        )

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.write(collection=report.nodeid, text=str(report.longrepr)[-LONGEST:])


def outcome_of(reports: list[Any]) -> str:
    """The outcome of a test's phases and subtests: the worst of them."""
    outcomes = {r.outcome for r in reports}
    return next((o for o in ("failed", "skipped") if o in outcomes), "passed")


def text_of(reports: list[Any]) -> str:
    """The end of a failure's text, or the reason of a skip."""
    for outcome in ("failed", "skipped"):
        for report in reports:
            if report.outcome == outcome and report.longrepr is not None:
                about = report.longrepr
                return str(about[2] if isinstance(about, tuple) else about)[-LONGEST:]
    return ""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-to", help="the file of JSON lines")
    parser.addoption("--only", help="a file with the ids of tests to run, a line each")
    parser.addoption("--sample", type=int, default=0, help="how many tests to run; 0: all")
    parser.addoption("--leave-out", help="a file with the ids of tests not to run, a line each")
    parser.addoption("--jax_test_dut", help="read by JAX's test utilities, from the command line")


def pytest_configure(config: pytest.Config) -> None:
    sys.meta_path.append(OfCheckout())
    config.pluginmanager.register(Recorder(Path(config.getoption("--record-to"))))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what has a result already or is not sampled; record how many tests there are."""
    recorder = next(p for p in config.pluginmanager.get_plugins() if isinstance(p, Recorder))
    if only := config.getoption("--only"):
        wanted = set(Path(only).read_text().splitlines())
        items[:] = [item for item in items if item.nodeid in wanted]
    recorder.write(collected=len(items))
    if size := config.getoption("--sample"):
        # By a hash of the name, so that a smaller sample is a part of a larger one.
        by_hash = sorted(items, key=lambda item: sha256(item.nodeid.encode()).digest())
        sample = {item.nodeid for item in by_hash[:size]}
        items[:] = [item for item in items if item.nodeid in sample]
    if left := config.getoption("--leave-out"):
        unwanted = set(Path(left).read_text().splitlines())
        items[:] = [item for item in items if item.nodeid not in unwanted]
