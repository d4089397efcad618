"""Choices that were measured once: which way is the fastest, by machine and class of shapes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import TypeAlias

from weft.cache.entry import Key, decode
from weft.cache.store import Stored, the_store

Choice: TypeAlias = "str | int | float | list[Choice] | dict[str, Choice]"


def remembered(kind: str, machine: str, shape_class: str, *, counted: bool = True) -> Choice | None:
    """What was chosen for a kind of kernel on this machine and such shapes, or None.

    Who only looks, and makes nothing where there is nothing, is not `counted` in the ledger.
    """
    data = the_store().get(_key(kind, machine, shape_class), counted=counted)
    if data is None:
        return None
    choice: Choice = json.loads(data)
    return choice


def is_anything_remembered() -> bool:
    """Whether there may be choices at all: of a new cache nothing need be asked."""
    return the_store().holds("choice")


def choices() -> Iterator[tuple[Stored, Choice]]:
    """All that is remembered, of any machine."""
    for stored in the_store().entries("choice"):
        with contextlib.suppress(OSError):  # gone meanwhile
            data = decode(stored.path.read_bytes(), stored.record.key)
            if data is not None:
                yield stored, json.loads(data)


def remember(kind: str, machine: str, shape_class: str, choice: Choice) -> None:
    """Write down a choice, for all processes to come."""
    the_store().put(_key(kind, machine, shape_class), json.dumps(choice).encode())


def _key(kind: str, machine: str, shape_class: str) -> Key:
    parts = (("what is chosen", kind), ("machine", machine), ("shape class", shape_class))
    return Key("choice", f"{kind} {shape_class}", parts)
