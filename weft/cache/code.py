"""A digest of Weft's own code, part of the cache key of entries that depend on it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from weft.cache.entry import Key
from weft.cache.store import the_store

_ROOT = Path(__file__).parent.parent
# The folders whose code decides what a kernel is and how it is emitted.
_FOLDERS = ("ir", "ops", "kernels", "executable", "tile", "emit", "native")


@cache
def code_digest() -> str:
    """The digest of the code that builds and emits kernels.

    It hashes file contents, cached by names, sizes and modification times, which Python's own
    bytecode cache relies on too.
    """
    key = Key("digest", "weft", (("files", files_digest([_ROOT / name for name in _FOLDERS])),))
    known = the_store().get(key, counted=False)
    if known is None:
        known = _contents_digest().encode()
        the_store().put(key, known)
    return known.decode()


def files_digest(folders: Sequence[Path]) -> str:
    """A digest of the names, sizes and times of all source files in folders."""
    lines = []
    for folder in folders:
        for file in _files(folder):
            status = file.stat()
            lines.append(f"{file.path} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def _files(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _files(entry.path)
            elif entry.name.endswith(".py"):
                yield entry


def _contents_digest() -> str:
    digest = hashlib.sha256()
    for folder in _FOLDERS:
        for path in sorted((_ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()
