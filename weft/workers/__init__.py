"""Workers: several processes that hold the devices of a mesh together, over torch.distributed.

A launcher (`weft launch`, torchrun, Slurm, mpirun) starts the same script in every process; the
first use of a mesh joins them. Lockstep and workers run the same executable.
"""

from __future__ import annotations

import hashlib
import sys
import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from weft.errors import WeftError
from weft.workers.member import WorkerRank, member

if TYPE_CHECKING:
    from weft.ir.types import Array
    from weft.mesh import Mesh
    from weft.workers.cluster import Cluster

__all__ = [
    "WorkerRank",
    "agree_on_arguments",
    "cluster_holding",
    "joined_cluster",
    "made_once",
    "member",
    "workers_of",
]

BLOCK_BYTES, CHECKED_BLOCKS = 1 << 14, 64  # of an argument that is compared between workers
SHARED_BYTES = 1 << 26  # larger contents are processed by every worker itself


def joined_cluster() -> Cluster | None:
    """The cluster of this process, joined at the first call; None if it was started alone."""
    me = member()
    if me is None:
        return None
    from weft.workers.cluster import join  # most processes are alone

    return join(me)


def made_once(content: bytes, make: Callable[[], str]) -> str:
    """A text computed from some content, by one of the workers for all that need it."""
    if len(content) > SHARED_BYTES or "weft.workers.cluster" not in sys.modules:
        return make()
    from weft.workers import cluster

    return cluster.made_once(hashlib.blake2b(content, digest_size=16).hexdigest(), make)


def agree_on_arguments(cluster: Cluster, name: str, arguments: Mapping[str, object]) -> None:
    """Raise unless all workers give the same host arrays, as every argument is a global value."""
    sums = {key: checksum(each) for key, each in arguments.items() if isinstance(each, np.ndarray)}
    cluster.coordination.agree_on_values(name, sums)


def checksum(array: Array) -> int:
    """A checksum of an array's bytes; of a large one, of blocks spread evenly.

    Weights that are mapped from a file are not read as a whole: a worker needs only its shards.
    """
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    step = raw.size // (CHECKED_BLOCKS * BLOCK_BYTES)
    if step < 2:
        return zlib.crc32(raw.tobytes())
    blocks = raw[: raw.size // BLOCK_BYTES * BLOCK_BYTES].reshape(-1, BLOCK_BYTES)
    return zlib.crc32(raw[-BLOCK_BYTES:].tobytes(), zlib.crc32(blocks[::step].tobytes()))


def workers_of(mesh: Mesh) -> WorkerRank | None:
    """This worker, if a mesh is shared by all; None if this process holds all of it.

    A mesh of one device is of each worker by itself.
    """
    if mesh.size == 1 or (me := member()) is None:
        return None
    if mesh.size % me.size:
        raise WeftError(
            f"the mesh {mesh} has {mesh.size} devices, which {me.size} workers cannot share evenly",
            help=f"give the mesh a multiple of {me.size} devices, or launch another number of "
            "workers",
        )
    return me


def cluster_holding(mesh: Mesh) -> Cluster | None:
    """The cluster whose workers hold a mesh together; None if this process holds all of it."""
    return None if workers_of(mesh) is None else joined_cluster()
