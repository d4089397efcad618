"""Interning by number: equal objects share a number, which is fast to compare."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


class Numbers:
    """Numbers objects in order of first use, with a fast look-up by identity."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[int, Hashable]] = {}
        self._seen: dict[int, tuple[int, Hashable]] = {}  # by id; objects are kept alive
        self._alive: list[Hashable] = []

    def number(self, thing: Hashable) -> int:
        """The number of an object, the same for equal ones."""
        return (self._seen.get(id(thing)) or self._first(thing))[0]

    def one(self, thing: T) -> T:
        """The first object that equals this one."""
        return (self._seen.get(id(thing)) or self._first(thing))[1]  # type: ignore[return-value]

    def _first(self, thing: Hashable) -> tuple[int, Hashable]:
        found = self._known.setdefault(thing, (len(self._known), thing))
        self._seen[id(thing)] = found
        self._alive.append(thing)
        return found
