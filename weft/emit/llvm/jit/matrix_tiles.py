"""Permission to use matrix tiles (AMX), which Linux grants to processes on request.

Processors advertise them, but the system must save their state on context switches. A process
requests them once for all of its threads, running ones included.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import sys

_ARCH_PRCTL = 158  # syscall number
_SUPPORTED, _PERMITTED, _REQUEST = 0x1021, 0x1022, 0x1023  # ARCH_..._XCOMP_... of asm/prctl.h
_CONFIGURATION, _DATA = 17, 18  # XSTATE component bits
_NEEDED = 1 << _CONFIGURATION | 1 << _DATA


@functools.cache
def tiles_permitted() -> bool:
    """Request AMX: whether the system supports and grants it."""
    if sys.platform != "linux" or platform.machine() != "x86_64" or sys.maxsize < 1 << 32:
        return False
    # The system's components are those enabled in XCR0 (XGETBV): a processor may advertise more
    # than a hypervisor allows.
    if _xstate_mask(_SUPPORTED) & _NEEDED != _NEEDED:
        return False
    libc = ctypes.CDLL(None)
    granted = libc.syscall(_ARCH_PRCTL, _REQUEST, ctypes.c_ulong(_DATA)) == 0
    return granted and _xstate_mask(_PERMITTED) & _NEEDED == _NEEDED


def _xstate_mask(what: int) -> int:
    """A mask of XSTATE components; 0 if the system call is unknown."""
    found = ctypes.c_ulong(0)
    failed = ctypes.CDLL(None).syscall(_ARCH_PRCTL, what, ctypes.byref(found))
    return 0 if failed else found.value
