"""The table of what passed, and every failure with its reason."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from results import OUTCOMES, Results, read_toml

COLUMNS = (*OUTCOMES, "not run", "CPU passes", "unexplained")


@dataclass
class Failures:
    """Tests that pass on JAX's CPU and not on Weft: those with a reason, and the others."""

    reasons: list[tuple[re.Pattern[str], str]]
    accepted: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    unexplained: list[tuple[str, str]] = field(default_factory=list)
    unimported: list[str] = field(default_factory=list)

    def add(self, file: str, found: Results, oracle: Results) -> tuple[int, int]:
        """Sort the failures of a file; how many there are, and how many have no reason."""
        before = len(self.unexplained)
        if found.error and oracle.error:
            self.unimported.append(f"{file}: {last_line(found.error)}")
        elif found.error:
            self.unexplained.append((file, last_line(found.error)))
        differ = differences(found, oracle)
        for test in differ:
            why = next((reason for pattern, reason in self.reasons if pattern.search(test)), None)
            if why is None:
                self.unexplained.append((test, last_line(found.tests[test]["text"])))
            else:
                self.accepted[why].append(test)
        return len(differ), len(self.unexplained) - before

    def print(self) -> None:
        """Every failure, under its reason."""
        for reason, tests in self.accepted.items():
            print(f"\naccepted: {reason}", *tests, sep="\n  ")
        if self.unimported:
            print("\nnot to be imported here, nor on JAX's CPU:", *self.unimported, sep="\n  ")
        if self.unexplained:
            print("\nwithout a reason:")
            print("".join(f"  {test}\n      {text}\n" for test, text in self.unexplained), end="")


def print_report(recorded: dict[str, tuple[Path, Path]], reasons: Path) -> int:
    """Print counts by file and the failures; 1 if one of them has no reason."""
    listed = read_toml(reasons)["accepted"]
    failures = Failures([(re.compile(entry["tests"]), entry["reason"]) for entry in listed])
    totals = [0] * len(COLUMNS)
    print(f"{'file':44}" + "".join(f"{word:>12}" for word in COLUMNS))
    for file, (weft, cpu) in recorded.items():
        found, oracle = Results.read(weft), Results.read(cpu)
        if not found.lines:
            continue
        counts = found.count()
        row = [*[counts[o] for o in OUTCOMES], found.not_run, *failures.add(file, found, oracle)]
        totals = [a + b for a, b in zip(totals, row, strict=True)]
        print(f"{file:44}" + "".join(f"{n or '':>12}" for n in row))
    print(f"{'all':44}" + "".join(f"{n:>12}" for n in totals))
    failures.print()
    return int(bool(failures.unexplained))


def differences(found: Results, oracle: Results) -> list[str]:
    """Tests that pass on JAX's CPU and do not on Weft; skipped ones, too."""
    return [
        test
        for test, result in found.tests.items()
        if result["outcome"] != "passed" and oracle.tests.get(test, {}).get("outcome") == "passed"
    ]


def last_line(text: str) -> str:
    """The line of a failure's text that says what is wrong: pytest's first, or the last."""
    marked = [line for line in text.splitlines() if line.startswith("E  ") and line[1:].strip()]
    lines = marked[:1] or text.strip().splitlines()[-1:]
    return lines[0].removeprefix("E").strip()[:200] if lines else ""
