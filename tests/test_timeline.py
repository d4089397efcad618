"""Timelines: totals, tracks, and the format of trace viewers."""

from __future__ import annotations

import json
from pathlib import Path

from weft.ir.location import Location
from weft.timeline import MemoryPoint, Timeline, TimelineEvent

LINE = Timeline(
    "step",
    (
        TimelineEvent("dot", "product", "compute.0", 0.0, 2e-3, Location('"a.py":3:1'), times=4),
        TimelineEvent(
            "all_reduce", "collective", "communication.0 (nvlink)", 1e-3, 2e-3,
            exposed=1e-3, bytes=1024.0, over="model", source="measured",
        ),
    ),
    9e-3,
    (MemoryPoint(0.0, 100), MemoryPoint(1e-3, 300)),
)  # fmt: skip


def test_totals():
    assert LINE.seconds_of("product") == 8e-3
    assert LINE.exposed == 1e-3 and LINE.peak == 300
    assert LINE.tracks == ("compute.0", "communication.0 (nvlink)")
    assert [e.name for e in LINE.collectives()] == ["all_reduce"]


def test_trace_viewers_read_it(tmp_path: Path):
    LINE.save(tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    threads = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    drawn = [e for e in events if e["ph"] == "X"]
    assert [threads[e["tid"]] for e in drawn] == [*LINE.tracks]
    assert [(e["ts"], e["dur"]) for e in drawn] == [(0, 2000), (1000, 2000)]
    assert drawn[0]["args"] == {"line": "a.py:3", "times": 4}
    assert drawn[1]["args"]["bytes"] == 1024 and drawn[1]["args"]["over"] == "model"
    assert [e["args"]["bytes"] for e in events if e["ph"] == "C"] == [100, 300]
