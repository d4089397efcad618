"""Sizes of the data caches of a core, which blocks, tasks and prefetches are fitted to."""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path

from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Caches:
    """Bytes of L1 and L2 that one core has to itself, and of the last level, which cores share."""

    l1: int = 32 << 10
    l2: int = 512 << 10
    last: int = 32 << 20


_LINUX = Path("/sys/devices/system/cpu/cpu0/cache")
# macOS: the performance cores' first; older systems have one kind.
_MACOS = {
    "l1": ("hw.perflevel0.l1dcachesize", "hw.l1dcachesize"),
    "l2": ("hw.perflevel0.l2cachesize", "hw.l2cachesize"),
    "cores of an l2": ("hw.perflevel0.cpusperl2",),
    "last": ("hw.l3cachesize",),
}
_SIBLINGS = 2  # hardware threads of a core: they share its caches and are no cores of their own
# A virtual machine sees all of a last level that it shares with others.
_MOST_LAST = 64 << 20


def caches_here() -> Caches:
    """The caches of this machine; usual sizes where the system reports none."""
    sizes = _on_macos() if sys.platform == "darwin" else _on_linux(_LINUX)
    usual = Caches()
    l2 = sizes.get("l2") or usual.l2
    # Without an L3 the L2 is the last level, as on Apple's processors (where cores share one).
    last = sizes.get("last") or sizes.get("whole l2") or usual.last
    return Caches(sizes.get("l1") or usual.l1, l2, min(last, _MOST_LAST))


def _on_linux(folder: Path) -> dict[str, int]:
    """Sizes by level, from the files of one core."""
    sizes: dict[str, int] = {}
    for index in sorted(folder.glob("index*")):
        try:
            kind, level, size, sharing = (
                (index / part).read_text().strip()
                for part in ("type", "level", "size", "shared_cpu_list")
            )
        except OSError:
            continue
        if kind == "Instruction" or not size.endswith("K"):
            continue
        nbytes = int(size[:-1]) << 10
        if level == "1":
            sizes["l1"] = nbytes
        elif level == "2":
            sizes |= {"l2": nbytes // _cores(sharing), "whole l2": nbytes}
        elif level == "3":
            sizes["last"] = nbytes
    return sizes


def _cores(listed: str) -> int:
    """How many cores a list of hardware threads has, such as `0-3,8-11`."""
    ranges = [re.match(r"(\d+)(?:-(\d+))?$", part) for part in listed.split(",")]
    threads = sum(int(r[2] or r[1]) - int(r[1]) + 1 for r in ranges if r)
    return 1 if threads <= _SIBLINGS else threads


def _on_macos() -> dict[str, int]:
    """Sizes by level, as the kernel reports them."""
    named = {what: next(filter(None, map(_sysctl, names)), 0) for what, names in _MACOS.items()}
    whole = named["l2"]
    return named | {"l2": whole // max(1, named["cores of an l2"]), "whole l2": whole}


def _sysctl(name: str) -> int:
    """A sysctl number of macOS; 0 if unknown."""
    value, size = ctypes.c_int64(0), ctypes.c_size_t(8)
    ask = ctypes.CDLL(None).sysctlbyname
    given = (ctypes.byref(value), ctypes.byref(size))
    missing = ask(name.encode(), *given, None, ctypes.c_size_t(0))
    return 0 if missing else value.value
