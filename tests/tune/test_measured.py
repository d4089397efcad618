"""Tuning: the fastest candidate is found, remembered, and measured again when it must be."""

from __future__ import annotations

import itertools
import multiprocessing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cache.choices import choices, remember
from weft.cache.store import the_store
from weft.emit.llvm.tuning.candidates import machine_name
from weft.tune.measured import fastest, recall_measurements, timed, tune


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))


class Clock:
    """Candidates that take so long, and how often they were run."""

    def __init__(self, **seconds: float) -> None:
        self.seconds, self.runs = seconds, list[str]()

    def __call__(self, name: str) -> float:
        self.runs.append(name)
        return self.seconds[name]

    def tune(self, shape_class: str = "m<64") -> str:
        return tune("gemm", machine_name(), shape_class, [*self.seconds], lambda: self).best


def test_what_was_measured_is_remembered(monkeypatch):
    clock = Clock(a=3e-3, b=1e-3, c=2e-3)
    assert clock.tune() == "b"
    count = len(clock.runs)
    assert clock.tune() == "b" and len(clock.runs) == count
    found = recall_measurements("gemm", machine_name(), "m<64")
    assert found is not None and found.seconds == clock.seconds and found.tried == ("a", "b", "c")
    assert clock.tune("m>=64") == "b" and len(clock.runs) > count
    count = len(clock.runs)
    monkeypatch.setenv("WEFT_THREADS", "77")
    assert clock.tune() == "b" and len(clock.runs) > count


def test_what_cannot_be_had_here_is_left_out():
    Clock(a=3e-3, b=1e-3, c=2e-3).tune()
    found = recall_measurements("gemm", machine_name(), "m<64")
    assert found is not None
    assert found.best_of(lambda name: name != "b") == "c"
    assert found.best_of(lambda name: False) is None
    fewer = Clock(a=3e-3, c=2e-3)
    assert fewer.tune() == "b" and not fewer.runs


def test_a_new_candidate_is_measured():
    assert Clock(a=3e-3, b=1e-3).tune() == "b"
    assert Clock(a=3e-3, b=1e-3, z=5e-4).tune() == "z"


def test_the_first_one_must_be_beaten_clearly():
    assert Clock(a=1e-3, b=0.98e-3).tune() == "a"
    assert Clock(a=1e-3, b=0.98e-3, c=0.9e-3).tune() == "c"


def test_one_candidate_is_not_measured():
    clock = Clock(a=1.0)
    assert clock.tune() == "a" and not clock.runs
    assert not list(the_store().entries())


def test_a_busy_machine_is_not_believed():
    drawn = itertools.count(1)
    found = tune(
        "gemm", machine_name(), "m<64", ["a", "b"], lambda: lambda name: 0.5 ** next(drawn)
    )
    assert (found.best, found.busy, found.seconds) == ("a", True, {})
    assert not list(the_store().entries())


@pytest.mark.parametrize("told", [3, {}, {"seconds": {"a": "x"}, "tried": []}, {"best": "a"}])
def test_what_cannot_be_understood_is_measured_anew(told):
    remember("gemm", machine_name(), "m<64", told)
    clock = Clock(a=3e-3, b=1e-3)
    assert clock.tune() == "b" and clock.runs


def test_a_damaged_choice_is_said_and_measured_anew():
    clock = Clock(a=3e-3, b=1e-3)
    clock.tune()
    (stored,) = the_store().entries("choice")
    stored.path.write_bytes(stored.path.read_bytes()[:-3])
    count = len(clock.runs)
    with pytest.warns(RuntimeWarning, match="damage"):
        assert clock.tune() == "b" and len(clock.runs) > count
    count = len(clock.runs)
    assert clock.tune() == "b" and len(clock.runs) == count


def _tune_many(me: int) -> list[str]:
    seconds = {"a": 1e-3, "b": 2e-3} if me % 2 else {"a": 2e-3, "b": 1e-3}
    return [Clock(**seconds).tune(f"class {n}") for n in range(20)]


def test_many_processes_come_to_one_mind():
    """Whoever measures last is remembered; from then on all choose the same."""
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        found = pool.map(_tune_many, range(3))
        assert {name for names in found for name in names} <= {"a", "b"}
        again = pool.map(_tune_many, range(3))
    assert all(names == again[0] for names in again)
    assert len([*choices()]) == 20


@given(st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=6, unique=True), st.integers(2, 9))
def test_the_least_time_counts(seconds, rounds):
    """A machine that is busy at times makes some measurements ten times as long."""
    busy = itertools.cycle([1, 10, 1, 1])
    ways = dict(zip("abcdef", seconds, strict=False))
    many = rounds >= 5
    best, least = fastest([*ways], lambda n: ways[n] * (next(busy) if many else 1), rounds)
    assert set(least) == set(ways) and least[best] == min(least.values())
    if not many:
        assert ways[best] == min(seconds)


def test_hopeless_ones_are_dropped_and_rounds_are_interleaved():
    clock = Clock(a=1.0, b=1.1, c=5.0)
    timed("abc", clock, rounds=5)
    order = "".join(clock.runs)
    assert order.count("a") == order.count("b") == 5 and order.count("c") == 2
    assert "aaa" not in order and "bbb" not in order


def test_without_time_the_first_ones_are_measured_twice():
    found = timed("abcdefg", Clock(**dict.fromkeys("abcdefg", 1e-3)), budget=0.0)
    assert {name: len(times) for name, times in found.items()} == {"a": 2, "b": 2, "c": 2}


def test_the_machine_is_named():
    assert "threads: " in machine_name()
