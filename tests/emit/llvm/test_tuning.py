"""Tuning: the fastest candidate is found, remembered, and measured again when it must be."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cache.store import the_store
from weft.emit.llvm.tuning import fastest, machine_name, tune


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))


def test_what_was_measured_is_remembered(monkeypatch):
    measured = []

    def measure(seconds):
        measured.append(seconds)
        return seconds

    ways = {"a": 3e-3, "b": 1e-3, "c": 2e-3}
    assert tune("gemm", "m<64", ways, measure) == "b"
    count = len(measured)
    assert tune("gemm", "m<64", ways, measure) == "b" and len(measured) == count
    assert tune("gemm", "m<64", {"b": 9, "a": 1}, measure) == "b" and len(measured) == count
    assert tune("gemm", "m>=64", ways, measure) == "b" and len(measured) > count
    monkeypatch.setenv("WEFT_THREADS", "77")
    count = len(measured)
    assert tune("gemm", "m<64", ways, measure) == "b" and len(measured) > count


def test_a_new_candidate_is_measured():
    ways = {"a": 3e-3, "b": 1e-3}
    assert tune("gemm", "any", ways, float) == "b"
    assert tune("gemm", "any", ways | {"z": 5e-4}, float) == "z"
    assert tune("gemm", "any", {"a": 1.0}, float) == "a"


def test_one_candidate_is_not_measured():
    def measure(_):
        raise AssertionError

    assert tune("gemm", "any", {"a": 1}, measure) == "a"
    assert not list(the_store().entries())


@given(st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=6, unique=True), st.integers(2, 9))
def test_the_least_time_counts(seconds, rounds):
    """A machine that is busy at times makes some measurements ten times as long."""
    busy = itertools.cycle([1, 10, 1, 1])
    ways = dict(zip("abcdef", seconds, strict=False))
    best, least = fastest(ways, lambda s: s if rounds < 5 else s * next(busy), rounds)
    assert set(least) == set(ways) and least[best] == min(least.values())
    if rounds < 5:
        assert ways[best] == min(seconds)


def test_hopeless_ones_are_dropped_and_rounds_are_interleaved():
    order = []

    def measure(way):
        order.append(way[0])
        return way[1]

    fastest({"a": ("a", 1.0), "b": ("b", 1.1), "c": ("c", 5.0)}, measure, rounds=5)
    assert order.count("a") == order.count("b") == 5 and order.count("c") == 2
    assert "aaa" not in "".join(order) and "bbb" not in "".join(order)


def test_the_machine_is_named():
    assert "threads: " in machine_name()
