"""The ledger of the cache: hits and misses of all processes, for `weft cache why`."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from weft.cache.entry import Key
from weft.native.forks import fork_tracked
from weft.records import dataclass

Cause = Literal["absent", "damaged", "unreadable"]

_MISSES = 64  # recent misses kept
_EVICTED = 4096  # digests of evicted entries kept
_WRITE_EVERY = 1.0  # seconds between writes
_TRIES = 200  # of 10 ms each, to lock the file


@dataclass(frozen=True, slots=True)
class Miss:
    """A key that was looked up and not found."""

    key: Key
    cause: Cause
    time: float


@dataclass(frozen=True, slots=True)
class UsageCounts:
    """The contents of the ledger."""

    hits: Counter[str] = field(default_factory=Counter)  # by kind
    misses: Counter[str] = field(default_factory=Counter)  # by kind
    missed: tuple[Miss, ...] = ()  # most recent last
    evicted: tuple[str, ...] = ()  # digests of evicted entries
    cleared: float = 0.0  # time of the last clear, of any kind


@dataclass(slots=True)
class _Counts:
    """Counts of this process that are not yet written."""

    hits: Counter[str] = field(default_factory=Counter)
    misses: Counter[str] = field(default_factory=Counter)
    missed: deque[Miss] = field(default_factory=lambda: deque(maxlen=_MISSES))
    evicted: list[str] = field(default_factory=list)


class UsageLedger:
    """Counts in memory, merged into those on disk periodically and at exit."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._written = time.monotonic()
        self._counts = _Counts()
        _LEDGERS.add(self)

    def hit(self, kind: str) -> None:
        """Count a hit."""
        with self._lock:
            self._counts.hits[kind] += 1
        self._write_sometimes()

    def missed(self, key: Key, cause: Cause) -> None:
        """Count and record a miss."""
        with self._lock:
            self._counts.misses[key.kind] += 1
            self._counts.missed.append(Miss(key, cause, time.time()))
        self._write_sometimes()

    def evicted(self, digests: Sequence[str]) -> None:
        """Record evicted entries."""
        with self._lock:
            self._counts.evicted += digests

    def clear(self, kind: str | None) -> None:
        """Reset the counts of a kind, or all, and record the time."""
        with self._lock:
            self._counts = _Counts()
        with _held(self._folder) as folder:
            if folder is not None:
                page = _read(folder)
                hits = Counter({k: n for k, n in page.hits.items() if kind not in (None, k)})
                misses = Counter({k: n for k, n in page.misses.items() if kind not in (None, k)})
                _write(folder, UsageCounts(hits, misses, page.missed, page.evicted, time.time()))

    def page(self) -> UsageCounts:
        """The current contents, of all processes."""
        self.write()
        return UsageCounts() if self._folder is None else _read(self._folder)

    def write(self) -> None:
        """Merge this process's counts into those on disk."""
        with self._lock:
            mine, self._counts = self._counts, _Counts()
        self._written = time.monotonic()
        if not (mine.hits or mine.misses or mine.evicted):
            return
        with _held(self._folder) as folder:
            if folder is not None:
                page = _read(folder)
                missed = sorted((*page.missed, *mine.missed), key=lambda m: m.time)[-_MISSES:]
                evicted = (*page.evicted, *mine.evicted)[-_EVICTED:]
                hits, misses = page.hits + mine.hits, page.misses + mine.misses
                _write(folder, UsageCounts(hits, misses, tuple(missed), evicted, page.cleared))

    def restart(self) -> None:
        """In a forked child: drop the counts, which the parent will write."""
        self._lock = threading.Lock()
        self._counts = _Counts()

    def _write_sometimes(self) -> None:
        if time.monotonic() - self._written > _WRITE_EVERY:
            self.write()


@contextlib.contextmanager
def _held(folder: Path | None) -> Iterator[Path | None]:
    """The ledger's folder, locked against other processes; None if that fails."""
    if folder is None:
        yield None
        return
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(folder / "ledger.lock", os.O_CREAT | os.O_RDWR, 0o600)
    except OSError:
        yield None
        return
    try:
        yield folder if _locked(handle) else None
    finally:
        os.close(handle)


def _locked(handle: int) -> bool:
    """Lock a file with a timeout: a process forked meanwhile may hold the lock for long."""
    for _ in range(_TRIES):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.01)
        except OSError:
            return False  # no locks on this file system
    return False


def _read(folder: Path) -> UsageCounts:
    """The contents on disk; empty if missing or corrupt."""
    try:
        content = json.loads((folder / "ledger.json").read_bytes())
        missed = tuple(_miss(row) for row in content["missed"])
        evicted = tuple(str(digest) for digest in content["evicted"])
        counts = [
            Counter({str(k): int(n) for k, n in content[c].items()}) for c in ("hits", "misses")
        ]
        return UsageCounts(counts[0], counts[1], missed, evicted, float(content["cleared"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return UsageCounts()


def _miss(row: dict[str, Any]) -> Miss:
    key = Key(row["kind"], row["name"], tuple((n, v) for n, v in row["parts"]))
    return Miss(key, row["cause"], float(row["time"]))


def _write(folder: Path, page: UsageCounts) -> None:
    missed = [
        {
            "kind": miss.key.kind,
            "name": miss.key.name,
            "parts": miss.key.parts,
            "cause": miss.cause,
            "time": miss.time,
        }
        for miss in page.missed
    ]
    content = {
        "hits": page.hits,
        "misses": page.misses,
        "missed": missed,
        "evicted": page.evicted,
        "cleared": page.cleared,
    }
    with contextlib.suppress(OSError):  # best effort: only counts are lost
        handle, name = tempfile.mkstemp(prefix=".ledger", dir=folder)
        try:
            with os.fdopen(handle, "w") as file:
                json.dump(content, file)
            os.replace(name, folder / "ledger.json")
        except OSError:  # disk full
            os.unlink(name)


_LEDGERS = fork_tracked(UsageLedger.write, UsageLedger.restart)
