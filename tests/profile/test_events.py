"""Golden events and lines of a made-up recording: overlapping sends, branches, loops, clocks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from weft.profile import Profile, profile
from weft.timeline import MemoryPoint, Timeline

GOLDEN = Path(__file__).parents[1] / "golden" / "profile"
LATE = (0, 7_000, 0)  # nanoseconds that each worker enters later than the first
OFF = (0, 1_000_000, -40_000)  # what the clock of a worker shows less than that of the first


def item(name: str, kind: str, line: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "kind": kind, "loc": f'"a.py":{line}:1' if line else "", **more}


ALL = {"meets": [0, 1, 2], "over": "x"}
ITEMS = [
    item("dot", "product", 3),
    item("all_gather", "start", 4, bytes=640.0, **ALL),
    item("all_gather", "done", 4, start=1),
    item("all_reduce", "collective", 7, bytes=96.0, **ALL),
    item("branch", "memory", 9),
    item("own", "collective", 11, meets=[0], over="y"),
    item("rest", "memory", 0),
]


def spans(begin: int, late: int, branch: bool) -> list[int]:
    """One run: two gathers in flight at once around a product, a loop's sums, maybe a branch."""
    rows = [
        (1, 0, 30), (1, 50, 70), (0, 100, 900), (2, 1_000, 1_400), (2, 1_500, 1_650),
        (3, 2_000 + late, 2_500 + late // 2), (3, 10_000 + late, 19_000), (6, 20_000, 20_100),
        (5, 21_000, 21_700),
    ]  # fmt: skip
    rows += [(4, 22_000, 24_500)] if branch else []
    rows += [(2, 25_000, 25_001)]  # of which no start was recorded
    return [n for number, first, last in rows for n in (number, begin + first, begin + last)]


def lines(rank: int) -> Iterator[list[Any]]:
    off, late = OFF[rank], LATE[rank]
    facts = {"time": 5, "wall": 5 + off, "rank": rank, "attempt": 0, "pid": 10 + rank}
    yield ["process", {**facts, "host": f"h{rank}", "boot": f"boot{rank}", "cores": 2}]
    yield ["zone", ["step", "captured", 100 - off, 400 - off]]
    yield ["zone", ["step", "optimized/cse", 150 - off, 250 - off]]
    if rank == 2:
        yield ["clock", {"offset": off + 3, "error": 9.0}]
    held = {"devices": [rank], "items": ITEMS}
    yield ["program", {"number": 0, "name": "step", "digest": "d", **held}]
    yield ["program", {"number": 1, "name": "step", "digest": "d", **held}]
    yield ["program", {"number": 2, "name": "other", "digest": "e", **held, "devices": [*range(4)]}]
    rows = [["dot", "product", '"a.py":3:1', 6e-7], ["gone", "memory", "unknown", 1e-9]]
    made = {"program": 0, "machine": "host", "name": "", "seconds": 3e-5, "rows": rows}
    yield ["predicted", made]
    for count in range(4):
        begin = 100_000 * (count + 1) - off
        made = spans(begin, late, branch=count == 2)
        yield ["run", [0, count, 0, begin, begin + 30_000 + 1_000 * count, made]]
    begin = 700_000 - off
    yield ["run", [1, 0, 1, begin, begin + 50_000, spans(begin, 0, branch=True)]]
    yield ["run", [2, 0, 1, begin + 60_000, begin + 90_000, spans(begin + 60_000, 0, branch=False)]]
    if rank != 1:
        yield ["end", {"time": 0, "dropped": 2 + rank}]


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> Profile:
    folder = tmp_path_factory.mktemp("recorded")
    for rank in range(3):
        text = "\n".join(json.dumps(line) for line in lines(rank))
        (folder / f"{rank}.jsonl").write_text(text + "\n")
    return profile(folder)


def described(found: Profile) -> Iterator[str]:
    """Events in microseconds, one a line."""
    for e in found.timeline.events:
        what = f"{e.start * 1e6:.3f} to {e.end * 1e6:.3f}: {e.name}, {e.kind} on {e.track}"
        where = f"worker {e.worker} devices {e.devices or '-'} run {e.run} of {e.program}"
        sent = f"; {e.bytes:g} bytes over {e.over}, {e.exposed * 1e6:.3f} exposed, match {e.match}"
        yield f"{what}, {where}{sent if e.kind == 'collective' else ''}"


def test_events(found, golden):
    golden(GOLDEN / "events.txt", "".join(f"{line}\n" for line in described(found)))


def test_lines_and_waits(found, golden):
    data = found.as_json()
    text = json.dumps(data, indent=1, sort_keys=True).replace("NaN", "null")
    golden(GOLDEN / "profile.json", text + "\n")
    golden(GOLDEN / "tables.txt", "\n\n".join(map(str, found.programs)) + "\n")


def test_the_trace_of_a_viewer(found, golden):
    """Names and numbers of tracks, arrows between workers, counters of memory."""
    events = tuple([e for e in found.timeline.events if e.run == 0 and e.kind != "stage"])
    points = (MemoryPoint(0.0, 5), MemoryPoint(2e-3, 7))
    made = Timeline("", events[:40], 1.0, points, found.timeline.hosts[:1])
    assert made.peak == 7 and made.tracks[0].startswith("compute")
    rows = made.as_chrome()
    kept = rows.pop("traceEvents")
    text = "".join(f"{json.dumps(row, sort_keys=True)}\n" for row in [rows, *kept])
    golden(GOLDEN / "trace.jsonl", text)


def test_collectives_of_lost_workers_match_none(tmp_path):
    (tmp_path / "0.jsonl").write_text("\n".join(json.dumps(line) for line in lines(0)))
    events = profile(tmp_path).timeline.events
    assert {e.match for e in events if e.kind == "collective"} == {0}
