"""A cache in memory with a bound: the least recently used entry is dropped first."""

from __future__ import annotations

from typing import Generic, TypeVar

KeyT = TypeVar("KeyT")
EntryT = TypeVar("EntryT")


class RecentlyUsed(dict[KeyT, EntryT], Generic[KeyT, EntryT]):
    """At most so many entries, in the order of their last use."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.dropped = 0  # the number of entries that were

    def used(self, key: KeyT) -> EntryT | None:
        """The entry of a key, which is now the most recent one; or None."""
        if key not in self:
            return None
        entry = self[key] = self.pop(key)  # a dict keeps the order of insertion
        return entry

    def put(self, key: KeyT, entry: EntryT) -> list[EntryT]:
        """Add an entry; returns those that are dropped for it."""
        self[key] = entry
        gone = [self.pop(old) for old in [*self][: max(0, len(self) - self.most)]]
        self.dropped += len(gone)
        return gone
