"""The store on disk: one file for each entry, written atomically, by any number of processes.

    FOLDER/kernel/3f/3f09...   an entry of the kind `kernel`, named by the digest of its key
    FOLDER/ledger.json         hits and misses, the last misses, evicted entries
    FOLDER/size                the bytes of all entries at the last scan

Files are written beside their place and renamed, so that a reader sees an old entry, a new one or
none. It is lock-free: a file removed concurrently is a miss, a corrupt one is reported once and
rewritten. An unwritable folder is reported once, and the cache is disabled. Entries contain code: a
folder or file that other users may write to is not read.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

from weft.cache.entry import HEADER_LIMIT, Key, Record, decode, encode, record_of
from weft.cache.ledger import UsageLedger
from weft.errors import warn
from weft.knobs import CACHE, cache_folder
from weft.records import dataclass

_SIZE = "size"
LIMIT = 2 << 30  # bytes of all entries; above it the least recently used are evicted
_KEPT = 0.8  # fill level after eviction, so that not every write evicts
_LASTS = 600.0  # seconds that a scan by another process stays valid
_NO_FOLDER = (
    f"weft remembers nothing from run to run: the user has no home folder, "
    f"and {CACHE.name} names no other"
)
_SHARED = (
    "weft does without its cache: others may write to {folder}, from where code is run; "
    "chown it to yourself, and chmod go-w it"
)
_ABANDONED = 3600.0  # seconds after which a temporary file is abandoned


@dataclass(frozen=True, slots=True)
class Stored:
    """An entry in the store."""

    path: Path
    record: Record
    nbytes: int
    used: float  # last access, in seconds since 1970


class DiskStore:
    """A folder of entries; without a usable folder every lookup misses, with one warning."""

    def __init__(self, folder: Path | None, limit: int = LIMIT) -> None:
        self.folder = folder
        self.limit = limit
        self.ledger = UsageLedger(folder)
        self._unwritable = False
        self._ours: bool | None = None  # None before the first check
        self._said: set[str] = set()
        # Bytes to write before the next scan of the store's size; None before the first.
        self._until_look: int | None = None

    def get(self, key: Key, *, counted: bool = True) -> bytes | None:
        """The data of a key, or None; recorded in the ledger, misses only if `counted`."""
        if self.folder is None:
            return None
        if not self._is_ours(self.folder):
            return None
        path = self.folder / _place(key)
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                trusted = _is_trusted(status)
                data = decode(file.read(), key) if trusted else None
        except (FileNotFoundError, NotADirectoryError):
            if counted:
                self.ledger.missed(key, "absent")
            return None
        except OSError as error:
            self._say("read", f"weft cannot read its cache: {path}: {error.strerror or error}")
            self.ledger.missed(key, "unreadable")
            return None
        if data is None:
            self.refuse(key)
            return None
        self.ledger.hit(key.kind)
        with contextlib.suppress(OSError):  # evicted concurrently, or a read-only folder
            # The access time for eviction, which many file systems do not record (noatime,
            # relatime).
            os.utime(path)
        return data

    def refuse(self, key: Key) -> None:
        """Report an invalid entry; the caller rebuilds and puts it again."""
        assert self.folder is not None, "an entry was found"
        path = self.folder / _place(key)
        self._say("heal", f"weft found damage in its cache and rebuilds it: {path}")
        self.ledger.missed(key, "damaged")

    def put(self, key: Key, data: bytes) -> None:
        """Write an entry, replacing any that is there."""
        if self._unwritable:
            return
        if self.folder is None:
            self._unwritable = True
            self._say("write", _NO_FOLDER)
            return
        if not self._is_ours(self.folder):
            self._unwritable = True
            return
        content = encode(key, data)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._make_room(self.folder, len(content))
            _write(self.folder / _place(key), content)
        except OSError as error:
            self._unwritable = True
            reason = (
                "it is not a folder"
                if os.path.isfile(self.folder)
                else error.strerror or str(error)
            )
            self._say("write", f"weft remembers nothing in {self.folder}: {reason}")

    def _is_ours(self, folder: Path) -> bool:
        """Whether only this user can write to the folder: its contents are executed."""
        if self._ours is None:
            try:
                status = os.stat(folder)
            except OSError:
                return True  # missing or unreadable
            self._ours = _is_trusted(status)
            if not self._ours:
                self._say("trust", _SHARED.format(folder=folder))
        return self._ours

    def holds(self, kind: str) -> bool:
        """Whether there may be entries of a kind."""
        # Unlike Path.is_dir, False for an inaccessible parent.
        return self.folder is not None and os.path.isdir(self.folder / kind)

    def entries(self, kind: str | None = None) -> Iterator[Stored]:
        """All readable entries, or those of a kind."""
        for path, status in _files(self.folder, kind):
            try:
                with path.open("rb") as file:
                    record = record_of(file.read(HEADER_LIMIT))
            except OSError:
                continue  # removed concurrently
            if record is not None:
                yield Stored(path, record, status.st_size, status.st_mtime)

    def size(self) -> tuple[int, int]:
        """The number of entries and their bytes, without reading them."""
        sizes = [status.st_size for _, status in _files(self.folder, None)]
        return len(sizes), sum(sizes)

    def clear(self, kind: str | None = None) -> tuple[int, int]:
        """Remove all entries, or those of a kind; returns their number and bytes."""
        count = nbytes = 0
        for path, status in _files(self.folder, kind, unfinished=True):
            if _remove(path) and not path.name.startswith("."):
                count += 1
                nbytes += status.st_size
        self.ledger.clear(kind)
        return count, nbytes

    def _make_room(self, folder: Path, nbytes: int) -> None:
        """Periodically check the size, and evict the least recently used entries."""
        if self._until_look is None:
            self._until_look = self._found_by_another(folder)
        self._until_look -= nbytes
        if self._until_look >= 0:
            return
        now = time.time()
        entries = []
        for path, status in _files(folder, None, unfinished=True):
            if not path.name.startswith("."):
                entries.append((status.st_mtime, path, status.st_size))
            elif now - status.st_mtime > _ABANDONED:
                _remove(path)
        total = nbytes + sum(size for _, _, size in entries)
        if total > self.limit:
            evicted = []
            for _, path, size in sorted(entries):
                if total <= _KEPT * self.limit:
                    break
                _remove(path)
                evicted.append(path.name)
                total -= size
            self.ledger.evicted(evicted)
        self._until_look = self._share(total)
        # For other processes, so that each need not scan the folder.
        _write(folder / _SIZE, str(total).encode())

    def _share(self, total: int) -> int:
        """The bytes to write before the next scan: an eighth of the rest, as other processes
        write too."""
        return max(0, self.limit - total) // 8

    def _found_by_another(self, folder: Path) -> int:
        """The same, from another process's recent scan; scanning a large store is slow."""
        path = folder / _SIZE
        try:
            recent = time.time() - path.stat().st_mtime < _LASTS
            return self._share(int(path.read_bytes())) if recent else 0
        except (OSError, ValueError):
            return 0

    def _say(self, what: str, message: str) -> None:
        """Warn once."""
        if what not in self._said:
            self._said.add(what)
            warn(message)


def _is_trusted(status: os.stat_result) -> bool:
    """Whether a file is owned by the user or root, and not writable by others."""
    if not hasattr(os, "getuid"):  # Windows: the folder is in the user's own profile
        return True
    return status.st_uid in (0, os.getuid()) and not status.st_mode & 0o022


def _place(key: Key) -> Path:
    return Path(key.kind, key.digest[:2], key.digest)


def _write(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    # Once more, since clearing may remove the folder between its creation and the file's.
    for last in (False, True):
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=".", dir=path.parent)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(content)
                os.replace(name, path)
            except BaseException:
                _remove(Path(name))
                raise
            return
        except FileNotFoundError:  # the cache was cleared concurrently
            if last:
                return


def _files(
    folder: Path | None, kind: str | None, *, unfinished: bool = False
) -> Iterator[tuple[Path, os.stat_result]]:
    """Files of entries in the order of their names, optionally with temporary ones."""
    if folder is None:
        return
    kinds = [str(folder / kind)] if kind else [entry.path for entry in _listed(str(folder))]
    parts = [part.path for each in kinds for part in _listed(each) if len(part.name) == 2]
    for part in parts:
        for file in _listed(part):
            if unfinished or not file.name.startswith("."):
                try:
                    yield Path(file.path), file.stat()
                except OSError:
                    continue  # removed concurrently


def _listed(folder: str) -> list[os.DirEntry[str]]:
    """A folder's contents by name; empty if it is missing or no folder."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=attrgetter("name"))
    except OSError:
        return []


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:  # already removed, or no permission
        return False
    return True


_STORES: dict[Path | None, DiskStore] = {}


def the_store() -> DiskStore:
    """The store of this process, where WEFT_CACHE says."""
    folder = cache_folder()
    if folder not in _STORES:
        _STORES[folder] = DiskStore(folder)
    return _STORES[folder]
