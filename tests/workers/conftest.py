"""Workers that are threads of this process, with shared memory or gloo's real sockets."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from weft.workers.cluster import Cluster
from weft.workers.launch import free_port
from weft.workers.member import WorkerRank

COUNT = 8
# Programs of the corpus for the default run: training, loops, and collectives of each shape.
SAMPLE = ("mlp_step", "loops", "gathered", "permuted", "exchanged", "scattered")
ZOO = ("mlp", "lstm", "llama")
CORPUS = Path(__file__).parent / "launched_corpus.py"


@pytest.fixture(scope="session")
def lockstep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of the corpus on eight devices in one process."""
    folder = tmp_path_factory.mktemp("corpus")
    line = [sys.executable, str(CORPUS), str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(CORPUS.parents[2])}
    subprocess.run(line, env=environment, check=True, timeout=300)
    return folder


@pytest.fixture(scope="session")
def clusters() -> Iterator[list[Cluster]]:
    """The cluster of each of eight workers."""
    yield joined(COUNT, timeout=60.0)


@pytest.fixture(scope="session")
def sockets() -> Iterator[list[Cluster]]:
    """Eight workers that share no memory, as those of different hosts."""
    yield joined(COUNT, timeout=60.0, shares=False)


def joined(count: int, timeout: float, shares: bool = True) -> list[Cluster]:
    pytest.importorskip("torch")
    port = free_port()
    members = [WorkerRank(n, count, "127.0.0.1", port, n, count, "a test") for n in range(count)]
    with ThreadPoolExecutor(count) as pool:
        return [*pool.map(lambda me: Cluster(me, timeout, shares=shares), members)]


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """The address of a cluster of two nodes on this host."""
    pytest.importorskip("ray")
    pytest.importorskip("torch")
    os.environ.setdefault("PYTHONPATH", str(CORPUS.parents[2]))
    from ray import cluster_utils

    made = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    made.add_node(num_cpus=2)
    yield made.address
    made.shutdown()
