"""What the partitioner does not do yet: everything run, one row an op or program.

    python -m tests.partition.triage [ops] [fuzz] [corpus] [--count N] [--only TEXT] [--save DIR]

`--save` keeps the smallest failing program of each row, to be shown with
`python -m tests.partition.program FILE`.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.ops.catalogue import CHECKED
from tests.partition.corpus import corpus_programs
from tests.partition.differential import Wrong
from tests.partition.fuzz import triple
from tests.partition.one_op import Skip, cases
from tests.partition.program import Program, shrunk

Found = tuple[str, Program | Skip]


@dataclass
class Row:
    """What came of an op or a program."""

    ok: int = 0
    skipped: int = 0
    wrong: list[tuple[Wrong, Program]] = field(default_factory=list)
    why: str = ""

    def line(self, name: str) -> str:
        """The row as text."""
        state = "FAILED" if self.wrong else "ok" if self.ok else "skipped"
        first = str(self.smallest()[0]) if self.wrong else self.why if not self.ok else ""
        shown = re.sub(r"\s+", " ", first)[:170]
        return f"{state:8}{self.ok:4} ok {len(self.wrong):4} wrong  {name:38} {shown}"

    def smallest(self) -> tuple[Wrong, Program]:
        """The failure with the shortest program."""
        return min(self.wrong, key=lambda w: len(w[1].text))


def ops(count: int, only: str) -> Iterator[Found]:
    """Every op alone."""
    for op in CHECKED:
        if only in op.name:
            yield from ((op.name, made) for made in cases(op, count))


def fuzz(count: int, only: str) -> Iterator[Found]:
    """Random programs, named after the first op that is named in what is wrong."""
    for seed in range(count):
        yield "fuzz", triple(seed)


def corpus(count: int, only: str) -> Iterator[Found]:
    """The corpus of the sharding stage."""
    for name, program in corpus_programs():
        if only in name:
            yield name, program


GROUPS = {"ops": (ops, 8), "corpus": (corpus, 0), "fuzz": (fuzz, 150)}


def run(group: str, count: int | None, only: str) -> dict[str, Row]:
    """All rows of a group."""
    make, usual = GROUPS[group]
    rows: dict[str, Row] = {}
    for name, program in make(count or usual, only):
        row = rows.setdefault(name, Row())
        if isinstance(program, Skip):
            row.skipped += 1
            row.why = str(program)
            continue
        begun = time.process_time()
        found = program.wrong()
        if time.process_time() - begun > 20:
            print(f"slow: {name}: {time.process_time() - begun:.0f} s", file=sys.stderr)
        if found is None:
            row.ok += 1
        else:
            row.wrong.append((found, program))
            if group == "fuzz":  # a row for each kind of failure
                kind = re.sub(r"\d+|%\S+|\[.*|tensor<\S*", "#", str(found))[:60]
                rows.setdefault(f"fuzz: {kind}", Row()).wrong.append((found, program))
    return rows


def main() -> None:
    """Run the groups and print their tables."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("groups", nargs="*", default=list(GROUPS), choices=[*GROUPS, []])
    options.add_argument("--count", type=int, help="how many of each op, or random programs")
    options.add_argument("--only", default="", help="ops and programs with this in their name")
    options.add_argument("--save", type=Path, help="a folder for failing programs")
    given = options.parse_args()
    for group in given.groups:
        begun = time.time()
        rows = run(group, given.count, given.only)
        states = Counter(
            "FAILED" if r.wrong else "ok" if r.ok else "skipped" for r in rows.values()
        )
        total = sum(r.ok for r in rows.values()), sum(len(r.wrong) for r in rows.values())
        shown = ", ".join(f"{n} {s}" for s, n in states.items())
        print(f"== {group}: {shown}; {total[0]} programs right, {total[1]} wrong", end="")
        print(f" ({time.time() - begun:.0f} s)")
        for name, row in sorted(rows.items(), key=lambda r: (not r[1].wrong, r[0])):
            print(row.line(name))
        for name, row in rows.items():
            if given.save and row.wrong:
                save(given.save, name, *row.smallest())
        sys.stdout.flush()


def save(folder: Path, name: str, found: Wrong, program: Program) -> None:
    """Keep a failing program, made small."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / (re.sub(r"[^\w.]+", "_", name) + ".mlir")
    small = shrunk(program, found)
    file.write_text(small.file() + f"// {small.wrong()}\n".replace("\n", "\n// ").strip() + "\n")


if __name__ == "__main__":
    main()
