"""Sizes of a core's data caches, for the blocking of contractions."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

USUAL = (32 << 10, 512 << 10)  # default L1 and L2 sizes in bytes
_LINUX = Path("/sys/devices/system/cpu/cpu0/cache")
# macOS: the performance cores' first; older systems have one kind.
_MACOS = (
    ("hw.perflevel0.l1dcachesize", "hw.l1dcachesize"),
    ("hw.perflevel0.l2cachesize", "hw.l2cachesize"),
)


def cache_sizes() -> tuple[int, int]:
    """The L1 and L2 data cache sizes of this machine, or defaults."""
    if sys.platform == "darwin":
        near, middle = (next(filter(None, map(_macos, names)), None) for names in _MACOS)
        return near or USUAL[0], middle or USUAL[1]
    sizes = dict(zip((1, 2), USUAL, strict=True))
    for index in sorted(_LINUX.glob("index*")):
        try:
            kind, level, size = (
                (index / part).read_text().strip() for part in ("type", "level", "size")
            )
        except OSError:
            continue
        if kind != "Instruction" and int(level) in sizes and size.endswith("K"):
            sizes[int(level)] = int(size[:-1]) << 10
    return sizes[1], sizes[2]


def _macos(name: str) -> int:
    """A sysctl number of macOS; 0 if unknown."""
    value, size = ctypes.c_int64(0), ctypes.c_size_t(8)
    ask = ctypes.CDLL(None).sysctlbyname
    given = (ctypes.byref(value), ctypes.byref(size))
    missing = ask(name.encode(), *given, None, ctypes.c_size_t(0))
    return 0 if missing else value.value
