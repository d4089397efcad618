"""torch.distributed as the engine of workers: its store, and gloo's sends and receives."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from datetime import timedelta
from typing import Any

import numpy as np

from weft.errors import WeftError, missing_extra
from weft.ir.types import Array
from weft.workers.coordination import KeyValues
from weft.workers.failure import WorkerLost
from weft.workers.member import WorkerRank
from weft.workers.messages import Pending

PREFIX = "weft"
NO_TAG = (1 << 31) - 1  # of no message
LOOPBACK = {"localhost": "127.0.0.1", "127.0.0.1": "127.0.0.1", "::1": "::1"}


class Gloo:
    """Gloo's process group of all workers, apart from the default one, which is the user's."""

    def __init__(self, store: KeyValues, me: WorkerRank, timeout: float) -> None:
        import torch
        from torch.distributed import PrefixStore, ProcessGroupGloo

        if me.address in LOOPBACK and me.local_size == me.size:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # closed to other hosts
        self.tensor: Any = torch.from_numpy
        inner: Any = PrefixStore("gloo", store)
        self.group = ProcessGroupGloo(inner, me.rank, me.size, timedelta(seconds=timeout))

    def end_waits(self) -> None:
        """Have all waits fail, in whatever thread.

        Gloo has no call for it; a receive that is late closes the connections of its process.
        """
        if (other := next(iter({0, 1} - {self.group.rank()}), None)) is None:
            return
        with suppress(RuntimeError):
            self.receive(np.empty(1, np.uint8), other, NO_TAG).wait(timedelta(milliseconds=1))

    def send(self, data: Array, rank: int, tag: int) -> Pending:
        """Start sending bytes."""
        sent: Pending = self.group.send([self.tensor(data)], rank, tag)
        return sent

    def receive(self, data: Array, rank: int, tag: int) -> Pending:
        """Start receiving bytes."""
        awaited: Pending = self.group.recv([self.tensor(data)], rank, tag)
        return awaited


def tcp_store(address: str, port: int, size: int, timeout: float, *, serves: bool) -> Any:
    """A key-value store; the process that serves it takes a free port for port 0."""
    try:
        from torch.distributed import TCPStore
    except ImportError:
        raise missing_extra("torch", "torch", "a mesh on several processes") from None
    rest: dict[str, Any] = {"timeout": timedelta(seconds=timeout), "wait_for_workers": False}
    if serves and (bound := LOOPBACK.get(address)) is not None:
        # The store itself would listen on all interfaces.
        listener = socket.create_server((bound, port), family=_family(bound))
        port = listener.getsockname()[1]
        rest["master_listen_fd"] = listener.detach()
    return TCPStore(address, port, size, serves, **rest)


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def has_agents_store() -> bool:
    """Whether torchrun serves the key-value store, not the first worker."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def store_of(me: WorkerRank, timeout: float) -> KeyValues:
    """The key-value store of all workers: torchrun's own, or one that the first worker has."""
    serves = me.rank == 0 and not has_agents_store()
    where = f"{me.address}:{me.port}"
    try:
        store = tcp_store(me.address, me.port, me.size, timeout, serves=serves)
    except (RuntimeError, OSError) as error:
        if serves:
            raise WeftError(
                f"worker 0 cannot listen at {where}: {error}",
                help="choose another port (MASTER_PORT), or an address of this host",
            ) from error
        raise WorkerLost(
            f"worker {me.rank} cannot reach the key-value store of worker 0 at {where} within "
            f"{timeout:g} s: {error}",
            rank=0,
            help="see whether worker 0 is alive, and whether its host can be reached",
        ) from error
    from torch.distributed import PrefixStore

    # torchrun keeps its store across restarts: keys of a failed attempt must not be read again.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    prefixed: Any = PrefixStore(f"{PREFIX}/{attempt}", store)
    return prefixed  # type: ignore[no-any-return]
