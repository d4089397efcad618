"""Messages through memory that workers of one host map: the same as those over sockets."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.run.collectives import KINDS, Case, check
from tests.workers.gloo_processes import GlooProcesses
from weft.ir.types import Array
from weft.mesh import Axis, Mesh
from weft.workers import shared
from weft.workers.cluster import Cluster
from weft.workers.coordination import JoinedWorker
from weft.workers.rings import RING_BYTES, SLOT_BYTES, SLOTS, MessageRing, PeerLife
from weft.workers.shared import NearPeer, SharedMemory

pytestmark = pytest.mark.skipif(not shared.CAN_SHARE, reason="Linux on x86-64")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["plain", "asynchronous"])
@pytest.mark.parametrize("place", ["rings", "slots"])
def test_every_collective(
    kind: str, way: str, place: str, clusters: list[Cluster], monkeypatch: pytest.MonkeyPatch
):
    for one in clusters:
        assert one.wire.shared is not None and one.wire.bytes is None
        if place == "slots":
            monkeypatch.setattr(one.wire.shared, "inline_bytes", 0)
    case = Case(kind, Mesh(x=2, y=2), (Axis("y"), Axis("x")), (Axis("x"), Axis("y")), way)
    check(case, [], partial(GlooProcesses, clusters=clusters))
    for one in clusters:  # every message was read
        assert one.wire.shared is not None and not one.wire.shared.inbox
        assert all(slot.is_free for listed in one.wire.shared.slots.values() for slot in listed)
        assert all(peer.outgoing.is_empty for peer in one.wire.shared.peers.values())


def test_workers_of_a_host_reach_each_other(clusters: list[Cluster]):
    ranks = {one.rank for one in clusters}
    for one in clusters:
        assert one.wire.shared is not None and one.wire.shared.has_all
        assert {*one.wire.shared.peers} == ranks - {one.rank}


def life_of(pid: int) -> PeerLife:
    found = PeerLife.of(pid)
    assert found is not None
    return found


def pair(pid: int = 0) -> tuple[SharedMemory, SharedMemory]:
    """Two workers in one process; the first takes the other for one with another pid."""
    files = [mmap.mmap(-1, 2 * RING_BYTES) for _ in range(2)]
    rings = [[MessageRing(file, rank * RING_BYTES) for rank in range(2)] for file in files]

    def one(rank: int, other: int, pid: int) -> SharedMemory:
        peer = NearPeer(pid, life_of(pid), rings[rank][other], rings[other][rank])
        return SharedMemory(rank, 64, {other: peer}, True)

    return one(0, 1, pid or os.getpid()), one(1, 0, os.getpid())


def send(memory: SharedMemory, rank: int, data: Array) -> None:
    end = time.monotonic() + 10
    memory.send([rank], data.nbytes, lambda room: np.copyto(room, data), end)


def soon() -> float:
    return time.monotonic() + 10


def numbered(n: int, size: int) -> Array:
    return np.full(size, n % 251, np.uint8)


@pytest.mark.parametrize("size", [1, 100, SLOT_BYTES, SLOT_BYTES + 1, 1 << 20])
def test_messages_of_every_size(size: int):
    ours, theirs = pair()
    for n in range(1, 40):
        send(ours, 1, numbered(n, size))
        np.testing.assert_array_equal(theirs.receive(0, n, soon()), numbered(n, size))
    assert sum(map(len, ours.slots.values())) == (size > SLOT_BYTES), "a slot is used again"
    assert not theirs.inbox


def test_messages_are_read_in_any_order():
    ours, theirs = pair()
    for n in range(1, 6):
        send(ours, 1, numbered(n, 8))
    for n in (3, 1, 5, 2, 4):
        assert theirs.receive(0, n, soon()).tolist() == [n] * 8


def test_counters_wrap_around():
    ours, theirs = pair()
    for ring in (ours.peers[1].outgoing, theirs.peers[0].incoming):
        ring.counters[0] = ring.counters[16] = (1 << 32) - 3
    for n in range(1, 8):
        send(ours, 1, numbered(n, 8))
        assert theirs.receive(0, n, soon()).tolist() == [n] * 8


def test_workers_that_send_more_than_a_ring_holds_before_they_read():
    """Each reads meanwhile, so that neither waits for the other for ever."""
    both, count = pair(), 5 * SLOTS

    def work(rank: int) -> list[list[int]]:
        for n in range(1, count + 1):
            send(both[rank], 1 - rank, numbered(n, 2))
        return [both[rank].receive(1 - rank, n, soon()).tolist() for n in range(1, count + 1)]

    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(work, range(2))] == [[[n, n] for n in range(1, count + 1)]] * 2


def test_a_message_wakes_its_reader():
    ours, theirs = pair()
    timer = threading.Timer(0.2, lambda: send(ours, 1, numbered(7, 8)))
    timer.start()
    assert theirs.receive(0, 1, soon()).tolist() == [7] * 8
    timer.join()


def test_a_late_message():
    _, theirs = pair()
    with pytest.raises(TimeoutError, match="timed out"):
        theirs.receive(0, 1, time.monotonic() + 0.01)


def test_a_worker_that_has_ended():
    """Its last message is still read; the next one never comes, and nobody reads what is sent."""
    other = subprocess.Popen([sys.executable, "-c", ""])
    ours, theirs = pair(other.pid)
    send(theirs, 0, numbered(7, 8))
    while not ours.peers[1].life.has_ended:  # before its parent waits for it
        time.sleep(0.01)
    assert ours.receive(1, 1, soon()).tolist() == [7] * 8
    with pytest.raises(ConnectionError, match="the process has ended"):
        ours.receive(1, 2, soon())
    with pytest.raises(ConnectionError, match="the process has ended"):
        for n in range(SLOTS + 1):
            send(ours, 1, numbered(n, 8))
    other.wait()


def test_other_hosts_networks_and_processes_share_nothing():
    joined = JoinedWorker(0, "x", "host", 1, "net:[1]")
    assert joined.is_beside(replace(joined, rank=1))
    assert not joined.is_beside(replace(joined, host="other"))
    assert not joined.is_beside(replace(joined, network="net:[2]"))
    assert shared._with_token(1 << 22, 3, b"x") is None
    assert shared._with_token(os.getpid(), 999, b"x") is None
    assert PeerLife.of(1 << 22) is None
