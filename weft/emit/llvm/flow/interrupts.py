"""What loops ask that run without Python: whether a signal wants them to end.

Python calls the handlers of signals in its main thread, between two steps. A loop that runs in
that thread has them called when some time has passed. If a handler raises, the loop ends at once,
and what was raised is kept until Python is back.
"""

from __future__ import annotations

import ctypes
import functools

from weft.emit.llvm.emitted import Emitted, Phase
from weft.emit.llvm.jit.engine import load
from weft.emit.llvm.jit.processor import binding, host

PATIENCE = 50_000_000  # nanoseconds between two questions
_CLOCK, _DARWINS_CLOCK = 1, 6  # the numbers of clocks that only go forward
GOES_ON = "weft_goes_on"
_RAISED = "weft_raised"  # three pointers: what a handler has raised
_API = ("PyGILState_Ensure", "PyGILState_Release", "PyErr_CheckSignals", "PyErr_Fetch")


def question(triple: str) -> str:
    """The function that answers whether to go on; it is told where the time of the last one is."""
    clock = _DARWINS_CLOCK if "apple" in triple else _CLOCK
    return f"""
declare i32 @clock_gettime(i32, ptr)
declare i32 @PyGILState_Ensure()
declare void @PyGILState_Release(i32)
declare i32 @PyErr_CheckSignals()
declare void @PyErr_Fetch(ptr, ptr, ptr)
@{_RAISED} = external global [3 x ptr]

define i32 @{GOES_ON}(ptr %since) {{
entry:
  %time = alloca [2 x i64]
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
  br i1 %is_raised, label %keep, label %release
keep:
  %value = getelementptr ptr, ptr @{_RAISED}, i64 1
  %traceback = getelementptr ptr, ptr @{_RAISED}, i64 2
  call void @PyErr_Fetch(ptr @{_RAISED}, ptr %value, ptr %traceback)
  br label %release
release:
  call void @PyGILState_Release(i32 %state)
  %answer = select i1 %is_raised, i32 0, i32 1
  ret i32 %answer
on:
  ret i32 1
}}
"""


class Interruptions:
    """The function that loops ask, known to the linker, and what handlers have raised."""

    def __init__(self) -> None:
        llvm = binding()
        self.raised = (ctypes.c_void_p * 3)()
        llvm.add_symbol(_RAISED, ctypes.addressof(self.raised))
        for name in _API:
            found = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
            llvm.add_symbol(name, found)
        (self._loaded,) = load([Emitted(question(host().triple), (Phase(GOES_ON, 1),))])
        llvm.add_symbol(GOES_ON, self._loaded.phases[0].address)

    def raise_up(self) -> None:
        """Raise what a handler of a signal has raised while loops ran."""
        if self.raised[0]:
            kept = [ctypes.c_void_p(pointer) for pointer in self.raised]
            self.raised[0] = None
            ctypes.pythonapi.PyErr_Restore(*kept)  # which raises it here


@functools.cache
def interruptions() -> Interruptions:
    """What loops ask, there from when the first one is loaded."""
    return Interruptions()
