"""Exchanges of arrays that stay in a device's memory, by process groups of torch.distributed.

NCCL exchanges arrays in GPU memory, on streams of its own; gloo arrays in host memory. There is
one group for each set of workers that meet in a collective, created once. An exchange is one
all-to-all of bytes, in which workers that send each other nothing have empty parts.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from datetime import timedelta
from typing import Any

import numpy as np

from weft.array.tensor_stack import TensorStack
from weft.array.torch_memory import torch_dtype
from weft.errors import WeftError
from weft.executable.process import Exchange, Peer, Values
from weft.records import dataclass
from weft.workers.coordination import CoordinationClient
from weft.workers.member import WorkerRank

ALIGNMENT = 16  # bytes, of each array in a message


@dataclass(frozen=True, slots=True)
class DeviceExchange:
    """A started exchange: the received bytes, their sizes by worker, and the pending operation."""

    exchange: Exchange
    received: Any
    sizes: Sequence[int]
    pending: Any
    sent: Any  # stays referenced until it has been sent


@dataclass(eq=False)
class DeviceGroups:
    """The process groups of this worker, by backend and members."""

    me: WorkerRank
    coordination: CoordinationClient
    torch_store: Callable[[], Any]
    timeout: float
    made: dict[tuple[str, tuple[int, ...]], Any] = field(default_factory=dict)
    _gpus: list[bool] = field(default_factory=list)  # whether every worker has a GPU of its own

    def reaches(self, device: Any) -> bool:
        """Whether workers exchange arrays in this kind of memory; all of them must call this."""
        self.torch_store()  # now, as a later group may be without the worker that serves it
        if device.type == "cpu":
            return True
        if not self._gpus:
            self._gpus.append(self._has_own_gpu(device))
        return self._gpus[0]

    def _has_own_gpu(self, device: Any) -> bool:
        """Whether no two workers use one GPU, which NCCL refuses."""
        import torch

        count = torch.cuda.device_count()
        here = f"{torch.cuda.get_device_properties(device).uuid} {count} {device.index}"
        rows = [text.split() for text in self.coordination.gather_texts("named its GPU", here)]
        users = [rank for rank, (uuid, *_) in enumerate(rows) if uuid == rows[self.me.rank][0]]
        if len(users) == 1:
            return len({uuid for uuid, *_ in rows}) == len(rows)
        if count > 1:
            raise WeftError(
                f"workers {', '.join(map(str, users))} all use GPU {device.index} of {count}",
                help="import weft before the script first uses a GPU, or begin it with "
                "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))",
            )
        return False

    def group(self, backend: str, ranks: tuple[int, ...]) -> Any:
        """The process group of some workers; all of them must call this."""
        found = self.made.get((backend, ranks))
        if found is None:
            found = self.made[backend, ranks] = self._new(backend, ranks)
        return found

    def _new(self, backend: str, ranks: tuple[int, ...]) -> Any:
        import torch.distributed as dist

        name = f"{backend}/{','.join(map(str, ranks))}"
        store = dist.PrefixStore(name, self.torch_store())
        rank, time = ranks.index(self.me.rank), timedelta(seconds=self.timeout)
        if backend == "gloo":
            return dist.ProcessGroupGloo(store, rank, len(ranks), time)
        nccl: Any = dist.ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = time
        # Its watchdog ends the process if a worker is lost, as the launcher then ends the others.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")
        return nccl(store, rank, len(ranks), options)

    def start(self, exchange: Exchange, ranks: Mapping[Peer, int]) -> DeviceExchange:
        """Send to every peer, and receive from it."""
        import torch
        from torch.distributed import AllToAllOptions

        device = exchange.device
        members = tuple(sorted(ranks[peer] for peer in exchange.among))
        peers = {ranks[peer]: peer for peer in exchange.among}
        packed: list[list[Any]] = [[] for _ in members]
        sizes = [0] * len(members)
        for place, rank in enumerate(members):
            packed[place] = _packed(exchange.sent.get(peers[rank], ()))
            sizes[place] = _spans(exchange.awaited.get(peers[rank], ()))[1]
        flat = [part for parts in packed for part in parts]
        empty = torch.empty(0, dtype=torch.uint8, device=device)
        sent = torch.cat(flat) if flat else empty
        received = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
        backend = "nccl" if device.type == "cuda" else "gloo"
        counts = [sum([part.numel() for part in parts]) for parts in packed]
        group = self.group(backend, members)
        pending = group.alltoall_base(received, sent, sizes, counts, AllToAllOptions())
        return DeviceExchange(exchange, received, sizes, pending, sent)

    def wait(self, started: DeviceExchange, ranks: Mapping[Peer, int]) -> Mapping[Peer, Values]:
        """The received arrays; with NCCL the current stream waits for them, not the host."""
        started.pending.wait()
        received: dict[Peer, Values] = {}
        starts = np.cumsum([0, *started.sizes]).tolist()
        members = sorted(started.exchange.among, key=lambda peer: ranks[peer])
        for peer, start in zip(members, starts, strict=False):
            kinds = started.exchange.awaited.get(peer)
            if kinds is None:
                continue
            arrays = []
            for (shape, dtype), (begin, end) in zip(kinds, _spans(kinds)[0], strict=True):
                part = started.received[start + begin : start + end]
                arrays.append(TensorStack(_viewed(part, dtype).reshape(shape)))
            received[peer] = tuple(arrays)  # type: ignore[arg-type]
        return received


def _viewed(part: Any, dtype: np.dtype[Any]) -> Any:
    """Bytes as elements."""
    kind = torch_dtype(dtype)
    return part.view(kind) if part.numel() else part.new_empty(0, dtype=kind)


def _packed(values: Sequence[Any]) -> list[Any]:
    """The bytes of arrays, each padded."""
    import torch

    parts = []
    for value in values:
        tensor = value.tensor.contiguous()
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        part = tensor.reshape(-1).view(torch.uint8)
        parts.append(part)
        if extra := -part.numel() % ALIGNMENT:
            parts.append(part.new_zeros(extra))
    return parts


def _spans(kinds: Sequence[tuple[tuple[int, ...], Any]]) -> tuple[list[tuple[int, int]], int]:
    """Where each array is in the part of a worker, and the bytes of the part."""
    spans, end = [], 0
    for shape, dtype in kinds:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        spans.append((end, end + size))
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return spans, end
