"""Pausing the garbage collector while a program is built: all of its objects stay alive."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_gc() -> Iterator[None]:
    """Pause the cyclic garbage collector."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def importing() -> Iterator[None]:
    """Pause the collector while modules are imported, and then take them for old objects.

    A young collection would look at each of their objects, which takes as long as many an import.
    """
    with without_gc():
        yield
        if not gc.get_freeze_count():  # what a program has frozen stays so
            gc.freeze()
            gc.unfreeze()  # into the oldest generation
