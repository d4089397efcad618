"""The processes of `jax.distributed` join each other as workers, while the program is traced."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from weft.jax.processes import JaxProcesses, JaxStore, coordinator, set_key, value_of
from weft.knobs import TIMEOUT

if TYPE_CHECKING:
    from weft.workers.cluster import Cluster

_STORE = "weft/store"  # the key of the port of the workers' key-value store
_JOINING: dict[JaxProcesses, Future[Cluster]] = {}


def start_joining(processes: JaxProcesses) -> None:
    """Begin to join the other processes, in a thread.

    A program of some processes needs only these, but memory and connections are shared by all: one
    that never runs such a program joins, too, and makes no other one wait.
    """
    if processes.size > 1:
        _JOINING[processes] = ThreadPoolExecutor(1, "weft-join").submit(_join, processes)


def the_cluster(processes: JaxProcesses) -> Cluster:
    """The cluster of all processes of `jax.distributed`, once it is joined."""
    return _JOINING[processes].result()


def _join(processes: JaxProcesses) -> Cluster:
    from weft.workers.cluster import Cluster, Failures  # most processes are alone
    from weft.workers.gloo import LOOPBACK, tcp_store
    from weft.workers.member import PORT, WorkerRank

    timeout, host = TIMEOUT.value(), coordinator()
    rank, size = processes.index, processes.size

    def torch_store() -> Any:
        if rank == 0:
            store = tcp_store(host, 0, size, timeout, serves=True)
            set_key(_STORE, str(store.port))
            return store
        return tcp_store(host, int(value_of(_STORE)), size, timeout, serves=False)

    local = (rank, size) if host in LOOPBACK else (0, 1)
    me = WorkerRank(rank, size, host, PORT, *local, "jax.distributed")
    return Failures(me).watch(Cluster(me, timeout, JaxStore(), torch_store=torch_store))
