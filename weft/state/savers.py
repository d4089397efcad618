"""The processes that write a checkpoint together: one alone, launched workers, or those of JAX."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from typing import Any, Protocol

from weft.errors import WeftError
from weft.knobs import TIMEOUT
from weft.records import dataclass
from weft.workers import joined_cluster, member
from weft.workers.failure import WorkerLost


class SaveGroup(Protocol):
    """The processes that save together, as this one sees them; `tell` is a barrier with texts."""

    @property
    def rank(self) -> int:
        """The number of this process."""
        ...

    @property
    def size(self) -> int:
        """The number of processes."""
        ...

    def tell(self, what: str, text: str) -> Sequence[str]:
        """Wait for all processes; returns the text of each, by rank."""
        ...


@dataclass(frozen=True, slots=True)
class SingleSaver:
    """The only process."""

    rank: int = 0
    size: int = 1

    def tell(self, what: str, text: str) -> Sequence[str]:
        """The text alone: there is no other process."""
        return (text,)


class WorkerSavers:
    """Launched workers; messages of a background save have a connection of their own."""

    def __init__(self, cluster: Any) -> None:
        self.rank, self.size = cluster.rank, cluster.size
        self.coordination = cluster.coordination.clone("save")

    def tell(self, what: str, text: str) -> Sequence[str]:
        """The texts of all workers, through the key-value store."""
        texts: Sequence[str] = self.coordination.gather_texts(what, text)
        return texts


class JaxSavers:
    """The processes of `jax.distributed`, on its key-value store, whatever devices they have."""

    def __init__(self, state: Any) -> None:
        self.rank, self.size, self.client = state.process_id, state.num_processes, state.client
        self.told = 0  # calls of `tell`: processes call it in the same order

    def tell(self, what: str, text: str) -> Sequence[str]:
        """The texts of all processes, by rank."""
        prefix, self.told = f"weft/save/{self.told}", self.told + 1
        self.client.key_value_set(f"{prefix}/{self.rank}", text)
        lines = []
        for rank in range(self.size):
            try:
                wait = int(TIMEOUT.value() * 1000)
                lines.append(self.client.blocking_key_value_get(f"{prefix}/{rank}", wait))
            except Exception as error:
                raise WeftError(
                    f"process {rank} of {self.size} has not {what} within {TIMEOUT.value():g} s: "
                    f"{error}",
                    help="all processes must save the same state; see the output of that one",
                ) from error
        return lines


_WELL = "well"
_SAVERS: list[SaveGroup] = []  # of this process, created once: it counts the calls of `tell`


def savers() -> SaveGroup:
    """The processes that save with this one."""
    if not _SAVERS:
        _SAVERS.append(_savers())
    return _SAVERS[0]


def _savers() -> SaveGroup:
    distributed = sys.modules.get("jax._src.distributed")
    state = None if distributed is None else distributed.global_state
    if state is not None and state.client is not None and (state.num_processes or 1) > 1:
        return JaxSavers(state)
    cluster = None if member() is None else joined_cluster()
    return SingleSaver() if cluster is None else WorkerSavers(cluster)


def agree(with_: SaveGroup, what: str, error: BaseException | None = None) -> None:
    """Wait until all processes are so far; raises if one of them has failed."""
    reason = _WELL
    if error is not None:
        text = error.message if isinstance(error, WeftError) else f"{type(error).__name__}: {error}"
        reason = text[:2000]
    texts = with_.tell(what, reason)
    if error is not None:
        raise error
    for rank, text in enumerate(texts):
        if text != _WELL:
            raise WorkerLost(
                f"the checkpoint is not saved: process {rank} has not {what}: {text}",
                rank=rank,
                help="the earlier checkpoint is as it was",
            )


def compare(with_: SaveGroup, header: object) -> None:
    """Raise unless all processes save tensors of the same names and types."""
    text = hashlib.blake2b(json.dumps(header).encode(), digest_size=16).hexdigest()
    texts = with_.tell("begun to save", text)
    others = [rank for rank, theirs in enumerate(texts) if theirs != text]
    if others:
        raise WeftError(
            f"process {with_.rank} saves another state than process {others[0]}",
            help="all processes must save tensors of the same names, types and shapes, to one path",
        )
