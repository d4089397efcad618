"""Interning: immutable objects that are equal are one object, so that equality is identity."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_LOCK = threading.RLock()  # a finalizer may make an object while another one is entered


class InternTable(Generic[K, V]):
    """Interned objects by what they are equal by, for as long as one of them is alive."""

    def __init__(self) -> None:
        self._known: weakref.WeakValueDictionary[K, V] = weakref.WeakValueDictionary()

    def get(self, key: K) -> V | None:
        """The object of a key, if there is one."""
        return self._known.get(key)

    def enter(self, key: K, made: V) -> V:
        """The object of a key: a new one, or that of another thread which was first.

        `WeakValueDictionary.setdefault` alone is no atomic operation: two threads could each get
        an object of their own, and equal types would differ.
        """
        with _LOCK:
            return self._known.setdefault(key, made)


def _forked() -> None:
    """The lock may have been held by a thread that the child does not have."""
    global _LOCK
    _LOCK = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
