"""Interrupts of native loops: the check whether a signal handler has raised.

Python calls the handlers of signals in its main thread, between two steps. A loop that runs in
that thread has them called when some time has passed. If a handler raises, the loop ends at once,
as do those of other threads in the same run, and what was raised is kept until Python is back.

Where signals are deferred, a listener handles those that wait. A short run has Python's lock, which
other threads want: its loops end when their time is up, and it is repeated without the lock.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

from weft.emit.llvm.jit.engine import NativeLibrary
from weft.emit.llvm.jit.processor import binding, host
from weft.native.cpython import pointer_to
from weft.native.function import native, to_i32
from weft.native.libc import clock_constants, now, pthread_self
from weft.native.memory import Items, Member, Pointer, Struct, address, i32, symbol
from weft.native.python_api import (
    Py_DecRef,
    PyErr_CheckSignals,
    PyErr_Fetch,
    PyGILState_Ensure,
    PyGILState_Release,
    PyObject_Vectorcall,
)
from weft.native.short_run import ShortRun
from weft.native.text import remembered_text

PATIENCE = 50_000_000  # nanoseconds between two questions
GOES_ON = "weft_goes_on"
_API = (
    *(PyGILState_Ensure, PyGILState_Release, PyErr_CheckSignals, PyErr_Fetch),
    *(PyObject_Vectorcall, Py_DecRef),
)


class PendingException(Struct):
    """The exception of a signal handler, until Python is back."""

    type: Member[Pointer]
    value: Member[Pointer]
    trace: Member[Pointer]


class Listener(Struct):
    """The Python function that handles deferred signals, null if there is none."""

    function: Member[Pointer]


raised = PendingException.static("weft_raised")
listener = Listener.static("weft_listener")
short_run = ShortRun.static("weft_short_run")


@native(name=GOES_ON)
def goes_on(since: Items[int]) -> i32:
    """Whether a loop goes on; `since` holds the time of the last check."""
    # Monotonic: only the thread itself writes its own handle there, so no other value can be equal.
    if ShortRun.thread.load(short_run, "monotonic") == pthread_self():
        # By the clock, not by the first question: work is estimated, up to 20 times too high.
        if since[0] == 0:
            since[0] = now()
        if short_run.limit > 0 and now() - since[0] < short_run.limit:
            return 1
        short_run.unfinished = 1
        return 0
    # Set by another thread of this run, under the GIL. Nothing else is read through it here, so no
    # order is needed: a loop that sees it late asks again after the next budget of work.
    if PendingException.type.load(raised, "monotonic"):
        return 0
    time = now()
    # The first check only starts the clock: the GIL is worth taking for long loops alone.
    if since[0] == 0:
        since[0] = time
        return 1
    if time - since[0] < PATIENCE:
        return 1
    since[0] = time
    return ask_python()


@native
def ask_python() -> i32:
    """Run signal handlers under the GIL; 0 if one raises, and the exception is kept."""
    lock = PyGILState_Ensure()
    stop = PyErr_CheckSignals() != 0
    if not stop and listener.function:
        result = PyObject_Vectorcall(listener.function, Pointer(0), 0, Pointer(0))
        if result:
            Py_DecRef(result)
        else:
            stop = True
    answer = 1
    if stop:
        # Fetched before the GIL is released: a pending exception belongs to this thread's state.
        PyErr_Fetch(
            PendingException.type.of(raised),
            PendingException.value.of(raised),
            PendingException.trace.of(raised),
        )
        answer = 0
    PyGILState_Release(lock)
    return to_i32(answer)


def question(triple: str) -> str:
    """The module of `goes_on`, for a target; its state is this process's."""
    return remembered_text(
        "interrupts", [Path(__file__).parent], {"triple": triple}, lambda: _text(triple)
    )


def _text(triple: str) -> str:
    from weft.native.builder import NativeModule  # what is remembered needs no compiler
    from weft.native.lower import lower

    module = NativeModule(triple)
    for record in (raised, listener, short_run):
        module.declare(f"@{symbol(record)} = external global [{record.SIZE // 8} x i64]")
    lower(module, (goes_on,), clock_constants(triple))
    return module.text()


_listening: list[Callable[[], None]] = []  # keeps it alive


def listen(handler: Callable[[], None]) -> None:
    """Call a function periodically in threads with a long loop; an exception ends the loops."""
    _listening[:] = [handler]
    listener.function = Pointer(pointer_to(handler))


class Interruptions:
    """The polling function of loops, as a symbol for the linker, and the pending exception."""

    def __init__(self) -> None:
        llvm = binding()
        self.short_run_at = address(short_run)
        for record in (raised, listener, short_run):
            llvm.add_symbol(symbol(record), address(record))
        for function in _API:
            at = ctypes.cast(getattr(ctypes.pythonapi, function.name), ctypes.c_void_p).value
            llvm.add_symbol(function.name, at)
        self._library = NativeLibrary(question(host().triple), [GOES_ON])
        llvm.add_symbol(GOES_ON, self._library.addresses[GOES_ON])

    def raise_up(self) -> None:
        """Raise the exception of a signal handler that ended loops, before others may run."""
        if raised.type:
            kept = [ctypes.c_void_p(address(p)) for p in (raised.type, raised.value, raised.trace)]
            raised.type = Pointer(0)
            ctypes.pythonapi.PyErr_Restore(*kept)  # which raises it here


@functools.cache
def interruptions() -> Interruptions:
    """The check of this process, created when the first loop is loaded."""
    return Interruptions()
