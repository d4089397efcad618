"""Workers: several processes that hold the devices of a mesh together, over torch.distributed.

A launcher (`weft launch`, torchrun, Slurm, mpirun) starts the same script in every process; the
first use of a mesh joins them. Lockstep and workers run the same executable.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from weft.errors import WeftError
from weft.workers.member import WorkerRank, member

if TYPE_CHECKING:
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
    from weft.workers.agreement import agree_on_values  # launchers start without numpy

    agree_on_values(cluster.coordination, name, arguments)


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
