"""The way from native code into Python and back, in which nothing is lost.

JAX may call while an exception is on its way, while Python is interrupted, without Python's lock,
in a child of a fork and when the process ends. So a bridge keeps a pending exception aside and has
an answer ready for each of these cases. What is called takes the address of the arguments and gives
the address of an error, or 0. If it is interrupted, JAX is told so, and the interrupt is raised
again in the main thread as soon as that is back in Python.
"""

from __future__ import annotations

import ctypes
import sys

# The state that all functions share, in words.
STATE = {
    "gone": 0,  # the list of records that JAX has destroyed
    "free": 1,  # the list of those that can be used, and how many they are
    "count": 2,
    "closed": 3,  # what is answered instead of calling Python: a process that was forked
    "ready": 4,  # the event of what is there
    "interrupted": 5,  # the errors that are answered where Python gives none
    "failed": 6,
    "ended": 7,
    "interrupt": 8,  # Python's KeyboardInterrupt
    "drain": 9,  # the Python function that lets go of what is gone
    "soon": 10,  # whether it is to be called soon
    "attributes": 11,  # what JAX is told about the plugin
    "attribute_count": 12,
    "main": 13,  # the main thread, and how often it is inside of a bridge
    "depth": 14,
    "remembered": 15,  # whether signals came there, which are to be handled
    "others": 16,  # whether other threads have come
    "ending": 17,  # when the process ends: says whether they are to rest, and how many do
    "resting": 18,
    "templates": 19,  # of small arrays from the host: a table by a hash of their type and sizes
    "aliasing": 20,  # whether arrays of the host are taken over as they are
    "guarded": 21,  # whether JAX is to see what comes from devices to the host
    "act": 22,  # the Python function that handles the signals that came
    "exhausted": 23,  # what Python raises for want of stack or memory
    "raised": 24,  # what else it has raised before a first line: type, value and trace
    "raised_value": 25,
    "raised_trace": 26,
}
THUNKS = 32  # the words before those that hold what bridges call
assert len({*STATE.values()}) == len(STATE) and max(STATE.values()) < THUNKS


def pointer_to(held: object) -> int:
    """The address that Python's C API knows an object by, as long as something holds it."""
    return ctypes.c_size_t.from_buffer(ctypes.py_object(held)).value


def word(name: str) -> int:
    """Where a word of the state lies, in bytes."""
    return 8 * STATE[name]


def bridge(name: str, index: int, internal: bool) -> str:
    """A function that calls the Python function in a word of the state."""
    return f"""
define {"internal " if internal else ""}ptr @{name}(ptr %args) {{
  %answer = call ptr @bridge(ptr %args, i64 {8 * index})
  ret ptr %answer
}}"""


ENDS = "Py_IsFinalizing" if sys.version_info >= (3, 13) else "_Py_IsFinalizing"

BRIDGE = f"""
declare i32 @PyGILState_Ensure()
declare void @PyGILState_Release(i32)
declare i32 @Py_IsInitialized()
declare i32 @{ENDS}()
declare void @PyErr_Fetch(ptr, ptr, ptr)
declare void @PyErr_Restore(ptr, ptr, ptr)
declare void @PyErr_Clear()
declare void @PyErr_SetNone(ptr)
declare i32 @PyErr_ExceptionMatches(ptr)
declare ptr @PyLong_FromVoidPtr(ptr)
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare void @Py_DecRef(ptr)
declare i32 @Py_AddPendingCall(ptr, ptr)
declare ptr @pthread_self()
declare i32 @PyGILState_Check()
declare ptr @PyEval_SaveThread()
declare i32 @pause()

define internal ptr @kept(i64 %at) {{
  %from = getelementptr i8, ptr @state, i64 %at
  %found = load atomic ptr, ptr %from acquire, align 8
  ret ptr %found
}}

; Call Python, unless the process ends or was forked.
define internal ptr @bridge(ptr %args, i64 %at) {{
entry:
  %closed = call ptr @kept(i64 {word("closed")})
  %is_closed = icmp ne ptr %closed, null
  br i1 %is_closed, label %shut, label %open
shut:
  ret ptr %closed
open:
  %is_there = call i32 @Py_IsInitialized()
  %ends = call i32 @{ENDS}()
  %there = icmp ne i32 %is_there, 0
  %stays = icmp eq i32 %ends, 0
  %lives = and i1 %there, %stays
  br i1 %lives, label %inside, label %ended
ended:
  %told_ended = call ptr @kept(i64 {word("ended")})
  ret ptr %told_ended
inside:
  %self = call ptr @pthread_self()
  %main = call ptr @kept(i64 {word("main")})
  %is_main = icmp eq ptr %self, %main
  br i1 %is_main, label %in_main, label %in_other
in_other:
  %others = getelementptr i8, ptr @state, i64 {word("others")}
  store atomic i64 1, ptr %others release, align 8
  %ending = call ptr @kept(i64 {word("ending")})
  %is_ending = icmp ne ptr %ending, null
  br i1 %is_ending, label %late, label %in_time
late:
  %rests = call i1 @is_to_rest(ptr %ending)
  br i1 %rests, label %bed, label %in_time
bed:
  call void @rest()
  unreachable
in_time:
  %answer = call ptr @ask_python(ptr %args, i64 %at)
  ret ptr %answer
in_main:
  %answer_main = call ptr @ask_from_main(ptr %args, i64 %at)
  ret ptr %answer_main
}}

; Whether nobody waits for this thread when the process ends.
define internal i1 @is_to_rest(ptr %says) {{
entry:
  %type = alloca ptr
  %value = alloca ptr
  %trace = alloca ptr
  %lock = call i32 @PyGILState_Ensure()
  call void @PyErr_Fetch(ptr %type, ptr %value, ptr %trace)
  %result = call ptr @PyObject_Vectorcall(ptr %says, ptr null, i64 0, ptr null)
  %none = icmp eq ptr %result, null
  br i1 %none, label %unknown, label %known
unknown:
  call void @PyErr_Clear()
  br label %end
known:
  %told = call ptr @PyLong_AsVoidPtr(ptr %result)
  %is = icmp ne ptr %told, null
  call void @Py_DecRef(ptr %result)
  br label %end
end:
  %rests = phi i1 [1, %unknown], [%is, %known]
  %old_type = load ptr, ptr %type
  %old_value = load ptr, ptr %value
  %old_trace = load ptr, ptr %trace
  call void @PyErr_Restore(ptr %old_type, ptr %old_value, ptr %old_trace)
  call void @PyGILState_Release(i32 %lock)
  ret i1 %rests
}}

; Wait for ever, without Python's lock. Python would end a thread that asks for the lock when the
; process ends, and JAX does not survive that: threads that nobody waits for stay here instead.
define internal void @rest() {{
entry:
  %holds = call i32 @PyGILState_Check()
  %has = icmp ne i32 %holds, 0
  br i1 %has, label %leave, label %count
leave:
  %thread = call ptr @PyEval_SaveThread()
  br label %count
count:
  %resting = getelementptr i8, ptr @state, i64 {word("resting")}
  %was = atomicrmw add ptr %resting, i64 1 acq_rel, align 8
  br label %sleep
sleep:
  %slept = call i32 @pause()
  br label %sleep
}}

; The main thread is the one that handles signals: if some came, remind it when it is outside again.
define internal ptr @ask_from_main(ptr %args, i64 %at) {{
entry:
  %at_depth = getelementptr i8, ptr @state, i64 {word("depth")}
  %at_remembered = getelementptr i8, ptr @state, i64 {word("remembered")}
  %before = load i64, ptr %at_depth
  %deeper = add i64 %before, 1
  store i64 %deeper, ptr %at_depth
  %answer = call ptr @ask_python(ptr %args, i64 %at)
  store i64 %before, ptr %at_depth
  %outside = icmp eq i64 %before, 0
  br i1 %outside, label %look, label %end
look:
  %remembered = load i64, ptr %at_remembered
  %is = icmp ne i64 %remembered, 0
  br i1 %is, label %remind, label %end
remind:
  %asked = call i32 @Py_AddPendingCall(ptr @act_late, ptr null)
  br label %end
end:
  ret ptr %answer
}}

define internal ptr @ask_python(ptr %args, i64 %at) {{
entry:
  %type = alloca ptr
  %value = alloca ptr
  %trace = alloca ptr
  %given = alloca ptr
  %lock = call i32 @PyGILState_Ensure()
  call void @PyErr_Fetch(ptr %type, ptr %value, ptr %trace)
  %thunk = call ptr @kept(i64 %at)
  %number = call ptr @PyLong_FromVoidPtr(ptr %args)
  %no_number = icmp eq ptr %number, null
  br i1 %no_number, label %none, label %ask
ask:
  store ptr %number, ptr %given
  %result = call ptr @PyObject_Vectorcall(ptr %thunk, ptr %given, i64 1, ptr null)
  call void @Py_DecRef(ptr %number)
  %no_result = icmp eq ptr %result, null
  br i1 %no_result, label %none, label %some
some:
  %told = call ptr @PyLong_AsVoidPtr(ptr %result)
  call void @Py_DecRef(ptr %result)
  br label %done
none:
  %why = call ptr @excuse()
  br label %done
done:
  %answer = phi ptr [%told, %some], [%why, %none]
  %old_type = load ptr, ptr %type
  %old_value = load ptr, ptr %value
  %old_trace = load ptr, ptr %trace
  call void @PyErr_Restore(ptr %old_type, ptr %old_value, ptr %old_trace)
  call void @PyGILState_Release(i32 %lock)
  %interrupted = call ptr @kept(i64 {word("interrupted")})
  %is_interrupted = icmp eq ptr %answer, %interrupted
  br i1 %is_interrupted, label %again, label %end
again:
  %asked = call i32 @Py_AddPendingCall(ptr @raise_again, ptr null)
  br label %end
end:
  ret ptr %answer
}}

; What JAX is told where Python gives no answer: it could not begin, or a signal's handler raised.
; What that has raised is raised again.
define internal ptr @excuse() {{
entry:
  %exhausted = call ptr @kept(i64 {word("exhausted")})
  %matches = call i32 @PyErr_ExceptionMatches(ptr %exhausted)
  %is_exhausted = icmp ne i32 %matches, 0
  br i1 %is_exhausted, label %failed, label %raised
failed:
  call void @PyErr_Clear()
  %told_failed = call ptr @kept(i64 {word("failed")})
  ret ptr %told_failed
raised:
  %before = call ptr @kept(i64 {word("raised")})
  %first = icmp eq ptr %before, null
  br i1 %first, label %keep, label %forget
keep:
  %type = getelementptr i8, ptr @state, i64 {word("raised")}
  %value = getelementptr i8, ptr @state, i64 {word("raised_value")}
  %trace = getelementptr i8, ptr @state, i64 {word("raised_trace")}
  call void @PyErr_Fetch(ptr %type, ptr %value, ptr %trace)
  br label %end
forget:
  call void @PyErr_Clear()
  br label %end
end:
  %told = call ptr @kept(i64 {word("interrupted")})
  ret ptr %told
}}

; In the main thread, between two steps of Python: what was raised, or an interrupt.
define internal i32 @raise_again(ptr %nothing) {{
entry:
  %type = call ptr @kept(i64 {word("raised")})
  %none = icmp eq ptr %type, null
  br i1 %none, label %interrupt, label %restore
restore:
  %value = call ptr @kept(i64 {word("raised_value")})
  %trace = call ptr @kept(i64 {word("raised_trace")})
  %at = getelementptr i8, ptr @state, i64 {word("raised")}
  store ptr null, ptr %at
  call void @PyErr_Restore(ptr %type, ptr %value, ptr %trace)
  ret i32 -1
interrupt:
  %kind = call ptr @kept(i64 {word("interrupt")})
  call void @PyErr_SetNone(ptr %kind)
  ret i32 -1
}}

; Handle the signals that came inside of a bridge; the same, and again if one raises before others.
define internal i32 @act_late(ptr %nothing) {{
entry:
  %act = call ptr @kept(i64 {word("act")})
  %result = call ptr @PyObject_Vectorcall(ptr %act, ptr null, i64 0, ptr null)
  %is_raised = icmp eq ptr %result, null
  br i1 %is_raised, label %raised, label %fine
fine:
  call void @Py_DecRef(ptr %result)
  ret i32 0
raised:
  %left = call ptr @kept(i64 {word("remembered")})
  %none = icmp eq ptr %left, null
  br i1 %none, label %end, label %again
again:
  %asked = call i32 @Py_AddPendingCall(ptr @act_late, ptr null)
  br label %end
end:
  ret i32 -1
}}

; Have Python let go of what is gone, also where JAX does not call for a while.
define internal void @drain_soon() {{
entry:
  %there = call i32 @Py_IsInitialized()
  %ends = call i32 @{ENDS}()
  %gone = icmp eq i32 %there, 0
  %going = icmp ne i32 %ends, 0
  %late = or i1 %gone, %going
  br i1 %late, label %end, label %look
look:
  %at = getelementptr i8, ptr @state, i64 {word("soon")}
  %was = atomicrmw xchg ptr %at, i64 1 acq_rel, align 8
  %asked = icmp ne i64 %was, 0
  br i1 %asked, label %end, label %ask
ask:
  %failed = call i32 @Py_AddPendingCall(ptr @drain_now, ptr null)
  %is_failed = icmp ne i32 %failed, 0
  br i1 %is_failed, label %later, label %end
later:
  store atomic i64 0, ptr %at release, align 8
  br label %end
end:
  ret void
}}

define internal i32 @drain_now(ptr %nothing) {{
entry:
  %at = getelementptr i8, ptr @state, i64 {word("soon")}
  store atomic i64 0, ptr %at release, align 8
  %closed = call ptr @kept(i64 {word("closed")})
  %drain = call ptr @kept(i64 {word("drain")})
  %open = icmp eq ptr %closed, null
  %can = icmp ne ptr %drain, null
  %may = and i1 %open, %can
  br i1 %may, label %go, label %fine
go:
  %result = call ptr @PyObject_Vectorcall(ptr %drain, ptr null, i64 0, ptr null)
  %is_raised = icmp eq ptr %result, null
  br i1 %is_raised, label %raised, label %drop
drop:
  call void @Py_DecRef(ptr %result)
  br label %fine
fine:
  ret i32 0
raised:
  ret i32 -1
}}
"""
