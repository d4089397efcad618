"""What every program of the corpus sends, partitioned by XLA and by Weft.

XLA's answers are kept in xla_collectives.json; `python -m tests.partition.lean` asks for those that
are missing or out of date.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.oracles.process import Crashed
from tests.oracles.xla_collectives import collectives
from tests.shard.corpus import LONG, MESHES, PROGRAMS, annotated, cases
from weft.cost.sent import Sent, bytes_sent, full_gathers, total_sent
from weft.ir.module import Module
from weft.optimize import Level, optimize
from weft.partition import partition
from weft.shard import shard

FILE = Path(__file__).with_name("xla_collectives.json")
Key = tuple[str, str, str]  # program, mesh, annotation


@dataclass(frozen=True)
class Traffic:
    """What a device sends in one step."""

    bytes: float
    full_gathers: int  # gathers, in one step or several, that give every device everything
    kinds: dict[str, float]  # bytes by the name of the collective


def ours(module: Module) -> Traffic:
    """The traffic of a local program of ours."""
    rows = bytes_sent(module)
    return Traffic(total_sent(rows), full_gathers(module), by_kind(rows))


def by_kind(rows: tuple[Sent, ...]) -> dict[str, float]:
    """Bytes by the name of the collective."""
    found: dict[str, float] = {}
    for row in rows:
        name = row.name.partition(".")[2]
        found[name] = found.get(name, 0.0) + row.total
    return found


def theirs(module: Module, devices: int) -> Traffic:
    """The traffic of XLA's partitioning of an annotated program."""
    rows = collectives(module.text(), devices)
    kinds: dict[str, float] = {}
    for row in rows:
        kinds[row.name] = kinds.get(row.name, 0.0) + row.bytes * row.count
    full = sum(r.reach >= devices > r.reach // r.devices and r.bytes > 0 for r in rows)
    return Traffic(sum(kinds.values()), full, kinds)


def partitioned(key: Key, level: Level = 1) -> Module:
    """A program of the corpus as Weft partitions it, and optimizes it on that level."""
    return optimize(partition(shard(annotated(*key))), level)


def keys() -> Iterator[Key]:
    """Every program, mesh and annotation."""
    yield from cases(PROGRAMS)


# XLA's answers, kept


def mark(module: Module) -> str:
    """What tells whether an answer is about this program."""
    return hashlib.sha256(module.text().encode()).hexdigest()[:16]


def kept() -> dict[str, dict[str, object]]:
    """The answers by program, mesh and annotation."""
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def known(key: Key) -> Traffic | None:
    """XLA's traffic, if it was asked for and the program is still the same."""
    found = kept().get(" / ".join(key))
    if found is None or found["program"] != mark(annotated(*key)) or "bytes" not in found:
        return None
    return Traffic(found["bytes"], found["full_gathers"], found["kinds"])  # type: ignore[arg-type]


def refresh(only: str = "", long: bool = False) -> None:
    """Ask XLA about every program whose answer is missing."""
    answers = kept()
    for key in (*cases(PROGRAMS), *(cases(LONG) if long else ())):
        name = " / ".join(key)
        module = annotated(*key)
        if only not in name or answers.get(name, {}).get("program") == mark(module):
            continue
        answer: dict[str, object] = {"program": mark(module)}
        try:
            found = theirs(module, MESHES[key[1]][0].size)
            answer |= {
                "bytes": found.bytes,
                "full_gathers": found.full_gathers,
                "kinds": found.kinds,
            }
        except (Crashed, ValueError) as error:
            answer["error"] = str(error)[:200]
        answers[name] = answer
        lines = [f"{json.dumps(n)}: {json.dumps(answers[n])}" for n in sorted(answers)]
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        print(name, answer.get("bytes", answer.get("error")), flush=True)


if __name__ == "__main__":
    refresh(*sys.argv[1:])
