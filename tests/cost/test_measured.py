"""Collectives from the measured table: rows that were held out, ranges, intervals, sources."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cost import at_random, tried
from weft.cost import (
    GroupExtent,
    copies,
    multi_domain_estimates,
    one_domain_estimate,
    ring_seconds,
    travel_estimate,
    travel_seconds,
)
from weft.cost.measured import OPS, CollectiveShape, measured
from weft.machine import H100, HOST, MACHINES, machine

ASKED = CollectiveShape("sm_90", "all-reduce", "f32", 1, 8, "", 1 << 22)
TABLES = ("sm_90", "sm_100_B200", "sm_100_GB200", "sm_103", "gfx950")


def test_rows_that_were_held_out():
    """The errors of all folds are in docs/cost.md; benchmarks/cost.py prints them."""
    rows = measured().rows
    found = tried(rows, list(at_random(rows))[:3])
    errors = np.array([row.error for row in found])
    others = np.array([row.nearest for row in found])
    assert len(found) > 400
    assert np.median(errors) < 0.03 and np.quantile(errors, 0.95) < 0.25
    assert np.median(errors) < np.median(others) / 2
    assert np.quantile(errors, 0.95) < np.quantile(others, 0.95) / 2
    assert 0.85 < np.mean([row.held for row in found]) < 0.98, "the interval holds nine of ten"


def test_every_row_of_the_table_is_its_own_estimate():
    for row, seconds in measured().rows[::97]:
        made = measured().estimate(row)
        assert made.seconds == pytest.approx(seconds, rel=1e-3)
        assert made.source == f"measured on {row.machine}"


@given(
    st.sampled_from(TABLES),
    st.sampled_from(OPS),
    st.sampled_from(["one_way", "mutual", "ring"]),
    st.sampled_from(["f32", "bf16", "f8E4M3FN"]),
    st.integers(0, 40),
    st.integers(2, 128),
)
def test_any_collective_has_an_estimate(table, op, pattern, dtype, log_size, devices):
    chosen = pattern if op == "collective-permute" else ""
    made = measured().estimate(CollectiveShape(table, op, dtype, 1, devices, chosen, 1 << log_size))
    assert 0 < made.low < made.seconds < made.high < math.inf
    assert table in made.source


def test_between_two_rows_lies_what_is_between_them():
    low, high = (measured().estimate(replace(ASKED, bytes=1 << n)).seconds for n in (24, 25))
    made = measured().estimate(replace(ASKED, bytes=3 << 23))
    assert low < made.seconds < high and made.source == "interpolated from sm_90"


def test_beyond_the_table_bandwidth_counts():
    last = measured().estimate(replace(ASKED, bytes=1 << 31))
    far = measured().estimate(replace(ASKED, bytes=1 << 36))
    assert far.seconds == pytest.approx(32 * last.seconds, rel=0.05)
    assert far.source == "extrapolated by latency and bandwidth from sm_90"
    assert far.high / far.low > last.high / last.low


def test_what_was_not_measured_says_what_stands_for_it():
    assert measured().estimate(replace(ASKED, dtype="bf16")).source == "measured on sm_90, as f32"
    one_way = CollectiveShape("sm_103", "collective-permute", "f32", 1, 72, "one_way", 5 << 20)
    assert measured().estimate(one_way).source.endswith("as mutual")


def test_inside_a_domain_the_table_is_asked():
    made = one_domain_estimate("reduce", 1 << 22, 8, H100)
    assert made == measured().estimate(ASKED)
    assert one_domain_estimate("reduce", 1 << 22, 8, machine("h200")).seconds == made.seconds
    assert (
        travel_seconds("reduce", 1 << 22, GroupExtent(8), machine("32x(8xh200)@400G"))
        == made.seconds
    )
    rack = travel_estimate("gather", 1 << 26, GroupExtent(72), machine("gb200"))
    assert rack.source == "interpolated from sm_100_GB200", "18 hosts, but one fast domain"


def test_without_a_table_it_is_a_ring():
    made = one_domain_estimate("gather", 1 << 20, 4, HOST)
    assert made.seconds == ring_seconds("gather", 1 << 20, 4, HOST.fast)
    assert made.source == "modelled as a ring over memory" and made.low < made.seconds < made.high


def test_a_torus_uses_the_sides_that_a_group_lies_along():
    pod = machine("tpu-v5p").fast
    one, two, three = (ring_seconds("gather", 1 << 34, n, pod) for n in (28, 28 * 20, 8960))
    assert one == pytest.approx(3 * three, rel=0.05) and two == pytest.approx(1.5 * three, rel=0.05)
    mesh = replace(pod, wraps=False)
    assert ring_seconds("gather", 1 << 34, 28, mesh) == pytest.approx(2 * one, rel=0.01)
    assert ring_seconds("permute", 1 << 34, 2, pod) > ring_seconds("gather", 1 << 34, 8960, pod)


@pytest.mark.parametrize("kind", ["gather", "reduce", "scatter", "exchange"])
def test_across_domains_the_better_algorithm_counts(kind):
    for size in (1 << 12, 1 << 30):
        flat, levels = multi_domain_estimates(kind, size, GroupExtent(64, 8), H100)
        made = travel_estimate(kind, size, GroupExtent(64, 8), H100)
        assert made.seconds == min(flat.seconds, levels.seconds)
        assert levels.source == "by levels: 8 inside, 8 domains outside"
    assert len(multi_domain_estimates(kind, 1 << 20, GroupExtent(9, 2), H100)) == 1, (
        "5 and 4 devices have no levels"
    )
    assert len(multi_domain_estimates(kind, 1 << 20, GroupExtent(8, 8), H100)) == 1


def test_copies_are_a_candidate_of_small_exchanges():
    library = one_domain_estimate("exchange", 1 << 16, 8, H100)
    assert copies(1 << 16, 8, H100).seconds < library.seconds


@pytest.mark.parametrize("name", MACHINES)
def test_every_machine_costs_every_collective(name):
    for kind in ("gather", "reduce", "scatter", "exchange", "permute"):
        for extent in (GroupExtent(2), GroupExtent(32, 4)):
            made = travel_estimate(kind, 1 << 20, extent, MACHINES[name])
            assert 0 < made.low < made.seconds < made.high and made.source
