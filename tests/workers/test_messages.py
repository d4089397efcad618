"""Every collective over gloo is that of lockstep, for every dtype and division of the devices."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings

from tests.run.collectives import KINDS, Case, check
from tests.run.test_across import cases
from tests.workers.gloo_processes import GlooProcesses
from weft.ir.types import DTYPES
from weft.mesh import Axis, Mesh
from weft.workers.cluster import Cluster


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=cases())
def test_workers_are_lockstep(drawn: tuple[Case, list[Axis]], sockets: list[Cluster]):
    check(*drawn, partial(GlooProcesses, clusters=sockets))


@pytest.mark.parametrize("kind", KINDS)
def test_every_collective_of_eight_devices_on_four_workers(kind: str, sockets: list[Cluster]):
    mesh = Mesh(x=2, y=4)
    case = Case(kind, mesh, (Axis("y"), Axis("x")), (Axis("x"), Axis("y")))
    check(case, [Axis("y", 2, 2)], partial(GlooProcesses, clusters=sockets))


@pytest.mark.parametrize("kind", ["all_gather", "all_to_all", "permute", "broadcast"])
@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_every_dtype(kind: str, dtype: str, sockets: list[Cluster]):
    case = Case(kind, Mesh(x=2), (Axis("x"),), (Axis("x"),), dtype=dtype)
    check(case, [], partial(GlooProcesses, clusters=sockets))


@pytest.mark.parametrize("dtype", ["i1", "i4", "ui64", "bf16", "f16", "f8E4M3FN", "f8E5M2FNUZ"])
def test_every_reduction(dtype: str, sockets: list[Cluster]):
    """A sample; `launched_table` has all dtypes."""
    for kind in KINDS:
        is_bits = kind.split()[-1] in ("and", "or", "xor")
        if "reduce" in kind and not (is_bits and "f" in dtype):
            case = Case(kind, Mesh(x=2), (Axis("x"),), (Axis("x"),), dtype=dtype)
            check(case, [], partial(GlooProcesses, clusters=sockets))
