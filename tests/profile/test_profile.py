"""Profiles: recorded runs, one clock for all workers, matched collectives, predicted lines."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import weft
from weft import Mesh, P
from weft.cli import main
from weft.errors import WeftError
from weft.pipeline import STAGES
from weft.profile import profile
from weft.profiling import measured_data
from weft.recording import Recorder, read_recordings, recorder, recording_to
from weft.workers.clocks import measure_offset
from weft.workers.messages import PeerConnections

LAUNCHED = Path(__file__).parent.parent / "workers" / "launched.py"
ROOT = LAUNCHED.parent.parent.parent
LOOP = """
module @loop {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%a: tensor<256x256xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>})
      -> (tensor<256x256xf32>, tensor<f32>) {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %r:2 = stablehlo.while(%n = %zero, %x = %a) : tensor<i32>, tensor<256x256xf32>
      cond {
        %last = stablehlo.constant dense<5> : tensor<i32>
        %more = stablehlo.compare LT, %n, %last : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %more : tensor<i1>
      } do {
        %one = stablehlo.constant dense<1> : tensor<i32>
        %next = stablehlo.add %n, %one : tensor<i32>
        %y = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0]
            : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
        %z = stablehlo.tanh %y : tensor<256x256xf32>
        stablehlo.return %next, %z : tensor<i32>, tensor<256x256xf32>
      }
    %init = stablehlo.constant dense<0.0> : tensor<f32>
    %sum = stablehlo.reduce(%r#1 init: %init) applies stablehlo.add across dimensions = [0, 1]
        : (tensor<256x256xf32>, tensor<f32>) -> tensor<f32>
    return %r#1, %sum : tensor<256x256xf32>, tensor<f32>
  }
}
"""
A = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)


def overlaps(events: list[dict]) -> list[tuple[dict, dict]]:
    """Events of one track that neither nest nor follow each other, which Perfetto cannot draw."""
    tracks: dict[tuple[int, int], list[dict]] = {}
    for event in events:
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append(event)
    found = []
    for track in tracks.values():
        track.sort(key=lambda e: (e["ts"], -e["dur"]))
        for one, two in pairwise(track):
            end, other = one["ts"] + one["dur"], two["ts"] + two["dur"]
            if two["ts"] < end - 1e-3 and other > end + 1e-3:
                found.append((one, two))
    return found


@pytest.fixture(scope="module")
def looped(tmp_path_factory):
    """A recorded program of loops on two devices, and its results without a recorder."""
    folder = tmp_path_factory.mktemp("recorded")
    plain = [np.asarray(r) for r in weft.compile(LOOP)(A)]
    with recording_to(folder):
        program = weft.compile(LOOP)
        made = [[np.asarray(r) for r in program(A)] for _ in range(3)]
    assert recorder() is None
    program(A)  # after the recording
    return folder, plain, made


def test_results_are_those_of_a_run_without_it(looped):
    _, plain, made = looped
    for results in made:
        for one, other in zip(results, plain, strict=True):
            np.testing.assert_array_equal(one, other)


def test_every_event_has_its_ids(looped):
    found = profile(looped[0])
    line = found.timeline
    runs = [e for e in line.events if e.kind == "run"]
    assert [e.run for e in runs] == [0, 1, 2]
    inside = [e for e in line.events if e.kind not in ("run", "stage")]
    assert {(e.devices, e.worker) for e in inside} == {("0, 1", 0)}
    assert len({e.program for e in inside}) == 1 and inside[0].program.startswith("loop ")
    assert {e.run for e in inside} == {0, 1, 2}
    # Events lie in their runs, and a loop's body ran five times.
    for event in inside:
        run = runs[event.run]
        assert run.start <= event.start and event.end <= run.end + 1e-9
    dots = Counter(e.run for e in inside if e.kind == "product")
    assert set(dots.values()) == {5}
    stages = [e.name for e in line.events if e.kind == "stage" and e.track == "compiler"]
    assert stages == [f"{stage} loop" for stage in STAGES]


def test_predicted_beside_measured(looped):
    (program,) = profile(looped[0]).programs
    assert program.runs == 3 and program.workers == 1 and program.predicted is not None
    both = [r for r in program.lines if r.predicted is not None and r.measured is not None]
    heaviest = max(program.lines, key=lambda row: row.measured or 0.0)
    assert heaviest in both and len(both) >= len(program.lines) - 1
    spent = sum(row.measured or 0.0 for row in program.lines) + program.between
    assert spent == pytest.approx(program.measured, rel=0.5)
    table = str(program)
    assert table.startswith("loop: 3 runs") and "predicted for host" in table
    assert json.loads(json.dumps(program.as_json()))["runs"] == 3


def test_perfetto_draws_it(looped, tmp_path):
    line = profile(looped[0], name="loop.py").timeline
    line.save(tmp_path / "t.json")
    made = json.loads((tmp_path / "t.json").read_text())
    assert not overlaps(made["traceEvents"])
    (host,) = made["metadata"]["workers"]
    assert host["pid"] == os.getpid() and host["clock"]["source"] == "same clock"
    drawn = [e for e in made["traceEvents"] if e["ph"] == "X" and e["cat"] == "product"]
    assert {"worker", "devices", "program", "run"} <= drawn[0]["args"].keys()
    data = measured_data(profile(looped[0]))
    json.dumps(data, allow_nan=False)
    assert data["lines"][0]["lines"] and data["timeline"]["events"]


def test_a_killed_process_leaves_its_events(looped, tmp_path):
    (path,) = looped[0].glob("*.jsonl")
    text = path.read_text()
    cut = text.index('["run",[0,2')
    (tmp_path / "cut.jsonl").write_text(text[: cut + 40])
    found = profile(tmp_path)
    assert found.programs[0].runs == 2 and found.timeline.hosts[0]["killed"]
    (tmp_path / "cut.jsonl").write_text(text[:10])
    with pytest.raises(WeftError, match="nothing is measured"):
        profile(tmp_path)


def test_another_profile_at_the_same_time_is_refused(tmp_path):
    refused = pytest.raises(WeftError, match="profiled already")
    with recording_to(tmp_path / "a"), refused, recording_to(tmp_path / "b"):
        pass
    assert recorder() is None


# Clocks


def worker(folder: Path, rank: int, skew: int, runs: list, boot: str, clock=None, **more) -> None:
    """A recording of one collective between two devices, on a clock that is off."""
    made = Recorder(folder)
    made.path.unlink(missing_ok=True)
    made.path = folder / f"{rank}.jsonl"
    facts = {"time": 0, "wall": 0, "rank": rank, "attempt": 0, "pid": rank, "host": "h", **more}
    row = {"name": "all_reduce", "kind": "collective", "loc": "", "meets": [0, 1], "over": "x"}
    facts = {"number": 0, "name": "m", "digest": "d", "devices": [rank], "items": [row]} | {
        "process": facts | {"boot": boot, "cores": 1}
    }
    made.add("process", facts.pop("process"))
    made.program(facts)
    if clock is not None:
        made.add("clock", clock)
    for count, (begin, end) in enumerate(runs):
        made.run(0, count, begin - skew, end - skew, [(0, begin - skew, end - skew)])
    made.close()


# Worker 1 comes 300 us late to the first and 100 us early to the second collective.
RUNS = [
    [(1_000_000, 1_400_000), (2_100_000, 2_200_000)],
    [(1_300_000, 1_410_000), (2_000_000, 2_205_000)],
]


@pytest.mark.parametrize(
    ("clock", "wall", "source", "within"),
    [
        ({"offset": 5_000_020, "error": 40.0}, 0, "round trips", 20),
        (None, 5_000_010, "wall clocks", 10),
        (None, 9_999_999, "wall clocks, moved by collectives", 110_000),
        (None, 0, "wall clocks, moved by collectives", 210_000),
    ],
)
def test_clock_offsets(tmp_path, clock, wall, source, within):
    worker(tmp_path, 0, 0, RUNS[0], "boot-a")
    worker(tmp_path, 1, 5_000_000, RUNS[1], "boot-b", clock, wall=wall)
    found = profile(tmp_path)
    told = found.timeline.hosts[1]["clock"]
    assert told["source"] == source and abs(told["offset_ns"] - 5_000_000) <= within
    assert found.matched == 2
    matches = Counter(e.match for e in found.timeline.events if e.kind == "collective")
    assert matches == {1: 2, 2: 2}
    if clock is not None:
        assert found.waited == {1: pytest.approx(3e-4, abs=1e-6), 0: pytest.approx(1e-4, abs=1e-6)}
    arrows = [e for e in found.timeline.as_chrome()["traceEvents"] if e.get("cat") == "match"]
    assert [e["ph"] for e in arrows] == ["s", "f", "s", "f"]
    assert [e["pid"] for e in arrows][:2] == [0, 1]


def test_one_boot_is_one_clock(tmp_path):
    for rank in (0, 1):
        worker(tmp_path, rank, 0, RUNS[rank], "boot", {"offset": 77, "error": 1.0})
    assert profile(tmp_path).timeline.hosts[1]["clock"]["source"] == "same clock"


class Queues:
    """A transport between threads, as gloo is between processes."""

    def __init__(self, rank: int, pipes: dict) -> None:
        self.rank, self.pipes = rank, pipes

    def send(self, data, rank, tag):
        self.pipes[self.rank, rank].put(data.copy())
        return self

    def receive(self, data, rank, tag):
        data[:] = self.pipes[rank, self.rank].get(timeout=30)
        return self

    def wait(self, timeout):
        return True


def test_offsets_by_round_trips():
    pipes = {(a, b): queue.Queue() for a in range(3) for b in range(3)}
    found = {}

    def run(rank: int) -> None:
        import time

        skew = 1_000_000_000 * rank
        wire = PeerConnections(Queues(rank, pipes), None, 30.0)
        found[rank] = measure_offset(wire, rank, 3, lambda: time.perf_counter_ns() - skew)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == {"offset": 0, "error": 0.0}
    for rank in (1, 2):
        assert abs(found[rank]["offset"] - 1_000_000_000 * rank) <= found[rank]["error"] + 1


# The command


def test_a_saved_executable(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = weft.put(A, P(None, "x"), Mesh(x=2))
    weft.compile(LOOP, x).save("loop.weft")
    assert main(["profile", "--runs", "3", "--report", "p.html", "loop.weft"]) == 0
    shown = capsys.readouterr().out
    assert "loop: 3 runs" in shown and "predicted" in shown and "written: profile.json" in shown
    assert "Lines" in Path("p.html").read_text()
    assert main(["profile", "--keep", "kept", "--json", "loop.weft"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["programs"][0]["runs"] == 10 and told["status"] == 0
    assert len(read_recordings(Path("kept"))) == 1
    assert main(["profile", "kept"]) == 0
    assert "loop: 10 runs" in capsys.readouterr().out
    assert main(["profile", "--keep", "kept", "loop.weft"]) == 1
    assert "has recordings already" in capsys.readouterr().err
    Path("bad.weft").write_text("no executable")
    assert main(["profile", "--keep", "none", "bad.weft"]) == 1
    assert "is not a Weft executable" in capsys.readouterr().err and not Path("none").exists()


@pytest.mark.parametrize(
    ("line", "status", "error"),
    [
        ([], 1, "nothing to profile"),
        (["--", "no-such-command"], 1, "cannot run no-such-command"),
        (["--", sys.executable, "-c", "raise SystemExit(3)"], 3, ""),
        (["--", sys.executable, "-c", "pass"], 1, "nothing is measured"),
    ],
)
def test_what_cannot_be_profiled(line, status, error, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["profile", *line]) == status
    assert error in capsys.readouterr().err


def test_workers_are_merged(tmp_path):
    """Two launched workers, in one timeline; each collective is matched with the other's."""
    pytest.importorskip("torch")
    line = [sys.executable, "-m", "weft", "profile", "-o", str(tmp_path / "t.json"), "--json", "--"]
    line += [sys.executable, "-m", "weft", "launch", "--workers", "2", str(LAUNCHED), "nothing"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(line, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout[ran.stdout.index("{\n") :])
    assert [worker["rank"] for worker in told["workers"]] == [0, 1]
    assert told["collectives_matched"] > 0
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert not overlaps(events)
    collectives = [e for e in events if e.get("cat") == "collective"]
    by_match: dict[int, list[dict]] = {}
    for event in collectives:
        by_match.setdefault(event["args"]["match"], []).append(event)
    assert set(by_match) - {0} and {e["pid"] for e in collectives} == {0, 1}
    for match, found in by_match.items():
        if match:
            assert [e["pid"] for e in found] in ([0, 1], [1, 0])
            assert len({(e["args"]["program"], e["args"]["run"], e["name"]) for e in found}) == 1
            # None left before the other came: their clock is one.
            assert min(e["ts"] + e["dur"] for e in found) > max(e["ts"] for e in found)


def test_what_cannot_be_profiled_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    Path("empty").mkdir()
    Path("kept").mkdir()
    Path("kept/one.jsonl").touch()
    Path("text.weft").write_text("text")
    for words, why in {
        ("missing.weft",): "no file or folder missing.weft",
        ("empty",): "the folder empty has no recordings",
        ("kept", "missing"): "no file or folder missing",
        ("kept",): "nothing is measured",
        ("text.weft",): "text.weft is not a Weft executable",
        ("--", "no-such-command"): "cannot run no-such-command",
    }.items():
        assert main(["profile", *words]) == 1
        assert why in capsys.readouterr().err
    Path("fails.py").write_text("exit(3)")
    assert main(["profile", "fails.py", "missing"]) == 3
    assert "the command ended with status 3: nothing is measured" in capsys.readouterr().err
    assert not Path("profile.json").exists() and not [*tmp_path.glob("weft-profile-*")]


def test_a_program_that_is_traced_from_two_lines(tmp_path):
    """Its lines are one, with the call site of the first."""
    jnp = pytest.importorskip("jax.numpy")

    def f(x):
        return jnp.tanh(x @ x).sum()

    x = np.ones((16, 16), np.float32)
    with recording_to(tmp_path):
        one = weft.compile(f, x)
        two = weft.compile(f, x)
        for _ in range(3):
            one(x).wait()
            two(x).wait()
    (program,) = profile(tmp_path).programs
    assert program.runs == 6
    assert all(line.measured is not None for line in program.lines)
    assert sum(line.predicted is not None for line in program.lines) == len(program.lines)
