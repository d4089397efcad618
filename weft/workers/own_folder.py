"""Temporary folders of a process; those of killed processes are removed by the next one."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_OWNER = "owner"  # the file whose lock says that the folder is in use


class OwnFolder:
    """A temporary folder, locked as long as its process lives.

    A lock, not a process id: containers with a process namespace each may share a folder.
    """

    def __init__(self, prefix: str) -> None:
        remove_abandoned(prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        if fcntl is not None:
            self._lock = os.open(self.path / "unlocked", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            with suppress(OSError):  # a file system without locks: the folder is never abandoned
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Renamed once it is locked: an unlocked owner is that of a killed process.
                (self.path / "unlocked").rename(self.path / _OWNER)

    def remove(self) -> None:
        """Remove the folder and its files."""
        shutil.rmtree(self.path, ignore_errors=True)
        if fcntl is not None and self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def remove_abandoned(prefix: str) -> None:
    """Remove this user's folders with a prefix whose processes have ended."""
    if fcntl is None:
        return
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):
            found = folder.lstat()
            if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
                continue
            owner = os.open(folder / _OWNER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(owner)
