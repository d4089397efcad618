"""CPython versions whose object layout native code may read: those that were tested."""

from __future__ import annotations

import ctypes
import sys
import warnings
from functools import cache

TRIED = ((3, 11), (3, 12), (3, 13))  # CPython versions
_NAMES = {"cpython": "CPython", "pypy": "PyPy"}


def untried() -> str | None:
    """The name of this Python if its object layout is untested, else None."""
    kind = sys.implementation.name
    name = " ".join([_NAMES.get(kind, kind), ".".join(map(str, sys.version_info[:3]))])
    if "free-threading build" in sys.version:
        return f"{name}, free-threaded,"
    if hasattr(sys, "getobjects"):  # debug builds prefix every object with two more words
        return f"{name} with traced references"
    if ctypes.sizeof(ctypes.c_void_p) != 8:
        return f"{name} with 32 bits"
    tried = kind == "cpython" and sys.version_info[:2] in TRIED
    return None if tried else name


@cache
def reads_objects() -> bool:
    """Whether native code reads Python objects; warns once if not."""
    name = untried()
    if name is None:
        return True
    known = ", ".join([".".join(map(str, version)) for version in TRIED])
    warnings.warn(
        f"Weft was not tried on {name} but on CPython {known}: native code does not read "
        "Python's objects, so calls of small programs are slower",
        RuntimeWarning,
        stacklevel=3,
    )
    return False
