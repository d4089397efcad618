"""Which files of tests reach which lines of weft/, for `tests/mutants.py`.

    make reach    # all tests once, with coverage.py: build/reach.db

A plugin of pytest names the file of the running test as the context of coverage.py; processes that
tests start get it from the environment. Lines that run when a module is imported are reached by
every test and by none in particular: they have no files.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "build" / "reach.db"
CONTEXT = "WEFT_REACH"
IMPORTED = "import"
SETTINGS = f"""[run]
source = {ROOT / "weft"}
data_file = {RECORD}
parallel = true
context = ${{{CONTEXT}-{IMPORTED}}}
sigterm = true
disable_warnings = no-data-collected
"""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logstart(nodeid: str) -> None:
    """Let what runs from here on be reached by the file of this test."""
    import coverage

    os.environ[CONTEXT] = file = nodeid.partition("::")[0]
    running = coverage.Coverage.current()
    if running is not None:
        running.switch_context(file)


class Reach:
    """The record of a run: the files of tests by line."""

    def __init__(self, record: Path = RECORD) -> None:
        from coverage import CoverageData

        self.data = CoverageData(str(record))
        self.data.read()
        self.lines = Counter[str]()  # reached by each file of tests
        for file in self.data.measured_files():
            for contexts in self.data.contexts_by_lineno(file).values():
                self.lines.update(map(_file, contexts))

    def files(self, path: str, line: int) -> list[str]:
        """The files of tests that reach a line of a file, those that reach the least first.

        Of a statement only the first line is recorded: a line without a record is of the one above.
        """
        reached = self.data.contexts_by_lineno(str(ROOT / path))
        first = max((n for n in reached if n <= line), default=0)
        found = {_file(context) for context in reached.get(first, ())} - {IMPORTED}
        return sorted(found, key=lambda name: self.lines[name])


def _file(context: str) -> str:
    """The file of tests in a context: the static one, a bar, and what the plugin set."""
    return context.rpartition("|")[2]


def main() -> int:
    """Run the tests, and put the records of all processes together."""
    RECORD.parent.mkdir(exist_ok=True)
    for old in RECORD.parent.glob("reach.db*"):
        old.unlink()
    settings = RECORD.with_suffix(".ini")
    settings.write_text(SETTINGS)
    env = os.environ | {"COVERAGE_PROCESS_START": str(settings)}
    line = [sys.executable, "-m", "pytest", "-q", "-p", "tests.reach", *sys.argv[1:]]
    status = subprocess.run(line, cwd=ROOT, env=env).returncode
    combine = ["combine", f"--rcfile={settings}", "-q"]
    subprocess.run([sys.executable, "-m", "coverage", *combine], cwd=ROOT, check=True)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
