"""Candidates that crash, hang or compute something else harm no other, and are reported."""

from __future__ import annotations

import math

import pytest

from tests.tune.misbehaving import CANDIDATES, COPY, Misbehaving
from weft.target import AS_MODELLED
from weft.tune import process
from weft.tune.measured import tune


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
