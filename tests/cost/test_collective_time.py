"""How long collectives take: the published expectations, and rows measured on a real node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weft.cost import (
    GroupExtent,
    TrafficKind,
    group_extent,
    ring_seconds,
    speed_of_light,
    travel_seconds,
)
from weft.cost.collective_time import pairs_extent, pattern_of, travel_estimate
from weft.cost.measured import Estimate
from weft.errors import WeftError
from weft.machine import H100, HOST, Links
from weft.mesh import Axis, Mesh, MeshAxes

# What OpenXLA's own tests expect, in microseconds: 8 MiB, 8 devices a domain, links that need
# 100 us to launch, to prepare a chunk and to answer, and send 100 GB a second.
LINKS = Links("test", None, 100e9, latency=100e-6, launch=100e-6, prepare=100e-6)
PUBLISHED: tuple[tuple[TrafficKind, int, int], ...] = (
    ("gather", 1, 284),
    ("gather", 2, 485),
    ("gather", 4, 885),
    ("reduce", 1, 468),
    ("reduce", 2, 870),
    ("reduce", 4, 1670),
    ("scatter", 1, 284),
    ("scatter", 2, 485),
    ("scatter", 4, 885),
    ("permute", 1, 292),
    ("permute", 2, 485),
    ("exchange", 1, 100),
    ("exchange", 2, 1745),
    ("exchange", 4, 4966),
)
# Measured with NCCL on 8 x H100: kind, devices of a group, bytes, microseconds.
MEASURED: tuple[tuple[TrafficKind, int, int, float], ...] = (
    ("gather", 8, 1 << 20, 31.1),
    ("gather", 8, 1 << 28, 729.3),
    ("gather", 2, 1 << 26, 161.1),
    ("reduce", 8, 1 << 16, 39.7),
    ("reduce", 8, 1 << 25, 225.9),
    ("reduce", 8, 1 << 30, 4720.9),
    ("reduce", 2, 1 << 28, 1181.5),
    ("scatter", 8, 1 << 24, 86.6),
    ("scatter", 8, 1 << 30, 2920.9),
    ("exchange", 8, 1 << 26, 218.7),
    ("exchange", 2, 1 << 28, 517.1),
    ("permute", 8, 1 << 14, 13.2),
    ("permute", 8, 1 << 30, 3706.2),
)


@pytest.mark.parametrize(("kind", "domains", "expected"), PUBLISHED)
def test_published_expectations(kind: TrafficKind, domains: int, expected: int):
    made = speed_of_light(kind, 8 << 20, GroupExtent(8 * domains, domains), LINKS)
    assert int(made * 1e6) == expected


@pytest.mark.parametrize(("kind", "devices", "size", "measured"), MEASURED)
def test_measured_rows(kind: TrafficKind, devices: int, size: int, measured: float):
    ratio = ring_seconds(kind, size, devices, H100.fast) * 1e6 / measured
    assert 0.6 < ratio < 1.6


def test_reach_counts_domains():
    mesh = Mesh(data=4, model=8)
    meshes = {"mesh": mesh}

    def along(*names: str) -> GroupExtent:
        return group_extent(MeshAxes("mesh", tuple(Axis(n) for n in names)), meshes, 32, H100)

    assert along("model") == GroupExtent(8, 1)
    assert along("data") == GroupExtent(4, 4)
    assert along("data", "model") == GroupExtent(32, 4)
    assert group_extent(MeshAxes(mesh, (Axis("model", 2, 2),)), {}, 32, H100) == GroupExtent(2, 1)
    assert group_extent(((0, 1, 8), (2, 3, 9)), {}, 32, H100) == GroupExtent(3, 2)
    assert group_extent((), {}, 32, H100) == GroupExtent(32, 4)
    assert group_extent((), {}, 32, HOST) == GroupExtent(32, 1)


def test_reach_follows_the_order_of_the_devices():
    ids = [d for pair in zip(range(8), range(8, 16), strict=True) for d in pair]
    mesh = Mesh((("x", 8), ("y", 2)), ids)
    assert group_extent(MeshAxes(mesh, (Axis("x"),)), {}, 16, H100) == GroupExtent(8, 1)
    assert group_extent(MeshAxes(mesh, (Axis("y"),)), {}, 16, H100) == GroupExtent(2, 2)


def test_reach_is_that_of_the_widest_group():
    assert group_extent(((0, 1), (7, 8, 9)), {}, 32, H100) == GroupExtent(3, 2)
    mesh = Mesh(x=3, y=4)  # 12 devices in domains of 8: of the groups of 4, one crosses none
    assert group_extent(MeshAxes(mesh, (Axis("y"),)), {}, 12, H100) == GroupExtent(4, 1)
    assert group_extent(MeshAxes(mesh, (Axis("x"),)), {}, 12, H100) == GroupExtent(3, 2)
    odd = H100.with_domains((0, 1) * 4)
    assert group_extent(MeshAxes(Mesh(x=4, y=2), (Axis("x"),)), {}, 8, odd) == GroupExtent(4, 1)
    assert group_extent(MeshAxes(Mesh(x=4, y=2), (Axis("y"),)), {}, 8, odd) == GroupExtent(2, 2)
    assert group_extent(
        MeshAxes(Mesh(x=8, y=2), (Axis("x", 2, 2), Axis("y"))), {}, 16, H100
    ) == GroupExtent(4, 1)
    assert group_extent(
        MeshAxes(Mesh(x=8, y=2), (Axis("x", 1, 2), Axis("y"))), {}, 16, H100
    ) == GroupExtent(4, 2)


def test_the_reach_and_pattern_of_permutations():
    assert pairs_extent([(0, 1), (1, 0)], H100) == GroupExtent(2, 1)
    assert pairs_extent([(0, 1), (7, 8)], H100) == GroupExtent(2, 2)
    assert pairs_extent([(3, 3)], H100) == pairs_extent([], H100) == GroupExtent(1)
    assert pattern_of([(0, 1), (2, 3), (5, 5)]) == "one_way"
    assert pattern_of([(0, 1), (1, 0)]) == "mutual"
    assert pattern_of([(0, 1), (1, 2), (2, 0)]) == "ring"


def test_a_mesh_that_is_not_there_is_an_error():
    with pytest.raises(WeftError, match="no mesh 'other'"):
        group_extent(MeshAxes("other", ()), {"mesh": Mesh(x=2)}, 2, H100)


def test_nothing_travels_alone():
    assert travel_seconds("reduce", 1 << 20, GroupExtent(1), H100) == 0.0
    assert travel_seconds("reduce", 0, GroupExtent(8), H100) == 0.0


def test_more_bytes_and_more_domains_take_longer():
    sizes = (1 << 12, 1 << 22, 1 << 30)
    near = [travel_seconds("gather", size, GroupExtent(8, 1), H100) for size in sizes]
    far = [travel_seconds("gather", size, GroupExtent(8, 2), H100) for size in sizes]
    assert near == sorted(near) and far == sorted(far)
    assert all(a < b for a, b in zip(near, far, strict=True))


def test_one_kind_of_links_joins_all():
    alone = replace(H100, links=H100.links[:1])
    assert travel_seconds("gather", 1 << 20, GroupExtent(16, 2), alone) > 0


@pytest.mark.parametrize(("size", "where"), [(0, GroupExtent(8, 2)), (1 << 20, GroupExtent(1, 1))])
def test_nothing_takes_no_time(size: int, where: GroupExtent):
    nothing = travel_estimate("reduce", size, where, H100)
    assert nothing == Estimate(0.0, 0.0, 0.0, "nothing is sent")
