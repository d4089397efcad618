"""Prices of collectives, and what partition and the combiner choose by them."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.cli.program import captured_program
from weft.cost.collective_time import GroupExtent
from weft.cost.prices import BYTES, knee, prices_of
from weft.cost.sent import bytes_sent
from weft.ir.types import F32, TensorType
from weft.machine import machine
from weft.mesh import Axis, as_mesh
from weft.partition.reshard import plan
from weft.pipeline import compile_module, partitioned_seconds

EXAMPLE = Path(__file__).parents[2] / "examples" / "llama.py"
GOLDEN = Path(__file__).parents[1] / "golden" / "cost" / "prices.txt"
X, Y = (Axis("x"),), (Axis("y"),)


def test_without_a_machine_a_collective_costs_its_bytes():
    mesh = as_mesh({"x": 2, "y": 4})
    made = plan(TensorType((64, 64), F32), (X, ()), (), ((), X), (), mesh)
    assert made.cost == made.bytes == BYTES.price("exchange", X, made.bytes)


def test_an_axis_across_domains_is_dearer_and_latency_counts():
    where, mesh = machine("8x(8xh100)"), as_mesh({"x": 8, "y": 8})
    prices = prices_of(mesh, where)
    assert prices is prices_of(mesh, where)  # so that plans are memoized
    for kind in ("gather", "reduce", "scatter", "exchange"):
        assert prices.price(kind, X, 1e8) > 3 * prices.price(kind, Y, 1e8)
        assert prices.price(kind, Y, 1.0) > 1e6  # a latency is worth megabytes
    assert prices.price("permute", (), 1e8) > prices.price("permute", Y, 1e8) > 1e8 / 2
    assert prices.price("gather", (Axis("z"),) * 0, 5.0) == 0.0  # a group of one


def test_prices(golden):
    """In bytes of the fast links: of collectives that send nothing, a megabyte, and ten."""
    kinds = ("gather", "reduce", "scatter", "exchange", "permute")
    lines = []
    for name in ("8x(8xh100)", "64xh200", "host"):
        prices = prices_of(as_mesh({"x": 8, "y": 8, "z": 1}), machine(name))
        for axes in ((), X, Y, X + Y, (Axis("z"),)):
            along = "".join(axis.name for axis in axes) or "none"
            listed = [prices.price(kind, axes, sent) for kind in kinds for sent in (0, 1e6, 1e7)]
            shown = " ".join(f"{price:.4g}" for price in listed)
            lines.append(f"{name} along {along}: {shown}; a point {prices.point:.4g}")
    golden(GOLDEN, "\n".join(lines) + "\n")


def test_the_knee_grows_with_the_domains():
    h100 = machine("h100")
    near, far = (knee("reduce", spread, h100) for spread in (GroupExtent(8), GroupExtent(64, 8)))
    assert 2**20 < near < far < 2**28


@pytest.mark.parametrize("mesh", ["data=2,model=4", "data=4,model=2"])
def test_a_small_program_sends_fewer_messages_where_latency_is_known(mesh):
    module, where = captured_program(f"{EXAMPLE}:loss", mesh), machine("8xh100")
    by_bytes, by_time = (
        compile_module(module, machine=on, to="optimized").module for on in (None, where)
    )
    counts = [sum(row.count for row in bytes_sent(m)) for m in (by_bytes, by_time)]
    assert counts[1] <= counts[0]
    assert partitioned_seconds(by_time, where) <= partitioned_seconds(by_bytes, where)
    on_host = compile_module(module, machine=machine("host"), to="optimized").module
    assert on_host.text() == by_bytes.text()
