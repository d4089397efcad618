"""The data caches of a core, whose sizes blocks of products are fitted to."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

USUAL = (32 << 10, 512 << 10)  # bytes of the first and of the second cache, where nothing is known
_LINUX = Path("/sys/devices/system/cpu/cpu0/cache")
# macOS names those of its fast cores first; older systems have one kind of core.
_MACOS = (
    ("hw.perflevel0.l1dcachesize", "hw.l1dcachesize"),
    ("hw.perflevel0.l2cachesize", "hw.l2cachesize"),
)


def cache_sizes() -> tuple[int, int]:
    """The bytes of this machine's first and second data cache, or usual ones."""
    if sys.platform == "darwin":
        near, middle = (next(filter(None, map(_macos, names)), None) for names in _MACOS)
        return near or USUAL[0], middle or USUAL[1]
    found = dict(zip((1, 2), USUAL, strict=True))
    for index in sorted(_LINUX.glob("index*")):
        try:
            kind, level, size = (
                (index / part).read_text().strip() for part in ("type", "level", "size")
            )
        except OSError:
            continue
        if kind != "Instruction" and int(level) in found and size.endswith("K"):
            found[int(level)] = int(size[:-1]) << 10
    return found[1], found[2]


def _macos(name: str) -> int:
    """A number that macOS knows by name; 0 if it does not."""
    value, size = ctypes.c_int64(0), ctypes.c_size_t(8)
    ask = ctypes.CDLL(None).sysctlbyname
    given = (ctypes.byref(value), ctypes.byref(size))
    missing = ask(name.encode(), *given, None, ctypes.c_size_t(0))
    return 0 if missing else value.value
