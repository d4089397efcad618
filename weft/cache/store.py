"""The store on disk: one file an entry, written whole or not at all, by any number of processes.

    FOLDER/kernel/3f/3f09...   an entry of the kind `kernel`, named by the digest of its key
    FOLDER/ledger.json         hits and misses, the last misses, what was evicted
    FOLDER/size                the bytes of all entries when somebody last looked

Files are written beside their place and renamed, so that a reader sees an old entry, a new one or
none. Nothing waits for a lock: who finds a file gone has a miss, and who finds it damaged says so
once and writes it again. A folder that cannot be written is said once, and done without. Entries
are code, or lead to it: a folder or a file that others may write to is not read.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from weft.cache.entry import HEADER_LIMIT, Key, Record, decode, encode, record_of
from weft.cache.ledger import Ledger
from weft.errors import warn
from weft.knobs import CACHE, cache_folder

_SIZE = "size"
LIMIT = 2 << 30  # bytes of all entries, above which the longest unused are removed
_KEPT = 0.8  # how full the cache is after that
_LASTS = 600.0  # seconds that a process relies on how another one found the store
_NO_FOLDER = (
    f"weft remembers nothing from run to run: the user has no home folder, "
    f"and {CACHE.name} names no other"
)
_SHARED = (
    "weft does without its cache: others may write to {folder}, from where code is run; "
    "chown it to yourself, and chmod go-w it"
)
_ABANDONED = 3600.0  # seconds after which a file that is being written is nobody's


@dataclass(frozen=True, slots=True)
class Stored:
    """An entry that lies in the store."""

    path: Path
    record: Record
    nbytes: int
    used: float  # when it was last read or written, in seconds since 1970


class DiskStore:
    """A folder of entries; without a folder nothing is ever found, and that is said once."""

    def __init__(self, folder: Path | None, limit: int = LIMIT) -> None:
        self.folder = folder
        self.limit = limit
        self.ledger = Ledger(folder)
        self._unwritable = False
        self._ours: bool | None = None  # None before the folder was looked at
        self._said: set[str] = set()
        # Bytes to write before the size of the store is looked at; None before the first.
        self._until_look: int | None = None

    def get(self, key: Key, *, counted: bool = True) -> bytes | None:
        """The data of a key, or None; the ledger remembers which, absence only if `counted`."""
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
        with contextlib.suppress(OSError):  # evicted just now, or a folder that may only be read
            os.utime(path)
        return data

    def refuse(self, key: Key) -> None:
        """Say that an entry is not what it should be; it is to be made and put again."""
        assert self.folder is not None, "an entry was found"
        path = self.folder / _place(key)
        self._say("heal", f"weft found damage in its cache and makes it anew: {path}")
        self.ledger.missed(key, "damaged")

    def put(self, key: Key, data: bytes) -> None:
        """Write an entry, in place of any that is there."""
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
                "it is no folder" if os.path.isfile(self.folder) else error.strerror or str(error)
            )
            self._say("write", f"weft remembers nothing in {self.folder}: {reason}")

    def _is_ours(self, folder: Path) -> bool:
        """Whether nobody else can write to the folder: what is found there is run."""
        if self._ours is None:
            try:
                status = os.stat(folder)
            except OSError:
                return True  # not there yet, or nothing that can be read
            self._ours = _is_trusted(status)
            if not self._ours:
                self._say("trust", _SHARED.format(folder=folder))
        return self._ours

    def holds(self, kind: str) -> bool:
        """Whether there may be entries of a kind."""
        # Other than Path.is_dir, it is False where folders may not be looked into.
        return self.folder is not None and os.path.isdir(self.folder / kind)

    def entries(self, kind: str | None = None) -> Iterator[Stored]:
        """All entries that can be read, or those of a kind."""
        for path, status in _files(self.folder, kind):
            try:
                with path.open("rb") as file:
                    record = record_of(file.read(HEADER_LIMIT))
            except OSError:
                continue  # gone meanwhile
            if record is not None:
                yield Stored(path, record, status.st_size, status.st_mtime)

    def size(self) -> tuple[int, int]:
        """How many entries there are, and their bytes; none of them is read."""
        sizes = [status.st_size for _, status in _files(self.folder, None)]
        return len(sizes), sum(sizes)

    def clear(self, kind: str | None = None) -> tuple[int, int]:
        """Remove all entries, or those of a kind; how many they were, and their bytes."""
        count = nbytes = 0
        for path, status in _files(self.folder, kind, unfinished=True):
            if _remove(path) and not path.name.startswith("."):
                count += 1
                nbytes += status.st_size
        self.ledger.clear(kind)
        return count, nbytes

    def _make_room(self, folder: Path, nbytes: int) -> None:
        """Now and then, look whether there is too much, and remove the longest unused."""
        if self._until_look is None:
            self._until_look = self._found_by_another(folder)
        self._until_look -= nbytes
        if self._until_look >= 0:
            return
        now = time.time()
        found = []
        for path, status in _files(folder, None, unfinished=True):
            if not path.name.startswith("."):
                found.append((status.st_mtime, path, status.st_size))
            elif now - status.st_mtime > _ABANDONED:
                _remove(path)
        total = nbytes + sum(size for _, _, size in found)
        if total > self.limit:
            evicted = []
            for _, path, size in sorted(found):
                if total <= _KEPT * self.limit:
                    break
                _remove(path)
                evicted.append(path.name)
                total -= size
            self.ledger.evicted(evicted)
        self._until_look = self._share(total)
        _write(folder / _SIZE, str(total).encode())

    def _share(self, total: int) -> int:
        """The bytes to write before the next look: others write, too, so an eighth of the rest."""
        return max(0, self.limit - total) // 8

    def _found_by_another(self, folder: Path) -> int:
        """The same, as another process has found it of late; to look takes long if it is large."""
        path = folder / _SIZE
        try:
            recent = time.time() - path.stat().st_mtime < _LASTS
            return self._share(int(path.read_bytes())) if recent else 0
        except (OSError, ValueError):
            return 0

    def _say(self, what: str, message: str) -> None:
        """Warn of something, once."""
        if what not in self._said:
            self._said.add(what)
            warn(message)


def _is_trusted(status: os.stat_result) -> bool:
    """Whether a file or folder is the user's or root's, and no others may write to it."""
    if not hasattr(os, "getuid"):  # Windows: the folder is in the user's own profile
        return True
    return status.st_uid in (0, os.getuid()) and not status.st_mode & 0o022


def _place(key: Key) -> Path:
    return Path(key.kind, key.digest[:2], key.digest)


def _write(path: Path, content: bytes) -> None:
    """Write a file beside its place and move it there."""
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
        except FileNotFoundError:  # somebody cleared the cache between two of these lines
            if last:
                return


def _files(
    folder: Path | None, kind: str | None, *, unfinished: bool = False
) -> Iterator[tuple[Path, os.stat_result]]:
    """The files of entries, in the order of their names, and perhaps those being written."""
    if folder is None:
        return
    kinds = [str(folder / kind)] if kind else [found.path for found in _listed(str(folder))]
    parts = [part.path for each in kinds for part in _listed(each) if len(part.name) == 2]
    for part in parts:
        for file in _listed(part):
            if unfinished or not file.name.startswith("."):
                try:
                    yield Path(file.path), file.stat()
                except OSError:
                    continue  # gone meanwhile


def _listed(folder: str) -> list[os.DirEntry[str]]:
    """What is in a folder, by name; nothing if it is gone, or none."""
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=attrgetter("name"))
    except OSError:
        return []


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:  # gone already, or not ours to remove
        return False
    return True


_STORES: dict[Path | None, DiskStore] = {}


def the_store() -> DiskStore:
    """The store of this process, where WEFT_CACHE says."""
    folder = cache_folder()
    if folder not in _STORES:
        _STORES[folder] = DiskStore(folder)
    return _STORES[folder]
