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

MESH, AXES = Mesh(x=4), (Axis("x"),)


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


@pytest.mark.parametrize("kind", ["all_gather", "all_to_all", "permute", "broadcast"])
@pytest.mark.parametrize("place", ["clusters", "sockets"])
def test_all_bits_arrive(kind: str, place: str, request: pytest.FixtureRequest):
    """Payloads of NaN, signs of zeros, and numbers of every width; pieces without elements."""
    workers: list[Cluster] = request.getfixturevalue(place)
    for number, dtype in enumerate(DTYPES):
        columns = 0 if number % 5 == 4 and kind != "all_gather" else 4
        case = Case(kind, MESH, AXES, AXES, ("plain", "asynchronous")[number % 2], dtype)
        case.columns, case.special = columns, True
        if dtype != "f8E8M0FNU" or kind != "permute":  # which has no zero for a missing source
            check(case, [], partial(GlooProcesses, clusters=workers))


@pytest.mark.parametrize("kind", ["all_reduce add", "all_reduce max", "all_reduce min"])
def test_signs_of_zeros_and_infinities(kind: str, clusters: list[Cluster]):
    """A sum of -0 stays -0, also of complex numbers, in lockstep and between workers."""
    for dtype in ("bf16", "f16", "f32", "f64", "complex<f32>", "complex<f64>"):
        if kind.endswith("add") or not dtype.startswith("complex"):
            case = Case(kind, MESH, AXES, AXES, dtype=dtype, special=True, columns=64)
            check(case, [], partial(GlooProcesses, clusters=clusters))


@pytest.mark.parametrize("kind", ["all_reduce add", "all_gather", "all_to_all", "permute"])
@pytest.mark.parametrize("place", ["rings", "slots", "sockets"])
def test_a_hundred_outstanding_collectives(
    kind: str, place: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
):
    """More than a ring holds, and done in the reverse order."""
    name = "sockets" if place == "sockets" else "clusters"
    workers: list[Cluster] = request.getfixturevalue(name)
    for one in workers if place == "slots" else ():
        assert one.wire.shared is not None
        monkeypatch.setattr(one.wire.shared, "inline_bytes", 0)
    check(Case(kind, MESH, AXES, AXES, "outstanding"), [], partial(GlooProcesses, clusters=workers))


def test_a_program_that_was_read_is_that_which_was_compiled(clusters: list[Cluster]):
    """One process may compile what another finds in a cache."""
    case = Case("all_reduce add", MESH, AXES, AXES)
    processes = GlooProcesses(case.module(), [], clusters)
    assert processes.first.ops_digest == processes.programs[1].ops_digest
    other = GlooProcesses(Case("all_reduce max", MESH, AXES, AXES).module(), [], clusters)
    assert processes.first.ops_digest != other.first.ops_digest
