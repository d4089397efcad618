"""Messages through memory that workers of one host map: the same as those over sockets."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.run.collectives import KINDS, Case, check
from tests.workers.gloo_processes import GlooProcesses
from weft.mesh import Axis, Mesh
from weft.workers import shared
from weft.workers.cluster import Cluster
from weft.workers.shared import TICKET, SharedMemory

pytestmark = pytest.mark.skipif(
    not (shared.IS_ORDERED and hasattr(os, "memfd_create")), reason="Linux on x86-64"
)


@pytest.fixture
def near(clusters: list[Cluster], monkeypatch: pytest.MonkeyPatch) -> list[Cluster]:
    """Workers all of whose messages go through memory."""
    for one in clusters:
        assert one.wire.shared is not None
        monkeypatch.setattr(one.wire.shared, "near_bytes", 0)
    return clusters


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["plain", "asynchronous"])
def test_every_collective(kind: str, way: str, near: list[Cluster]):
    case = Case(kind, Mesh(x=2, y=2), (Axis("y"), Axis("x")), (Axis("x"), Axis("y")), way)
    check(case, [], partial(GlooProcesses, clusters=near))
    for one in near:  # every message was read
        assert one.wire.shared is not None
        assert all(slot.is_free for listed in one.wire.shared.slots.values() for slot in listed)


def test_workers_of_a_host_reach_each_other(clusters: list[Cluster]):
    ranks = {one.rank for one in clusters}
    for one in clusters:
        assert one.wire.shared is not None
        assert {*one.wire.shared.pids} == one.wire.shared.readers == ranks - {one.rank}


def pair() -> tuple[SharedMemory, SharedMemory]:
    pids = {0: os.getpid(), 1: os.getpid()}
    return tuple(SharedMemory(rank, 64, pids, frozenset((0, 1)), 0) for rank in (0, 1))


def test_a_slot_is_used_again_when_it_was_read():
    ours, theirs = pair()
    first = ours.take(100, [1])
    first.message(100)[:] = np.arange(100)
    second = ours.take(100, [1])
    assert second is not first, "nobody has read the first"
    ticket = ours.ticket(first, 100)
    assert ticket.nbytes == TICKET
    np.testing.assert_array_equal(theirs.read(0, ticket), np.arange(100))
    assert first.is_free and not second.is_free
    assert ours.take(90, [0, 1]) is first and not first.is_free
    large = ours.take(1 << 20, [1])
    assert large.message(1 << 20).nbytes == 1 << 20 and large is not first
    assert len(theirs.mapped) == 1


def test_a_copy_is_the_readers_own():
    ours, theirs = pair()
    slot = ours.take(8, [1])
    slot.message(8)[:] = 7
    found = theirs.read(0, ours.ticket(slot, 8))
    ours.take(8, [1]).message(8)[:] = 9
    assert found.tolist() == [7] * 8


def test_hosts_and_small_messages_use_sockets():
    ours, _ = pair()
    ours.near_bytes = 1000
    assert ours.sends_to(1, 1000) and ours.receives_from(1, 1000)
    assert not ours.sends_to(1, 999) and not ours.receives_from(1, 999)
    assert not replace(ours, readers=frozenset()).sends_to(1, 1000)
    assert not replace(ours, pids={}).receives_from(1, 1000)
    assert not shared._has_token(1 << 22, 3, b"x") and not shared._has_token(os.getpid(), 999, b"x")
