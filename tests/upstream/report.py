"""The table of what passed, and every failure with its reason."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from results import OUTCOMES, Results, read_toml


def print_report(recorded: dict[str, tuple[Path, Path]], here: Path) -> int:
    """Print counts by file and the failures; 1 if one of them has no reason.

    A failure counts where the same test passes on JAX's CPU.
    """
    reasons = [
        (re.compile(entry["tests"]), entry["reason"])
        for entry in read_toml(here / "accepted.toml")["accepted"]
    ]
    head = (*OUTCOMES, "not run", "CPU passes", "unexplained")
    print(f"{'file':40}" + "".join(f"{word:>12}" for word in head))
    totals = [0] * len(head)
    accepted: dict[str, list[str]] = defaultdict(list)
    unexplained: list[tuple[str, str]] = []
    unimported: list[str] = []
    for file, (weft, cpu) in recorded.items():
        found, oracle = Results.read(weft), Results.read(cpu)
        if not found.lines:
            continue
        if found.error:
            (unimported if oracle.error else unexplained).append(
                f"{file}: {found.summary()}" if oracle.error else (file, found.error)  # type: ignore
            )
        differ = differences(found, oracle)
        bare = []
        for test in differ:
            why = next((reason for pattern, reason in reasons if pattern.search(test)), None)
            if why is None:
                bare.append((test, last_line(found.tests[test]["text"])))
            else:
                accepted[why].append(test)
        unexplained += bare
        counts = found.count()
        row = [counts[o] for o in OUTCOMES] + [found.not_run, len(differ), len(bare)]
        totals = [a + b for a, b in zip(totals, row, strict=True)]
        print(f"{file:40}" + "".join(f"{n or '':>12}" for n in row))
    print(f"{'all':40}" + "".join(f"{n:>12}" for n in totals))
    for reason, tests in accepted.items():
        print(f"\naccepted: {reason}")
        print("".join(f"  {test}\n" for test in tests), end="")
    if unimported:
        print("\nnot to be imported here, on JAX's CPU neither:")
        print("".join(f"  {line}\n" for line in unimported), end="")
    if unexplained:
        print("\nwithout a reason:")
        print("".join(f"  {test}\n      {text}\n" for test, text in unexplained), end="")
    return int(bool(unexplained))


def differences(found: Results, oracle: Results) -> list[str]:
    """Tests that pass on JAX's CPU and do not on Weft; skipped ones, too."""
    return [
        test
        for test, result in found.tests.items()
        if result["outcome"] != "passed"
        and oracle.tests.get(test, {}).get("outcome") == "passed"
    ]


def last_line(text: str) -> str:
    """The line of a failure's text that says most."""
    lines = [line for line in text.splitlines() if line.startswith("E  ")] or text.splitlines()
    return lines[-1 if not lines or not lines[0].startswith("E  ") else 0].strip()[:200] if lines else ""
