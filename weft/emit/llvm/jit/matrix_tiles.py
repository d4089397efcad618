"""Whether this process may use matrix tiles: registers that Linux gives to those who ask.

Processors advertise them; the system has to keep them when threads take turns. A process asks
once, for all of its threads, those that run already included.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import sys

_ARCH_PRCTL = 158  # the number of the system call
_SUPPORTED, _PERMITTED, _REQUEST = 0x1021, 0x1022, 0x1023  # ARCH_..._XCOMP_... of asm/prctl.h
_CONFIGURATION, _DATA = 17, 18  # parts of a thread's state
_NEEDED = 1 << _CONFIGURATION | 1 << _DATA


@functools.cache
def tiles_permitted() -> bool:
    """Ask for matrix tiles: whether the system keeps their state, and gives them to us."""
    if sys.platform != "linux" or platform.machine() != "x86_64" or sys.maxsize < 1 << 32:
        return False
    # The system's parts are those that it has switched on (what XGETBV tells): a processor may
    # advertise more than a hypervisor lets it have.
    if _asked(_SUPPORTED) & _NEEDED != _NEEDED:
        return False
    libc = ctypes.CDLL(None)
    granted = libc.syscall(_ARCH_PRCTL, _REQUEST, ctypes.c_ulong(_DATA)) == 0
    return granted and _asked(_PERMITTED) & _NEEDED == _NEEDED


def _asked(what: int) -> int:
    """Parts of a thread's state, a bit for each; 0 if the system does not know the question."""
    found = ctypes.c_ulong(0)
    failed = ctypes.CDLL(None).syscall(_ARCH_PRCTL, what, ctypes.byref(found))
    return 0 if failed else found.value
