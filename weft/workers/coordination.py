"""The coordination service: a key-value store that all workers read and write (control plane).

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field
from datetime import timedelta
from functools import partial
from typing import Protocol, TypeVar

from weft.array.context import users_line
from weft.errors import WeftError
from weft.ir.location import Location
from weft.native.forks import fork_tracked
from weft.records import dataclass
from weft.workers.failure import FailureNote, WorkerLost, root_cause
from weft.workers.member import PROGRESS, WorkerRank
from weft.workers.native_sums import ExchangeState

T = TypeVar("T")
HEARTBEAT = 1.0  # seconds between heartbeats
STALE = 5.0  # seconds without a heartbeat after which a worker counts as dead
SHARED = -1  # in place of a rank: a value of all
ANSWER = 5.0  # seconds for the store to answer after a failure
FAILURE = "failure"  # the key of the first failure that follows from no other one


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
    native: ExchangeState | None = None  # counts those of native code

    @property
    def steps(self) -> int:
        """All runs of programs."""
        return self.step + (0 if self.native is None else self.native.steps)


@dataclass(eq=False)
class OtherFailure:
    """The failure of another worker, which ends all, once it is known here."""

    note: FailureNote | None = None
    on_failure: list[Callable[[], object]] = field(default_factory=list)  # end what waits


@dataclass(frozen=True, slots=True)
class JoinedWorker:
    """A worker as it announced itself."""

    rank: int
    incarnation: str  # new for each process
    host: str
    pid: int
    network: str = ""  # its network namespace: those of a host may be as far apart as hosts

    def is_beside(self, other: JoinedWorker) -> bool:
        """Whether two workers are on one host and network."""
        return (self.host, self.network) == (other.host, other.network)


@dataclass(eq=False)
class CoordinationClient:
    """This worker's client of the coordination service."""

    store: KeyValues
    me: WorkerRank
    timeout: float
    activity: Activity = field(default_factory=Activity)
    prefix: str = ""
    server: int | None = 0  # the worker that has the store; None for the launcher
    gathers: int = 0  # calls of `gather_texts`
    agreed: Counter[str] = field(default_factory=Counter)  # programs, by the workers that agreed
    barriers: int = 0  # calls of `barrier`
    is_cut: bool = False  # whether the store did not answer
    other: OtherFailure = field(default_factory=OtherFailure)
    joined_at: float = 0.0  # by this worker's clock: the same moment for all
    _stop: threading.Event = field(default_factory=threading.Event)
    _beating: threading.Thread | None = None

    def join(self) -> tuple[JoinedWorker, ...]:
        """Announce this worker, and wait for all others."""
        here = socket.gethostname(), os.getpid(), _network()
        mine = JoinedWorker(self.me.rank, os.urandom(8).hex(), *here)
        key, text = f"member/{self.me.rank}", json.dumps(asdict(mine))
        # Compare and set, not set: of two processes with one rank exactly one wins, and the other
        # gets an error.
        other = self._claim(key, text)
        if other != text:
            there = json.loads(other)
            raise WeftError(
                f"worker {self.me.rank} has joined twice: process {there['pid']} of "
                f"{there['host']} is that rank already",
                help="give every worker a rank of its own, and restart all of them together",
            )
        members = self._read_all("member", "joined")
        self.joined_at = time.monotonic()
        self._beating = threading.Thread(target=self._beat, name=PROGRESS, daemon=True)
        self._beating.start()
        _BEATING.add(self)
        return tuple([JoinedWorker(**json.loads(text)) for text in members])

    def agree(self, name: str, digest: str, among: Sequence[int] | None = None) -> None:
        """Raise unless these workers, by default all, have the same program at this point."""
        ranks = range(self.me.size) if among is None else among
        group = "all" if among is None else ",".join(map(str, among))
        # Numbered in the order of compilation: workers that compile other programs, or in another
        # order, meet under one number and see that their digests differ.
        number, self.agreed[group] = self.agreed[group], self.agreed[group] + 1
        self.activity.doing = f"compiles {name}"
        prefix = f"program/{group}/{number}"
        self._put(prefix, json.dumps([name, digest]))
        texts = self._read_all(prefix, f"compiled program {number} ({name})", ranks)
        # Keys are never deleted: a worker that is late finds the texts of all others.
        listed = dict(zip(ranks, [json.loads(text) for text in texts], strict=True))
        others = [rank for rank, (_, theirs) in listed.items() if theirs != digest]
        if others:
            theirs = listed[others[0]][0]
            what = "another program" if theirs != name else f"another version of {name}"
            job, odd = majority({rank: digest for rank, (_, digest) in listed.items()})
            message = (
                f"program {number} differs between workers: worker {self.me.rank} has compiled "
                f"{name}, and {worker_names(others)} {what}: {theirs}"
            )
            help_ = (
                "all workers must compile the same programs in the same order, with the same "
                "shapes, mesh and options"
            )
            if digest == job:
                raise WorkerLost(message, rank=odd[0], help=help_)
            raise WeftError(message, help=help_)

    def barrier(self, name: str = "barrier") -> None:
        """Wait until all workers are here."""
        number, self.barriers = self.barriers, self.barriers + 1
        self.activity.doing = f"waits at {name}"
        self._put(f"barrier/{number}", "here")
        self._read_all(f"barrier/{number}", f"reached {name}")

    def gather_texts(self, done: str, text: str) -> list[str]:
        """Wait until all workers are here; returns the text of each."""
        key, self.gathers = f"{self.prefix}gathered/{self.gathers}", self.gathers + 1
        self.activity.doing = f"waits until all have {done}"
        self._put(key, text)
        return self._read_all(key, done)

    def compute_once(self, key: str, make: Callable[[], str]) -> str:
        """A text that the first worker to need it computes for all others."""
        mine, key = str(self.me.rank), f"shared/{key}"
        if self._claim(f"{key}/maker", mine) != mine:
            try:
                (text,) = self._read_all(key, "made it", [SHARED])
            except WorkerLost:  # its maker is lost: the next collective reports it
                text = "-"
            return text.removeprefix("+") if text.startswith("+") else make()
        # In a `finally`: without an answer the other workers would wait for the whole timeout.
        text = "-"  # a failed maker's: the others fail by themselves, with an error of their own
        try:
            text = "+" + make()
        finally:
            self._put(key, text, rank=SHARED)
        return text.removeprefix("+")

    def clone(self, name: str) -> CoordinationClient:
        """The same client for another thread, on a connection of its own."""
        return CoordinationClient(
            self.store.clone(),
            self.me,
            self.timeout,
            prefix=f"{name}/",
            server=self.server,
            other=self.other,
        )

    def fail(self, note: FailureNote) -> None:
        """Report to the others why this worker ends, whether or not its process does."""
        self._stop.set()  # its heartbeats: its process may live on without the store
        if self.is_cut and self.other.note is not None:
            return  # it waited for the store when another one failed, whom all know
        text = json.dumps(asdict(note))
        self._put("failed", text, ANSWER)
        if note.blames is None:
            self._claim(FAILURE, text)

    def close(self) -> None:
        """End the heartbeats.

        A thread that is inside of the store's native code when Python ends would abort the process.
        """
        self._stop.set()
        if self._beating is not None:
            self._beating.join(ANSWER)

    def _forget(self) -> None:
        """Forget the heartbeat thread, in a forked child, which does not have it."""
        self._beating = None

    def last_report_of(self, rank: int, *, is_gone: bool = False) -> str:
        """The last report of a worker that did not answer, or whose connection broke."""
        if (note := self.other.note) is not None and note.rank == rank:
            return f"worker {rank} has failed: {note.error}"
        try:
            return self._answered(lambda: self._last_report_of(rank, is_gone))
        except Exception as error:  # noqa: BLE001  # the store is gone with its worker
            return f"the key-value store of {self._server} is gone: {error}"

    def stalest_worker(self) -> int:
        """The worker whose heartbeat is oldest; the one that serves the store if that is gone."""

        def last() -> dict[int, float]:
            keys = {rank: f"beat/{rank}" for rank in range(self.me.size) if rank != self.me.rank}
            return {
                rank: json.loads(self.store.get(key))["since"] if self._has(key) else 0.0
                for rank, key in keys.items()
            }

        try:
            beats = self._answered(last)
        except Exception:  # noqa: BLE001  # the store is gone with its worker
            return self.server or 0
        return min(beats, key=lambda rank: beats[rank])

    def _last_report_of(self, rank: int, is_gone: bool) -> str:
        notes: dict[int, FailureNote] = {}
        blamed: int | None = rank
        while blamed is not None and blamed not in notes and self._has(f"failed/{blamed}"):
            notes[blamed] = FailureNote(**json.loads(self.store.get(f"failed/{blamed}")))
            blamed = notes[blamed].blames
        cause = root_cause(rank, notes)
        before = "" if cause == rank else f"worker {rank} has failed, as it waited for others; "
        if cause in notes:
            return f"{before}worker {cause} has failed: {notes[cause].error}"
        if not self._has(f"beat/{cause}"):
            return f"{before}worker {cause} has never reported"
        beat = json.loads(self.store.get(f"beat/{cause}"))
        age = max(self._since_joining() - beat["since"], 0.0)
        life = f"is dead or stopped: no sign of life for {age:.0f} s" if age > STALE else "is alive"
        life = f"was last heard of {age:.0f} s ago" if is_gone else life
        line = f"; its script is at {beat['line']}" if beat.get("line") else ""
        return f"{before}worker {cause} {life}; at step {beat['step']} it {beat['doing']}{line}"

    def failure_error(self, waiting: str, loc: Location | None = None) -> WorkerLost | None:
        """The error for a wait that the failure of a worker has ended, if there is one."""
        if (note := self.other.note) is None:
            return None
        rank = note.rank
        return WorkerLost(
            f"{waiting}: worker {rank} has failed; this one is in step {self.activity.step}",
            rank=rank,
            help=f"worker {rank}: {note.error}",
            loc=loc,
        )

    def _claim(self, key: str, text: str) -> str:
        """Set a key that no worker has set; its value then, that of the first worker."""
        take = partial(self.store.compare_set, key, "", text)
        try:
            return self._answered(take, self.timeout).decode()
        except Exception as error:
            raise self._store_error(error) from error

    def _put(
        self, prefix: str, text: str, seconds: float | None = None, rank: int | None = None
    ) -> None:
        """Set this worker's value of a key, or that of all."""
        key = f"{prefix}/{self.me.rank if rank is None else rank}"
        try:
            self._answered(lambda: self.store.set(key, text), seconds or self.timeout)
        except Exception as error:
            raise self._store_error(error) from error

    def _answered(self, work: Callable[[], T], seconds: float = ANSWER) -> T:
        """The result of reading or writing the store.

        Its own timeouts need an answer, which a stopped worker 0, or one behind a network that was
        cut, never sends.
        """
        if self.is_cut:
            raise TimeoutError("it does not answer")
        outcome: list[T | Exception] = []

        def caught() -> None:
            try:
                outcome.append(work())
            except Exception as error:  # noqa: BLE001  # raised below
                outcome.append(error)

        thread = threading.Thread(target=caught, name="weft-store", daemon=True)
        thread.start()
        end = time.monotonic() + seconds
        while thread.is_alive() and (left := end - time.monotonic()) > 0:
            thread.join(min(left, HEARTBEAT))
            if self.other.note is not None:  # what was under way has had a moment
                break
        if not outcome:
            self.is_cut = True  # the operation under way keeps its connection
            raise TimeoutError(f"it did not answer within {seconds:g} s")
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]

    def _beat(self) -> None:
        """Send heartbeats until this worker ends, on a connection of its own."""
        # A wait blocks its connection, and others must see that this worker is alive meanwhile.
        store = self.store.clone()
        while True:
            now = {
                "since": self._since_joining(),
                "step": self.activity.steps,
                "doing": self.activity.doing,
                "line": users_line(threading.main_thread()),
            }
            try:
                store.set(f"beat/{self.me.rank}", json.dumps(now))
                self._look_for_failure(store)
            except Exception:  # noqa: BLE001  # the store ended: so do the workers
                return
            # An event, not a sleep: `close` must not take a whole heartbeat.
            if self._stop.wait(HEARTBEAT):
                return

    def _since_joining(self) -> float:
        """Seconds since all have joined, which the clocks of hosts count alike, wherever set."""
        return time.monotonic() - self.joined_at

    def _look_for_failure(self, store: KeyValues) -> None:
        """End what waits in this worker once another one has failed."""
        if self.other.note is None and store.check([FAILURE]):
            note = FailureNote(**json.loads(store.get(FAILURE)))
            if note.rank != self.me.rank:
                self.other.note = note
                for end_waits in self.other.on_failure:
                    end_waits()

    def _read_all(self, prefix: str, done: str, among: Sequence[int] | None = None) -> list[str]:
        """The values that all workers have set; raises with the names of those that have not."""
        ranks = range(self.me.size) if among is None else among
        keys = [f"{prefix}/{rank}" for rank in ranks]

        def read() -> list[str]:
            self.store.wait(keys, timedelta(seconds=self.timeout))
            return [self.store.get(key).decode() for key in keys]

        try:
            return self._answered(read, self.timeout + ANSWER)
        except Exception as error:
            failed = self.failure_error(f"not all workers have {done}")
            raise failed or self._absent(ranks, keys, done) from error

    def _absent(self, ranks: Sequence[int], keys: Sequence[str], done: str) -> WeftError:
        """The error for workers that have not set their keys in time."""
        pairs = list(zip(ranks, keys, strict=True))
        help_ = "see the output of that worker; WEFT_TIMEOUT is the time to wait"
        try:
            absent = self._answered(lambda: [rank for rank, key in pairs if not self._has(key)])
        except Exception as error:  # noqa: BLE001  # the store is gone with its worker
            return self._store_error(error)
        late = absent or [*ranks][:1]  # all have come since
        return WorkerLost(
            f"{worker_names(late)} of {self.me.size} {_have(late)} not {done} within "
            f"{self.timeout:g} s: {self.last_report_of(late[0])}",
            rank=late[0],
            help=help_,
        )

    @property
    def _server(self) -> str:
        return "the launcher" if self.server is None else f"worker {self.server}"

    def _store_error(self, error: Exception) -> WeftError:
        """The error for a store that fails, or does not answer."""
        if self.server is None:  # this worker is cut off, or its launcher is gone
            return WeftError(
                f"worker {self.me.rank} has lost the key-value store of its launcher: {error}",
                help=f"see whether the launcher is alive; this worker {self.activity.doing}",
            )
        return WorkerLost(
            f"{self._server} is gone, or stopped: its key-value store fails: {error}",
            rank=self.server,
            help=f"see its output; worker {self.me.rank} {self.activity.doing}",
        )

    def _has(self, key: str) -> bool:
        return self.store.check([key])


_BEATING = fork_tracked(CoordinationClient.close, CoordinationClient._forget)


def _network() -> str:
    try:
        return os.readlink("/proc/self/ns/net")
    except OSError:  # not Linux
        return ""


def majority(texts: Mapping[int, str]) -> tuple[str, list[int]]:
    """The text of most workers, of two the first one's, and the workers with others."""
    counts = Counter(texts.values())
    job = max(counts, key=lambda each: counts[each])
    return job, [rank for rank, text in texts.items() if text != job]


def worker_names(ranks: Sequence[int]) -> str:
    """Workers by their numbers, in words."""
    listed = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"worker {listed}" if len(ranks) == 1 else f"workers {listed}"


def _have(ranks: Sequence[int]) -> str:
    return "has" if len(ranks) == 1 else "have"
