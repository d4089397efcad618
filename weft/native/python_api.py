"""Functions of Python's C API that native code calls."""
# mypy: disable-error-code="empty-body"

from __future__ import annotations

import sys
from collections.abc import Callable

from weft.native.function import extern
from weft.native.memory import Pointer, i32

ENDS = "Py_IsFinalizing" if sys.version_info >= (3, 13) else "_Py_IsFinalizing"


@extern
def PyGILState_Ensure() -> i32:
    """Take Python's lock."""


@extern
def PyGILState_Release(lock: i32) -> None:
    """Give Python's lock back, as it was."""


@extern
def PyGILState_Check() -> i32:
    """Whether this thread has Python's lock."""


@extern
def PyEval_SaveThread() -> Pointer:
    """Give Python's lock away."""


@extern
def Py_IsInitialized() -> i32:
    """Whether there is a Python."""


@extern(name=ENDS)
def Py_IsFinalizing() -> i32:
    """Whether Python is about to end."""


@extern
def Py_AddPendingCall(function: Callable[[Pointer], i32], given: Pointer) -> i32:
    """Have the main thread call a function between two steps of Python; 0 if it will."""


@extern
def Py_DecRef(held: Pointer) -> None:
    """Let go of an object."""


@extern
def PyErr_CheckSignals() -> i32:
    """Run the handlers of signals that came, in the main thread; not 0 if one raises."""


@extern
def PyErr_Fetch(type: Pointer, value: Pointer, trace: Pointer) -> None:
    """Take the pending exception, which may be none."""


@extern
def PyErr_Restore(type: Pointer, value: Pointer, trace: Pointer) -> None:
    """Have an exception pending again."""


@extern
def PyErr_Clear() -> None:
    """Forget the pending exception."""


@extern
def PyErr_SetNone(type: Pointer) -> None:
    """Raise an exception without a value."""


@extern
def PyErr_ExceptionMatches(types: Pointer) -> i32:
    """Whether the pending exception is of a type."""


@extern
def PyLong_FromVoidPtr(address: Pointer) -> Pointer:
    """A number; null if there is no memory."""


@extern
def PyLong_AsVoidPtr(number: Pointer) -> Pointer:
    """The address that a number is."""


@extern
def PyObject_Vectorcall(function: Pointer, args: Pointer, count: int, names: Pointer) -> Pointer:
    """Call a Python function; null if it raises."""


@extern
def PyCapsule_IsValid(capsule: Pointer, name: bytes) -> i32:
    """Whether a capsule holds something under a name."""


@extern
def PyCapsule_GetPointer(capsule: Pointer, name: bytes) -> Pointer:
    """The pointer in a capsule."""
