"""Stacks as native code reads them, from a tuple alone.

In a call with many arguments most time would go to looking up their addresses in Python. Native
code reads them from the tuple alone, if this CPython has the expected object layout.
"""

from __future__ import annotations

from weft.array.stacked import Stacked
from weft.native.cpython import NumpyArray, PyObject, slot_offsets
from weft.native.memory import Member, Pointer


class StackObject(PyObject, offsets=slot_offsets(Stacked)):
    """A stack: its kind, and the array that holds its elements."""

    kind: Member[Pointer]
    data: Member[NumpyArray]
