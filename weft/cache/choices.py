"""Tuning results: the fastest candidate, by machine and shape class."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import TypeAlias

from weft.cache.entry import Key, decode
from weft.cache.store import Stored, the_store

Choice: TypeAlias = "str | int | float | list[Choice] | dict[str, Choice]"


def remembered(kind: str, machine: str, shape_class: str, *, counted: bool = True) -> Choice | None:
    """The choice for a kind of kernel on this machine and shape class, or None.

    A lookup that would not measure on a miss is not `counted` in the ledger.
    """
    data = the_store().get(_key(kind, machine, shape_class), counted=counted)
    if data is None:
        return None
    choice: Choice = json.loads(data)
    return choice


def is_anything_remembered() -> bool:
    """Whether any choices may exist: skips lookups in a new cache."""
    return the_store().holds("choice")


def choices() -> Iterator[tuple[Stored, Choice]]:
    """All stored choices, of any machine."""
    for stored in the_store().entries("choice"):
        with contextlib.suppress(OSError):  # removed concurrently
            data = decode(stored.path.read_bytes(), stored.record.key)
            if data is not None:
                yield stored, json.loads(data)


def remember(kind: str, machine: str, shape_class: str, choice: Choice) -> None:
    """Store a choice."""
    the_store().put(_key(kind, machine, shape_class), json.dumps(choice).encode())


def _key(kind: str, machine: str, shape_class: str) -> Key:
    parts = (("what is chosen", kind), ("machine", machine), ("shape class", shape_class))
    return Key("choice", f"{kind} {shape_class}", parts)
