"""IEEE floating-point mode during compilation: no flushing of subnormals.

jaxlib's threads run with flush-to-zero, which would affect Python code in them: subnormal constants
would become 0 while a program is parsed or folded.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_ROOM = 64  # bytes; enough for any platform's `fenv_t`
_DEFAULT = ctypes.c_void_p(-1)  # FE_DFL_ENV, of glibc, musl and Apple's libm on x86-64 and arm64


@cache
def _libm() -> Any:
    """The C math library; None if not found, or without these functions."""
    # The interpreter itself has it, as a rule: a search starts another process.
    for is_searched in (False, True):
        try:
            library = ctypes.CDLL(ctypes.util.find_library("m") if is_searched else None)
            library.fegetenv, library.fesetenv  # noqa: B018  # attribute access resolves the symbol
        except (OSError, AttributeError, TypeError):
            continue
        return library
    return None


@contextmanager
def ieee_arithmetic() -> Iterator[None]:
    """Set IEEE mode in this thread for the duration of the context."""
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
