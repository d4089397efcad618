"""Choices that were measured once: which way is the fastest, by machine and class of shapes."""

from __future__ import annotations

import json
from typing import TypeAlias

from weft.cache.entry import Key
from weft.cache.store import the_store

Choice: TypeAlias = "str | int | float | list[Choice] | dict[str, Choice]"


def remembered(kind: str, machine: str, shape_class: str) -> Choice | None:
    """What was chosen for a kind of kernel on this machine and such shapes, or None."""
    data = the_store().get(_key(kind, machine, shape_class))
    if data is None:
        return None
    choice: Choice = json.loads(data)
    return choice


def remember(kind: str, machine: str, shape_class: str, choice: Choice) -> None:
    """Write down a choice, for all processes to come."""
    the_store().put(_key(kind, machine, shape_class), json.dumps(choice).encode())


def _key(kind: str, machine: str, shape_class: str) -> Key:
    parts = (("what is chosen", kind), ("machine", machine), ("shape class", shape_class))
    return Key("choice", f"{kind} {shape_class}", parts)
