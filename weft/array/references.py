"""Offsets in CPython objects that native code reads: stacks of a tuple, their kinds and data.

In a call with many arguments most time would go to looking up their addresses in Python. Native
code reads them from the tuple alone, if this CPython has the expected object layout.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

import numpy as np

from weft.array.cpython import reads_objects
from weft.array.stacked import Stacked, kind_of
from weft.mesh.parts import Atoms

_WORD = 8  # word size in bytes


@dataclass(frozen=True, slots=True)
class Offsets:
    """Byte offsets of references inside of objects."""

    items: int  # tuple: first item
    type: int  # any object: type
    kind: int  # stack: kind
    data: int  # stack: numpy array
    elements: int  # ndarray: data pointer


@cache
def offsets() -> Offsets | None:
    """The offsets, probed on live objects; None if the layout is not as expected."""
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
    """The offset in an object of a word with this value: another object's address, or a number."""
    wanted = held if isinstance(held, int) else id(held)
    words = [ctypes.c_size_t.from_address(id(owner) + at).value for at in places]
    return places[words.index(wanted)] if wanted in words else None
