"""The processor's floating-point mode while the compiler runs: IEEE's, subnormal numbers kept.

jaxlib's threads flush subnormal numbers to zero, and Python code that runs in them would, too: a
constant of a program would lose its value while it is read or folded.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_ROOM = 64  # bytes that are enough for any processor's `fenv_t`
_DEFAULT = ctypes.c_void_p(-1)  # FE_DFL_ENV, of glibc, musl and Apple's libm on x86-64 and arm64


@cache
def _libm() -> Any:
    """The C library's mathematics; None where it is not found or lacks the functions."""
    for name in (None, ctypes.util.find_library("m")):
        try:
            found = ctypes.CDLL(name)
            found.fegetenv, found.fesetenv  # noqa: B018  # looked up now
        except (OSError, AttributeError, TypeError):
            continue
        return found
    return None


@contextmanager
def ieee_arithmetic() -> Iterator[None]:
    """Compute as IEEE says in this thread, and as before when this ends."""
    libm = _libm()
    if libm is None:
        yield
        return
    before = ctypes.create_string_buffer(_ROOM)
    libm.fegetenv(before)
    libm.fesetenv(_DEFAULT)
    try:
        yield
    finally:
        libm.fesetenv(before)
