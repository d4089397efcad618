"""Interning: immutable objects that are equal are one object, so that equality is identity."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Generic, TypeVar

from weft.native.forks import after_fork

K = TypeVar("K")
V = TypeVar("V")

# Reentrant: a finalizer may intern an object while this thread holds the lock.
_LOCK = threading.RLock()


class InternTable(Generic[K, V]):
    """Interned objects by their equality key; entries die with their last strong reference."""

    def __init__(self) -> None:
        self._known: weakref.WeakValueDictionary[K, V] = weakref.WeakValueDictionary()

    def get(self, key: K) -> V | None:
        """The interned object of a key, or None."""
        return self._known.get(key)

    def enter(self, key: K, candidate: V) -> V:
        """Intern an object under a key; returns the one that a faster thread interned, if any.

        `WeakValueDictionary.setdefault` alone is not atomic: two threads could each get
        their own object, and equal types would compare unequal.
        """
        with _LOCK:
            return self._known.setdefault(key, candidate)

    def interned(self, make: Callable[..., V], most: int) -> Callable[..., V]:
        """`make` with interned results, by its arguments; a cache of `most` makes it quick.

        A cache alone interns nothing: threads that miss at once get objects of their own, and what
        it drops is made again while the old one is in use.
        """

        @lru_cache(maxsize=most)
        def look_up(*key: Any) -> V:
            known = self.get(key)  # type: ignore[arg-type]  # this table's keys are tuples
            return self.enter(key, make(*key)) if known is None else known  # type: ignore[arg-type]

        return look_up


def _forked() -> None:
    """Replace the lock after a fork: a thread that the child lacks may have held it."""
    global _LOCK
    _LOCK = threading.RLock()


after_fork(_forked)
