"""What is recorded of a file of tests."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

OUTCOMES = ("passed", "failed", "crashed", "timeout", "skipped")


@dataclass(frozen=True)
class Results:
    """The lines of a file, in the order in which they were written."""

    lines: tuple[dict[str, Any], ...]

    @staticmethod
    def read(path: Path) -> Results:
        """What a file holds, less a last line that a crash cut off."""
        if not path.exists():
            return Results(())
        whole = [line for line in path.read_text().splitlines() if line.endswith("}")]
        return Results(tuple(json.loads(line) for line in whole))

    @cached_property
    def tests(self) -> dict[str, dict[str, Any]]:
        """The last result of every test that has one."""
        return {line["test"]: line for line in self.lines if "test" in line}

    @property
    def running(self) -> str | None:
        """The test that had started and not ended when the last process did."""
        last = next((line for line in reversed(self.lines) if {"start", "test"} & set(line)), {})
        return last.get("start")

    @property
    def is_finished(self) -> bool:
        return bool(self.lines) and "finished" in self.lines[-1]

    @property
    def error(self) -> str:
        """Why the file cannot be collected, if it cannot."""
        told = [x for x in self.lines if {"collection", "finished"} & set(x) and "text" in x]
        return str(told[0]["text"]) if told and not self.tests else ""

    @property
    def collected(self) -> int:
        """How many tests the file has."""
        return max((line["collected"] for line in self.lines if "collected" in line), default=0)

    @property
    def not_run(self) -> int:
        """Tests that are not in the sample, or that the time of their file was too short for."""
        return max(0, self.collected - len(self.tests))

    def count(self) -> Counter[str]:
        """How many tests had which outcome."""
        return Counter(result["outcome"] for result in self.tests.values())

    def summary(self) -> str:
        """The counts in words."""
        if self.error:
            return "cannot be imported: " + self.error.strip().splitlines()[-1]
        counts = self.count()
        parts = [f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome]]
        return ", ".join([*parts, *([f"{self.not_run} not run"] if self.not_run else [])])


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    return tomllib.loads(path.read_text())
