"""How many threads this process should use: for kernels, and for compiling them."""

from __future__ import annotations

import os
from pathlib import Path

from weft.knobs import THREADS

_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # "200000 100000": microseconds of each 100000


def thread_count() -> int:
    """One thread for each core that this process may use, or the number in WEFT_THREADS."""
    asked = THREADS.value()
    if asked is not None:
        return asked
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(cores or 1, _allowed(_QUOTA)))


def _allowed(quota: Path) -> int:
    """How many cores' worth of time a container may use; a large number where there is no limit."""
    try:
        most, period = quota.read_text().split()
        return -(-int(most) // int(period))
    except (OSError, ValueError):
        return 1 << 16
