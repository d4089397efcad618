"""Pausing the garbage collector while a program is built: all of its objects stay alive."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_MOST = 500_000  # at least so many objects are taken for old ones before a collection of these


class _Promoted:
    """The number of objects taken for old ones since the last collection of old objects."""

    count = 0
    limit = _MOST
    collections = 0  # of old objects, by whomever

    @classmethod
    def add(cls, count: int) -> None:
        """Count more of them."""
        collections = _collections()
        cls.count = count + (cls.count if collections == cls.collections else 0)
        cls.collections = collections


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
def building() -> Iterator[None]:
    """Pause the collector while data is built that stays alive, and then take it for old objects.

    A young collection would look at each of its objects and find no garbage. The collector does not
    count these objects: as it does for others, all are collected when there are a quarter more.
    """
    enabled = gc.isenabled()
    with without_gc():
        yield
        _Promoted.add(gc.get_count()[0])
        _promote()
    if enabled and _Promoted.count > _Promoted.limit:
        gc.collect()
        _Promoted.limit = max(_MOST, len(gc.get_objects()) // 4)


def _collections() -> int:
    """The number of collections of old objects so far."""
    return int(gc.get_stats()[-1]["collections"])


@contextmanager
def importing() -> Iterator[None]:
    """Pause the collector while modules are imported, and then take them for old objects.

    A young collection would look at each of their objects, which takes as long as many an import.
    """
    with without_gc():
        yield
        _promote()


def _promote() -> None:
    """Move all objects into the oldest generation; what a program has frozen stays so."""
    if not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()
