"""Functions of Python's C API that native code calls."""
# mypy: disable-error-code="empty-body"

from __future__ import annotations

import sys
from collections.abc import Callable

from weft.native.function import extern
from weft.native.memory import Pointer, i32

# Private before Python 3.13.
ENDS = "Py_IsFinalizing" if sys.version_info >= (3, 13) else "_Py_IsFinalizing"


@extern
def PyGILState_Ensure() -> i32:
    """Acquire the GIL."""


@extern
def PyGILState_Release(lock: i32) -> None:
    """Release the GIL: back to the state that `PyGILState_Ensure` returned."""


@extern
def PyGILState_Check() -> i32:
    """Whether this thread holds the GIL."""


@extern
def PyEval_SaveThread() -> Pointer:
    """Release the GIL and detach the thread state, which is returned."""


@extern
def Py_IsInitialized() -> i32:
    """Whether the interpreter is initialized."""


@extern(name=ENDS)
def Py_IsFinalizing() -> i32:
    """Whether the interpreter is shutting down."""


@extern
def Py_AddPendingCall(function: Callable[[Pointer], i32], argument: Pointer) -> i32:
    """Have the main thread call a function between two bytecodes; 0 if it is queued."""


@extern
def Py_DecRef(held: Pointer) -> None:
    """Drop a reference."""


@extern
def PyErr_CheckSignals() -> i32:
    """Run the handlers of pending signals, in the main thread; not 0 if one raises."""


@extern
def PyErr_Fetch(type: Pointer, value: Pointer, trace: Pointer) -> None:
    """Fetch and clear the pending exception; nulls if there is none."""


@extern
def PyErr_Restore(type: Pointer, value: Pointer, trace: Pointer) -> None:
    """Make a fetched exception pending again."""


@extern
def PyErr_Clear() -> None:
    """Clear the pending exception."""


@extern
def PyErr_SetNone(type: Pointer) -> None:
    """Raise an exception without a value."""


@extern
def PyErr_ExceptionMatches(types: Pointer) -> i32:
    """Whether the pending exception is of a type."""


@extern
def PyLong_FromVoidPtr(address: Pointer) -> Pointer:
    """A Python int of an address; null on failure."""


@extern
def PyLong_AsVoidPtr(number: Pointer) -> Pointer:
    """The address that a Python int holds."""


@extern
def PyObject_Vectorcall(function: Pointer, args: Pointer, count: int, names: Pointer) -> Pointer:
    """Call a Python function; null if it raises."""


@extern
def PyCapsule_IsValid(capsule: Pointer, name: bytes) -> i32:
    """Whether a capsule has this name and holds a pointer."""


@extern
def PyCapsule_GetPointer(capsule: Pointer, name: bytes) -> Pointer:
    """The pointer in a capsule."""
