"""The way from native code into Python and back, in which nothing is lost.

JAX may call while an exception is on its way, while Python is interrupted, without Python's lock,
in a child of a fork and when the process ends. So a bridge keeps a pending exception aside and has
a prepared error for each of these cases. The Python function takes the address of the arguments and
returns the address of an error record, or 0. If it is interrupted, JAX gets a CANCELLED error, and
the interrupt is raised again in the main thread as soon as that is back in Python.
"""

from __future__ import annotations

from functools import cache

from weft.jax.abi import api
from weft.jax.native.state import PluginState, state
from weft.native.function import NativeFunction, native, unreachable
from weft.native.libc import pause, pthread_self
from weft.native.memory import Member, Pointer, Struct, i32
from weft.native.python_api import (
    Py_AddPendingCall,
    Py_DecRef,
    Py_IsFinalizing,
    Py_IsInitialized,
    PyErr_Clear,
    PyErr_ExceptionMatches,
    PyErr_Fetch,
    PyErr_Restore,
    PyErr_SetNone,
    PyEval_SaveThread,
    PyGILState_Check,
    PyGILState_Ensure,
    PyGILState_Release,
    PyLong_AsVoidPtr,
    PyLong_FromVoidPtr,
    PyObject_Vectorcall,
)


class RaisedException(Struct):
    """An exception that is kept aside."""

    type: Member[Pointer]
    value: Member[Pointer]
    trace: Member[Pointer]


class ArgumentCell(Struct):
    """The arguments of a call of Python, of which there is one."""

    first: Member[Pointer]


@cache
def all_slots() -> tuple[str, ...]:
    """The slots of PJRT and of its extensions."""
    spoken = api()
    listed = [name for names in spoken.extensions.values() for name in names]
    return (*spoken.slots, *listed)


@cache
def bridge_of(slot: str, name: str) -> NativeFunction[[Pointer], Pointer]:
    """A native function of a name that calls the Python function for a slot."""
    number = all_slots().index(slot)

    @native(name=name)
    def call(args: Pointer) -> Pointer:
        return bridge(args, number)

    return call


def python_bridge(slot: str) -> NativeFunction[[Pointer], Pointer]:
    """The bridge to Python of a slot that native code fills where it can."""
    return bridge_of(slot, f"ask_{slot}")


@native(attribute="alwaysinline")
def python_runs() -> bool:
    """Whether there is a Python, and it is not about to end."""
    return Py_IsInitialized() != 0 and Py_IsFinalizing() == 0


@native
def bridge(args: Pointer, slot: int) -> Pointer:
    """Call Python, unless the process ends or was forked."""
    # In a forked child the threads that held Weft's and JAX's locks are gone: entering Python could
    # wait on them without end, so the prepared error is the only safe answer.
    closed = PluginState.closed.load(state, "acquire")
    if closed:
        return closed
    # A thread of JAX's may call after Py_Finalize, when even taking the GIL is undefined.
    if not python_runs():
        return PluginState.ended.load(state, "acquire")
    if pthread_self() == PluginState.main.load(state, "acquire"):
        return ask_from_main(args, slot)
    # Noted for `Plugin.end`, which waits for threads to park only if one has ever come this way.
    PluginState.others.store(state, 1, "release")
    ending = PluginState.ending.load(state, "acquire")
    # CPython up to 3.13 calls pthread_exit in a thread that takes the GIL after finalization has
    # begun, and JAX's C++ frames do not survive that.
    if ending and should_park(ending):
        park_forever()
        unreachable()
    return ask_python(args, slot)


@native
def should_park(question: Pointer) -> bool:
    """Whether no other thread waits for this one when the process ends: Python knows."""
    raised = RaisedException.new()
    lock = PyGILState_Ensure()
    set_aside(raised)
    # If the question cannot be answered the thread parks: at this point losing a daemon thread is
    # the lesser evil.
    rests = True
    result = PyObject_Vectorcall(question, Pointer(0), 0, Pointer(0))
    if result:
        rests = PyLong_AsVoidPtr(result) != Pointer(0)
        Py_DecRef(result)
    else:
        PyErr_Clear()
    PyErr_Restore(raised.type, raised.value, raised.trace)
    PyGILState_Release(lock)
    return rests


@native
def set_aside(raised: RaisedException) -> None:
    """Keep a pending exception."""
    PyErr_Fetch(
        RaisedException.type.of(raised),
        RaisedException.value.of(raised),
        RaisedException.trace.of(raised),
    )


@native
def park_forever() -> None:
    """Park this thread for good, without the GIL.

    During finalization CPython ends a thread that asks for the GIL, and JAX does not survive that:
    daemon threads park here instead.
    """
    if PyGILState_Check() != 0:
        PyEval_SaveThread()
    PluginState.parked.add(state, 1, "acq_rel")
    while True:
        pause()


@native
def ask_from_main(args: Pointer, slot: int) -> Pointer:
    """Call Python in the thread that handles signals.

    Signals that came meanwhile are handled after the outermost bridge has returned.
    """
    # Plain fields: only the main thread reads and writes them.
    before = state.depth
    state.depth = before + 1
    answer = ask_python(args, slot)
    state.depth = before
    if before == 0 and state.remembered != 0:
        # Handlers must not run inside a bridge, whose caller cannot propagate an exception; pending
        # calls run in the main thread's evaluation loop, which can.
        Py_AddPendingCall(handle_late_signals, Pointer(0))
    return answer


@native
def ask_python(args: Pointer, slot: int) -> Pointer:
    """Call Python with its lock held and no exception pending."""
    raised = RaisedException.new()
    cell = ArgumentCell.new()
    lock = PyGILState_Ensure()
    # JAX may free a buffer while an exception propagates. Running Python with one pending is an
    # error of the C API ("returned a result with an exception set").
    set_aside(raised)
    result = Pointer(0)
    number = PyLong_FromVoidPtr(args)
    if number:
        cell.first = number
        result = PyObject_Vectorcall(state.thunks[slot], cell, 1, Pointer(0))
        Py_DecRef(number)
    answer = Pointer(0)
    if result:
        answer = PyLong_AsVoidPtr(result)
        Py_DecRef(result)
    else:
        answer = error_of_failure()
    PyErr_Restore(raised.type, raised.value, raised.trace)
    PyGILState_Release(lock)
    # Queueing needs no GIL; the main thread raises the exception between two steps of Python.
    if answer == PluginState.interrupted.load(state, "acquire"):
        Py_AddPendingCall(raise_again, Pointer(0))
    return answer


@native
def error_of_failure() -> Pointer:
    """The error record of a call that Python did not finish: no stack, or a signal handler raised.

    An exception of a signal handler is kept, to be raised again in the main thread.
    """
    # MemoryError or RecursionError before the thunk's first line: the thunk itself catches all
    # others.
    if PyErr_ExceptionMatches(PluginState.exhausted.load(state, "acquire")) != 0:
        PyErr_Clear()
        return PluginState.failed.load(state, "acquire")
    # One exception is kept. The fields are filled by PyErr_Fetch, which hands over its references,
    # so a second one would leak the first.
    if PluginState.raised.load(state, "acquire"):
        PyErr_Clear()
    else:
        PyErr_Fetch(
            PluginState.raised.of(state),
            PluginState.raised_value.of(state),
            PluginState.raised_trace.of(state),
        )
    return PluginState.interrupted.load(state, "acquire")


@native
def raise_again(nothing: Pointer) -> i32:
    """A pending call, in the main thread: raise the kept exception, or KeyboardInterrupt."""
    type = PluginState.raised.load(state, "acquire")
    if type:
        value = PluginState.raised_value.load(state, "acquire")
        trace = PluginState.raised_trace.load(state, "acquire")
        # PyErr_Restore steals the three references: forget them first.
        state.raised = Pointer(0)
        PyErr_Restore(type, value, trace)
    else:
        PyErr_SetNone(PluginState.interrupt.load(state, "acquire"))
    return -1


@native
def handle_late_signals(nothing: Pointer) -> i32:
    """Handle the signals that came inside of a bridge; if a handler raises, the rest later."""
    act = PluginState.act.load(state, "acquire")
    result = PyObject_Vectorcall(act, Pointer(0), 0, Pointer(0))
    if result:
        Py_DecRef(result)
        return 0
    if PluginState.remembered.load(state, "acquire") != 0:
        Py_AddPendingCall(handle_late_signals, Pointer(0))
    return -1


@native
def drain_soon() -> None:
    """Schedule a drain of destroyed records in Python, in case JAX makes no call for a while."""
    # One request at a time: CPython's queue of pending calls is short, and fails when it is full.
    if not python_runs() or PluginState.soon.swap(state, 1, "acq_rel") != 0:
        return
    if Py_AddPendingCall(drain_now, Pointer(0)) != 0:
        # A full queue: the next destroyed record asks again.
        PluginState.soon.store(state, 0, "release")


@native
def drain_now(nothing: Pointer) -> i32:
    """A pending call, in the main thread: drain the destroyed records."""
    # Before the drain: a record that is destroyed while it runs asks for another one.
    PluginState.soon.store(state, 0, "release")
    closed = PluginState.closed.load(state, "acquire")
    drain = PluginState.drain.load(state, "acquire")
    if closed or not drain:
        return 0
    result = PyObject_Vectorcall(drain, Pointer(0), 0, Pointer(0))
    if not result:
        return -1
    Py_DecRef(result)
    return 0
