"""Candidates that crash, hang or compute something else harm no other, and are reported."""

from __future__ import annotations

import math

import pytest

from tests.tune.misbehaving import CANDIDATES, COPY, Misbehaving
from weft.cli.tuning import TuneLog, tune_summary
from weft.target import AS_MODELLED
from weft.tune import TriedClass, TuneProgress, listening, process
from weft.tune.measured import tune
from weft.tune.progress import report_begin, report_end


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    yield
    process.close_worker()


def test_what_crashes_or_hangs_harms_no_other(monkeypatch):
    monkeypatch.setattr(process, "ANSWER", 3.0)
    bench = process.BenchProcess(COPY, CANDIDATES, Misbehaving())

    def ready():
        bench.prepare()
        return bench.seconds

    made = tune("copies", "here", "64", [*CANDIDATES], ready, failed=bench.failed)
    assert made.best == "fast" and {*made.seconds} == {AS_MODELLED, "fast", "slow"}
    assert all(map(math.isfinite, made.seconds.values()))
    assert made.failed == {
        "crashes": "its process ended by signal 6",
        "hangs": "no answer within 3 s",
        "wrong": made.failed["wrong"],
        "unloadable": "ValueError: it does not compile",
        "fails": "RuntimeError: a launch failed",
    }
    assert made.failed["wrong"].startswith("a result differs by ")
    known = tune("copies", "here", "64", [*CANDIDATES], pytest.fail)
    assert known.failed == made.failed and known.seconds == made.seconds


def test_a_process_that_ends_while_loading_loads_one_by_one():
    bench = process.BenchProcess(COPY, CANDIDATES, Misbehaving())
    asked = []
    worker = process.worker_process()
    original = type(worker).ask

    def ask(self, question, limit):
        asked.append(question[0])
        if question[0] == "kernel" and len(question[3]) > 1:
            self.process.kill()
        return original(self, question, limit)

    type(worker).ask, before = ask, original
    try:
        assert math.isfinite(bench.seconds("fast"))
        assert bench.seconds("unloadable") == math.inf
    finally:
        type(worker).ask = before
    assert asked[:5] == ["kernel", "kernel", "load", "check", "time"]


def test_the_summary_says_what_was_tried_and_why_one_won():
    log = TuneLog()
    with listening(TuneProgress(log.begin, log.end)):
        report_begin("contract", 3)
        times = {AS_MODELLED: 2e-3, "algorithm=3": 1.5e-3}
        why, failed = "measured: 1500 us, 0.75 of", {"algorithm=2": "no answer within 30 s"}
        report_end(TriedClass("contract", "contract 8x8", 2.5, times, failed, "algorithm=3", why))
    assert tune_summary(log.tried) == [
        "tuned: 1 kind of kernels, measured in 2.5 s",
        "  contract 8x8: algorithm=3; algorithm=3 1500.0 us, as modelled 2000.0 us",
        "    algorithm=2 failed: no answer within 30 s",
    ]
    assert tune_summary([]) == []
