"""The object layout of stacks, for native code.

Looking up the addresses of arguments in Python would take most of a call that has many. Native code
reads them from the tuple of stacks, if this CPython has the expected object layout.
"""

from __future__ import annotations

from weft.array.stacked import Stacked
from weft.native.cpython import NumpyArray, PyObject, slot_offsets
from weft.native.memory import Member, Pointer


class StackObject(PyObject, offsets=slot_offsets(Stacked)):
    """A stack: its kind, and the array that holds its elements."""

    kind: Member[Pointer]
    data: Member[NumpyArray]
