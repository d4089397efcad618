"""Workers that are threads of this process, on gloo's real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from weft.workers.cluster import Cluster
from weft.workers.launch import free_port
from weft.workers.member import WorkerRank

COUNT = 8


@pytest.fixture(scope="session")
def clusters() -> Iterator[list[Cluster]]:
    """The cluster of each of eight workers."""
    yield joined(COUNT, timeout=60.0)


def joined(count: int, timeout: float) -> list[Cluster]:
    pytest.importorskip("torch")
    port = free_port()
    members = [WorkerRank(n, count, "127.0.0.1", port, n, count, "a test") for n in range(count)]
    with ThreadPoolExecutor(count) as pool:
        return [*pool.map(lambda me: Cluster(me, timeout), members)]
