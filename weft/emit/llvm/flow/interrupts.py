"""Interrupts of native loops: the check whether a signal handler has raised.

Python calls the handlers of signals in its main thread, between two steps. A loop that runs in
that thread has them called when some time has passed. If a handler raises, the loop ends at once,
as do those of other threads in the same run, and what was raised is kept until Python is back.

Where signals are deferred, a listener handles those that wait. A short run has Python's lock, which
other threads want: its loops end at the first question, and it is repeated without the lock.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

from weft.emit.llvm.emitted import Emitted, Phase
from weft.emit.llvm.jit.engine import load
from weft.emit.llvm.jit.processor import binding, host
from weft.native.cpython import pointer_to
from weft.native.short_run import ShortRun

PATIENCE = 50_000_000  # nanoseconds between two questions
_CLOCK, _DARWINS_CLOCK = 1, 6  # the numbers of clocks that only go forward
GOES_ON = "weft_goes_on"
_RAISED = "weft_raised"  # three pointers: what a handler has raised
_LISTENER = "weft_listener"  # a pointer to the Python function that handles deferred signals
_SHORT_RUN = "weft_short_run"
_API = (
    "PyGILState_Ensure",
    "PyGILState_Release",
    "PyErr_CheckSignals",
    "PyErr_Fetch",
    "PyObject_Vectorcall",
    "Py_DecRef",
)


def question(triple: str) -> str:
    """The check whether a loop goes on, as text; its operand holds the time of the last check."""
    clock = _DARWINS_CLOCK if "apple" in triple else _CLOCK
    return f"""
declare i32 @clock_gettime(i32, ptr)
declare i32 @PyGILState_Ensure()
declare void @PyGILState_Release(i32)
declare i32 @PyErr_CheckSignals()
declare void @PyErr_Fetch(ptr, ptr, ptr)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare void @Py_DecRef(ptr)
declare ptr @pthread_self()
@{_RAISED} = external global [3 x ptr]
@{_LISTENER} = external global ptr
@{_SHORT_RUN} = external global [2 x ptr]

define i32 @{GOES_ON}(ptr %since) {{
entry:
  %time = alloca [2 x i64]
  %short = load atomic ptr, ptr @{_SHORT_RUN} monotonic, align 8
  %thread = call ptr @pthread_self()
  %is_short = icmp eq ptr %short, %thread
  br i1 %is_short, label %leave, label %long
leave:
  %unfinished = getelementptr i64, ptr @{_SHORT_RUN}, i64 {ShortRun.unfinished.word}
  store i64 1, ptr %unfinished
  ret i32 0
long:
  %earlier = load atomic ptr, ptr @{_RAISED} monotonic, align 8
  %is_over = icmp ne ptr %earlier, null
  br i1 %is_over, label %over, label %tell
over:
  ret i32 0
tell:
  %error = call i32 @clock_gettime(i32 {clock}, ptr %time)
  %at_rest = getelementptr i64, ptr %time, i64 1
  %seconds = load i64, ptr %time
  %rest = load i64, ptr %at_rest
  %whole = mul i64 %seconds, 1000000000
  %now = add i64 %whole, %rest
  %before = load i64, ptr %since
  %is_first = icmp eq i64 %before, 0
  br i1 %is_first, label %note, label %look
note:
  store i64 %now, ptr %since
  ret i32 1
look:
  %took = sub i64 %now, %before
  %soon = icmp slt i64 %took, {PATIENCE}
  br i1 %soon, label %on, label %ask
ask:
  store i64 %now, ptr %since
  %state = call i32 @PyGILState_Ensure()
  %raised = call i32 @PyErr_CheckSignals()
  %is_raised = icmp ne i32 %raised, 0
  %listener = load ptr, ptr @{_LISTENER}
  %is_alone = icmp eq ptr %listener, null
  %is_answered = or i1 %is_raised, %is_alone
  br i1 %is_answered, label %answered, label %listen
listen:
  %result = call ptr @PyObject_Vectorcall(ptr %listener, ptr null, i64 0, ptr null)
  %is_none = icmp eq ptr %result, null
  br i1 %is_none, label %keep, label %drop
drop:
  call void @Py_DecRef(ptr %result)
  br label %release
answered:
  br i1 %is_raised, label %keep, label %release
keep:
  %value = getelementptr ptr, ptr @{_RAISED}, i64 1
  %traceback = getelementptr ptr, ptr @{_RAISED}, i64 2
  call void @PyErr_Fetch(ptr @{_RAISED}, ptr %value, ptr %traceback)
  br label %release
release:
  %answer = phi i32 [0, %keep], [1, %drop], [1, %answered]
  call void @PyGILState_Release(i32 %state)
  ret i32 %answer
on:
  ret i32 1
}}
"""


_listener = (ctypes.c_void_p * 1)()
_listening: list[Callable[[], None]] = []  # keeps it alive


def listen(listener: Callable[[], None]) -> None:
    """Call a function in every thread whose loops take long; what it raises ends them."""
    _listening[:] = [listener]
    _listener[0] = pointer_to(listener)


class Interruptions:
    """The function that loops ask, known to the linker, and what handlers have raised."""

    def __init__(self) -> None:
        llvm = binding()
        self.raised = (ctypes.c_void_p * 3)()
        self._short_run = (ctypes.c_uint64 * (ShortRun.SIZE // 8))()
        self.short_run_at = ctypes.addressof(self._short_run)
        llvm.add_symbol(_RAISED, ctypes.addressof(self.raised))
        llvm.add_symbol(_LISTENER, ctypes.addressof(_listener))
        llvm.add_symbol(_SHORT_RUN, self.short_run_at)
        for name in _API:
            found = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
            llvm.add_symbol(name, found)
        (self._loaded,) = load([Emitted(question(host().triple), (Phase(GOES_ON, 1),))])
        llvm.add_symbol(GOES_ON, self._loaded.phases[0].address)

    def raise_up(self) -> None:
        """Raise what a handler of a signal has raised while loops ran, before others may run."""
        if self.raised[0]:
            kept = [ctypes.c_void_p(pointer) for pointer in self.raised]
            self.raised[0] = None
            ctypes.pythonapi.PyErr_Restore(*kept)  # which raises it here


@functools.cache
def interruptions() -> Interruptions:
    """The check of this process, created when the first loop is loaded."""
    return Interruptions()
