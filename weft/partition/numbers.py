"""Equal things as one: a number for each, quick to compare."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


class Numbers:
    """Numbers things in the order they are first seen; what was seen is found by its identity."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[int, Hashable]] = {}
        self._seen: dict[int, tuple[int, Hashable]] = {}  # by identity; things are kept alive
        self._alive: list[Hashable] = []

    def number(self, thing: Hashable) -> int:
        """The number of a thing, the same for all that are equal."""
        return (self._seen.get(id(thing)) or self._first(thing))[0]

    def one(self, thing: T) -> T:
        """Of all that are equal to a thing the one that was seen first."""
        return (self._seen.get(id(thing)) or self._first(thing))[1]  # type: ignore[return-value]

    def _first(self, thing: Hashable) -> tuple[int, Hashable]:
        found = self._known.setdefault(thing, (len(self._known), thing))
        self._seen[id(thing)] = found
        self._alive.append(thing)
        return found
