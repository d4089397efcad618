"""Where Python keeps what native code reads by itself: the stacks of a tuple, their kinds and data.

A call with many arguments takes most of its time to say where each of them lies. Native code finds
that out faster, from the tuple alone, if this Python keeps things where others of its kind do.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

import numpy as np

from weft.array.cpython import reads_objects
from weft.array.stacked import Stacked, kind_of
from weft.mesh.parts import Atoms

_WORD = 8  # bytes


@dataclass(frozen=True, slots=True)
class Offsets:
    """How many bytes into an object what it refers to is."""

    items: int  # of a tuple: the first
    type: int  # of any object
    kind: int  # of a stack
    data: int  # of a stack: an array of numpy
    elements: int  # of an array


@cache
def offsets() -> Offsets | None:
    """Where things are; None if this Python does not keep them where it is known how to look."""
    if not reads_objects():
        return None
    data = np.zeros((1, 3), np.float32)
    probe = Stacked(data, Atoms((1,)), kind=kind_of(Atoms((1,)), data.shape, data.dtype))
    found = [
        _find((probe, data), probe, tuple.__basicsize__),
        _find(probe, Stacked, object.__basicsize__ - _WORD),
        *[
            _find(probe, held, *range(0, Stacked.__basicsize__, _WORD))
            for held in (probe.kind, data)
        ],
        _find(data, int(data.ctypes.data), object.__basicsize__),
    ]
    return None if None in found else Offsets(*[at or 0 for at in found])


def _find(owner: object, held: object, *places: int) -> int | None:
    """At which of some places of an object there is a word: the address of another, or a number."""
    wanted = held if isinstance(held, int) else id(held)
    words = [ctypes.c_size_t.from_address(id(owner) + at).value for at in places]
    return places[words.index(wanted)] if wanted in words else None
