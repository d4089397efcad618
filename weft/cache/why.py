"""Reasons for cache misses: the nearest entry, and how its key differs."""

from __future__ import annotations

from collections.abc import Iterable

from weft.cache.ledger import Miss, UsageCounts
from weft.cache.store import Stored
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class KeyDifference:
    """A part of a key that differs between two entries, as text."""

    part: str
    wanted: str
    there: str


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason for a miss."""

    sentence: str
    nearest: Stored | None = None
    differences: tuple[KeyDifference, ...] = ()


def why(miss: Miss, page: UsageCounts, stored: Iterable[Stored]) -> Reason:
    """The reason for a miss, from the store's contents at that time."""
    if miss.cause == "damaged":
        return Reason("the entry was there, but its checksum was wrong: it was rebuilt")
    if miss.cause == "unreadable":
        return Reason("the entry was there, but it could not be read")
    if miss.key.digest in page.evicted:
        return Reason("the entry was removed, being the longest unused, to make room")
    before = [s for s in stored if s.record.made < miss.time and s.record.key != miss.key]
    before = [s for s in before if s.record.key.kind == miss.key.kind]
    if not before:
        cleared = page.cleared and page.cleared < miss.time
        emptied = "since the cache was cleared" if cleared else "yet"
        return Reason(f"there was no entry of the kind {miss.key.kind} {emptied}")
    nearest = min(before, key=lambda s: _distance(miss, s))
    differences = _differences(miss, nearest)
    differs = f"the nearest entry differs in its {' and '.join(d.part for d in differences)}"
    if all(s.record.key.name != miss.key.name for s in before):
        differs = f"nothing of the name {miss.key.name} was there yet; {differs}"
    return Reason(differs, nearest, differences)


def _distance(miss: Miss, stored: Stored) -> tuple[int, bool, float]:
    """A distance between keys: parts that differ, another name, and time."""
    key = stored.record.key
    parts = dict(key.parts)
    differing = sum(parts.get(part) != value for part, value in miss.key.parts)
    return differing, key.name != miss.key.name, miss.time - stored.record.made


def _differences(miss: Miss, stored: Stored) -> tuple[KeyDifference, ...]:
    there = dict(stored.record.key.parts)
    return tuple(
        KeyDifference(part, *_apart(value, there.get(part, "nothing")))
        for part, value in miss.key.parts
        if there.get(part) != value
    )


def _apart(wanted: str, there: str) -> tuple[str, str]:
    """Two values; of long lists (processor features) only the difference."""
    first, second = wanted.split(","), there.split(",")
    if min(len(first), len(second)) < 2:
        return wanted, there
    return ",".join(f for f in first if f not in second), ",".join(
        f for f in second if f not in first
    )
