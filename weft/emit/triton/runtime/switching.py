"""A short switch interval of Python's threads while kernels are compiled.

A compiler's pass ends after less than a millisecond without the GIL, and then waits for it: by
default for 5 ms, as long as another thread runs Python.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

INTERVAL = 2e-4  # seconds


class _Switching:
    """The interval to restore, while any thread compiles."""

    def __init__(self) -> None:
        self.lock, self.count, self.before = threading.Lock(), 0, 0.0

    def begin(self) -> None:
        with self.lock:
            if self.count == 0:
                self.before = sys.getswitchinterval()
                sys.setswitchinterval(min(INTERVAL, self.before))
            self.count += 1

    def end(self) -> None:
        with self.lock:
            self.count -= 1
            if self.count == 0:
                sys.setswitchinterval(self.before)


_SWITCHING = _Switching()


@contextmanager
def brisk_threads() -> Iterator[None]:
    """Threads that wait for the GIL get it sooner, in this context."""
    _SWITCHING.begin()
    try:
        yield
    finally:
        _SWITCHING.end()
