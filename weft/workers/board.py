"""The control plane: a key-value store that all workers read and write.

It carries membership, agreement on programs, progress and failures, and no elements of arrays. A
step that runs touches none of it.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, field
from datetime import timedelta
from typing import Protocol

from weft.errors import WeftError
from weft.records import dataclass
from weft.workers.member import WorkerRank

BEAT = 1.0  # seconds between two notes of progress
STALE = 10.0  # seconds without a note after which a worker counts as dead


class KeyValues(Protocol):
    """The store of torch.distributed, as far as it is used."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: Sequence[str]) -> bool: ...
    def wait(self, keys: Sequence[str], timeout: timedelta) -> None: ...
    def compare_set(self, key: str, expected: str, desired: str) -> bytes: ...
    def clone(self) -> KeyValues: ...


@dataclass(slots=True)
class Activity:
    """The current step of a worker, for the others to read if they wait too long."""

    step: int = 0  # runs of programs
    doing: str = "has run nothing yet"


@dataclass(frozen=True, slots=True)
class Joined:
    """A worker as it announced itself."""

    rank: int
    incarnation: str  # new for each process
    host: str
    pid: int


@dataclass(eq=False)
class Board:
    """This worker's access to the store."""

    store: KeyValues
    me: WorkerRank
    timeout: float
    activity: Activity = field(default_factory=Activity)
    prefix: str = ""
    told: int = 0
    agreed: Counter[str] = field(default_factory=Counter)  # programs, by the workers that agreed
    met: int = 0  # barriers
    _stop: threading.Event = field(default_factory=threading.Event)

    def join(self) -> tuple[Joined, ...]:
        """Announce this worker, and wait for all others."""
        mine = Joined(self.me.rank, os.urandom(8).hex(), socket.gethostname(), os.getpid())
        key, text = f"member/{self.me.rank}", json.dumps(asdict(mine))
        other = self.store.compare_set(key, "", text).decode()
        if other != text:
            there = json.loads(other)
            raise WeftError(
                f"worker {self.me.rank} has joined twice: process {there['pid']} of "
                f"{there['host']} is that rank already",
                help="give every worker a rank of its own, and restart all of them together",
            )
        found = self._of_all("member", "joined")
        threading.Thread(target=self._beat, name="weft-progress", daemon=True).start()
        return tuple([Joined(**json.loads(text)) for text in found])

    def agree(self, name: str, digest: str, among: Sequence[int] | None = None) -> None:
        """Raise unless these workers, by default all, have the same program at this point."""
        ranks = range(self.me.size) if among is None else among
        group = "all" if among is None else ",".join(map(str, among))
        number, self.agreed[group] = self.agreed[group], self.agreed[group] + 1
        self.activity.doing = f"compiles {name}"
        prefix = f"program/{group}/{number}"
        self.store.set(f"{prefix}/{self.me.rank}", json.dumps([name, digest]))
        told = self._of_all(prefix, f"compiled program {number} ({name})", ranks)
        listed = dict(zip(ranks, [json.loads(text) for text in told], strict=True))
        others = [rank for rank, (_, theirs) in listed.items() if theirs != digest]
        if others:
            theirs = listed[others[0]][0]
            what = "another program" if theirs != name else f"another version of {name}"
            raise WeftError(
                f"program {number} differs between workers: worker {self.me.rank} has compiled "
                f"{name}, and {_workers(others)} {what}: {theirs}",
                help="all workers must compile the same programs in the same order, with the "
                "same shapes, mesh and options",
            )

    def barrier(self, name: str = "barrier") -> None:
        """Wait until all workers are here."""
        number, self.met = self.met, self.met + 1
        self.activity.doing = f"waits at {name}"
        self.store.set(f"barrier/{number}/{self.me.rank}", "here")
        self._of_all(f"barrier/{number}", f"reached {name}")

    def tell(self, done: str, text: str) -> list[str]:
        """Wait until all workers are here; returns what each tells."""
        key, self.told = f"{self.prefix}told/{self.told}", self.told + 1
        self.activity.doing = f"waits until all have {done}"
        self.store.set(f"{key}/{self.me.rank}", text)
        return self._of_all(key, done)

    def beside(self, name: str) -> Board:
        """The same board for another thread, on a connection of its own."""
        return Board(self.store.clone(), self.me, self.timeout, prefix=f"{name}/")

    def fail(self, error: str) -> None:
        """Tell the others why this worker ends; the first note of all counts as the cause."""
        note = json.dumps({"rank": self.me.rank, "error": error})
        self.store.set(f"failed/{self.me.rank}", note)
        self.store.compare_set("failed/first", "", note)

    def close(self) -> None:
        """End the notes of progress."""
        self._stop.set()

    def news_of(self, rank: int, *, is_gone: bool = False) -> str:
        """The last report of a worker that did not answer, or whose connection broke."""
        try:
            if self.store.check([f"failed/{rank}"]):
                note = json.loads(self.store.get(f"failed/{rank}"))
                return f"worker {rank} has failed: {note['error']}"
            if not self.store.check([f"beat/{rank}"]):
                return f"worker {rank} has never reported"
            beat = json.loads(self.store.get(f"beat/{rank}"))
        except Exception as error:  # noqa: BLE001  # the store is gone with its worker
            return f"the key-value store of worker 0 is gone: {error}"
        age = time.time() - beat["time"]
        life = f"is dead: no sign of life for {age:.0f} s" if age > STALE else "is alive"
        life = f"was last heard of {age:.0f} s ago" if is_gone else life
        return f"worker {rank} {life}; at step {beat['step']} it {beat['doing']}"

    def _beat(self) -> None:
        """Note the progress of this worker until it ends, on a connection of its own."""
        # A wait blocks its connection, and others must see that this worker is alive meanwhile.
        store = self.store.clone()
        while True:
            now = {"time": time.time(), "step": self.activity.step, "doing": self.activity.doing}
            try:
                store.set(f"beat/{self.me.rank}", json.dumps(now))
            except Exception:  # noqa: BLE001  # the store ended: so do the workers
                return
            if self._stop.wait(BEAT):
                return

    def _of_all(self, prefix: str, done: str, among: Sequence[int] | None = None) -> list[str]:
        """The values that all workers have set; raises with the names of those that have not."""
        ranks = range(self.me.size) if among is None else among
        keys = [f"{prefix}/{rank}" for rank in ranks]
        try:
            self.store.wait(keys, timedelta(seconds=self.timeout))
        except Exception as error:
            absent = [rank for rank, key in zip(ranks, keys, strict=True) if not self._has(key)]
            if not absent:
                raise
            raise WeftError(
                f"{_workers(absent)} of {self.me.size} {_has(absent)} not {done} within "
                f"{self.timeout:g} s: {self.news_of(absent[0])}",
                help="see the output of that worker; WEFT_TIMEOUT is the time to wait",
            ) from error
        return [self.store.get(key).decode() for key in keys]

    def _has(self, key: str) -> bool:
        return self.store.check([key])


def _workers(ranks: Sequence[int]) -> str:
    listed = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"worker {listed}" if len(ranks) == 1 else f"workers {listed}"


def _has(ranks: Sequence[int]) -> str:
    return "has" if len(ranks) == 1 else "have"
