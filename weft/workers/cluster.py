"""Clusters: all workers of a job, as one of them sees it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from types import TracebackType
from typing import Any

from weft.array.stream import HostStream
from weft.executable.process import Process
from weft.knobs import TIMEOUT
from weft.mesh import Axis, Mesh
from weft.mesh.axes import inner_axes
from weft.recording import recorder
from weft.workers.clocks import measure_offset
from weft.workers.coordination import CoordinationClient, JoinedWorker, KeyValues
from weft.workers.device_groups import DeviceGroups
from weft.workers.failure import ERROR_FILE, WorkerLost, note_of, write_note
from weft.workers.gloo import Gloo, has_agents_store, store_of
from weft.workers.launch_store import launch_store
from weft.workers.local_gpu import choose_gpu
from weft.workers.member import WorkerRank
from weft.workers.messages import Messages, PeerConnections
from weft.workers.shared import share_memory


class Cluster:
    """This worker among the others: its rank, the control plane and the transport."""

    def __init__(
        self,
        me: WorkerRank,
        timeout: float,
        store: KeyValues | None = None,
        *,
        torch_store: Callable[[], Any] | None = None,
        shares: bool = True,
    ) -> None:
        """Join the other workers through a key-value store: the given one, or the launcher's.

        Workers that do not share memory, as those of different hosts, connect by gloo, for which
        `torch_store` gives PyTorch's own store.
        """
        self.me = me
        server: int | None = 0
        self.torch_store = cache(torch_store or partial(store_of, me, timeout))
        if store is None and (store := launch_store(timeout)) is not None:
            server = None
        if store is None:
            store = self.torch_store()
            server = None if has_agents_store() else 0
        self.coordination = CoordinationClient(store, me, timeout, server=server)
        self.workers: tuple[JoinedWorker, ...] = self.coordination.join()
        shared = share_memory(self.coordination, self.workers) if shares else None
        has_all = shared is not None and shared.has_all
        self.coordination.activity.native = None if shared is None else shared.state
        sockets = None if has_all else self._connected(timeout)
        devices = DeviceGroups(me, self.coordination, self.torch_store, timeout)
        self.wire = PeerConnections(sockets, self.coordination, timeout, shared, devices)
        self.coordination.other.on_failure.append(self.wire.end_waits)
        self.stream = HostStream(f"weft-{me.rank}")
        if (found := recorder()) is not None:
            found.add("clock", measure_offset(self.wire, me.rank, me.size, found.clock))
        self._processes: dict[Mesh, tuple[tuple[Axis, ...], Process]] = {}

    def _connected(self, timeout: float) -> Gloo:
        """The connections to all others; a failure blames the worker whose heartbeat is oldest."""
        try:
            return Gloo(self.torch_store(), self.me, timeout)
        except RuntimeError as error:
            quiet = self.coordination.stalest_worker()
            raise WorkerLost(
                f"worker {self.me.rank} cannot connect to all others: {error}",
                rank=quiet,
                help=f"{self.coordination.last_report_of(quiet)}; GLOO_SOCKET_IFNAME names the "
                "network interface",
            ) from error

    @property
    def rank(self) -> int:
        """The number of this worker."""
        return self.me.rank

    @property
    def size(self) -> int:
        """The number of workers."""
        return self.me.size

    def holding(self, mesh: Mesh) -> tuple[tuple[Axis, ...], Process]:
        """The axes of a mesh whose devices are in one worker, and this worker's process of it.

        Each worker has the same number of devices, consecutive in the order of the mesh.
        """
        entry = self._processes.get(mesh)
        if entry is None:
            devices = mesh.devices().reshape(-1).tolist()
            count = len(devices) // self.size
            owner = {device: place // count for place, device in enumerate(devices)}
            mine = devices[self.rank * count]
            process = Process(mine, Messages(self.wire, owner), self.stream)
            # A transport for each mesh, since device numbers differ; the numbers of messages are
            # those of `wire`, which all meshes share.
            entry = self._processes[mesh] = inner_axes(mesh, count), process
        return entry

    def barrier(self, name: str = "barrier") -> None:
        """Wait until all workers have come here."""
        self.coordination.barrier(name)


_joining = threading.Lock()
_JOINED: list[Cluster] = []  # of this process: at most one


def join(me: WorkerRank) -> Cluster:
    """The cluster of a worker, joined once; the worker's failures are reported to the others."""
    with _joining:
        return _join(me)


@lru_cache(maxsize=1)
def _join(me: WorkerRank) -> Cluster:
    choose_gpu()
    failures = Failures(me)
    _JOINED.append(failures.watch(Cluster(me, TIMEOUT.value())))
    return _JOINED[0]


def made_once(key: str, make: Callable[[], str]) -> str:
    """The text of a key, computed by one worker for all, if this process has joined others."""
    return _JOINED[0].coordination.compute_once(key, make) if _JOINED else make()


class Failures:
    """Reports the exception that ends this worker: to the launcher, and once joined to others."""

    def __init__(self, me: WorkerRank) -> None:
        self.me, self.before = me, sys.excepthook
        self.path = os.environ.get(ERROR_FILE)  # now: the script may change its environment
        self.cluster: Cluster | None = None
        sys.excepthook = self.report

    def watch(self, cluster: Cluster) -> Cluster:
        """Report to the workers of a cluster, too."""
        self.cluster = cluster
        return cluster

    def report(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Report the error that ends this worker, then print it."""
        try:
            if kind is KeyboardInterrupt and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # launchers repeat it
            step = 0 if self.cluster is None else self.cluster.coordination.activity.steps
            note = note_of(self.me.rank, error, step)
            # To the launcher's file first: the store may be gone with the worker that serves it.
            with _report_trouble("written to the launcher's file"):
                write_note(note, self.path)
            with _report_trouble("sent to other workers"):
                if self.cluster is not None:
                    self.cluster.coordination.fail(note)
        finally:
            self.before(kind, error, trace)


@contextmanager
def _report_trouble(what: str) -> Iterator[None]:
    """Go on after an error, as a full disk: that which ends the worker must be seen."""
    try:
        yield
    except Exception as trouble:  # noqa: BLE001
        print(f"this error cannot be {what}: {trouble}", file=sys.stderr)
