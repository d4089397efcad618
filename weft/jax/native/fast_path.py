"""A slot's work without Python: when native code may do it."""

from __future__ import annotations

from weft.jax.native.bridge import drain_soon, python_bridge, python_runs
from weft.jax.native.record_code import finish, give, push
from weft.jax.native.records import BUFFER, BufferRecord, CountedRecord, HandleRecord
from weft.jax.native.state import PluginState, state
from weft.native.function import NativeFunction, native
from weft.native.memory import Pointer
from weft.native.python_api import PyGILState_Ensure, PyGILState_Release

DONE, FAILED = 1, 2  # results of an attempt; 0: fall back to Python
_MAX_PENDING = 256  # records that may wait for Python


def with_fast_path(
    slot: str,
    is_known: NativeFunction[[Pointer], bool],
    attempt: NativeFunction[[Pointer], int],
) -> NativeFunction[[Pointer], Pointer]:
    """The native function of a slot, with Python as its fallback."""
    ask = python_bridge(slot)

    @native(name=slot)
    def call(args: Pointer) -> Pointer:
        if may_try() and is_known(args):
            # The free list of records is not atomic: the GIL is its lock. Taking it is much cheaper
            # than entering the interpreter.
            lock = PyGILState_Ensure()
            came = attempt(args)
            PyGILState_Release(lock)
            if came == DONE:
                return Pointer(0)
            if came == FAILED:
                return PluginState.failed.load(state, "acquire")
        return ask(args)

    return call


@native(attribute="alwaysinline")
def may_try() -> bool:
    """Whether Python's lock can be had: the process neither ends nor was forked."""
    if PluginState.closed.load(state, "acquire") or not python_runs():
        return False
    return not PluginState.ending.load(state, "acquire")


@native
def sweep() -> bool:
    """Free the destroyed records that native code owns; whether few are left for Python.

    Python is scheduled to free the others.
    """
    record = PluginState.gone.swap(state, HandleRecord(0), "acquire")
    left = 0
    while record:
        following = record.next
        if record.what == BUFFER:
            array = BufferRecord(record).array
            give(record)
            if CountedRecord.live.add(array, -1, "acq_rel") == 1:
                # No Python object stands behind it, so that native code may free it.
                if array.native != 0:
                    finish(array)
                else:
                    push(array)
                    left += 1
        else:
            push(record)
            left += 1
        record = following
    if left == 0:
        return True
    # Many dead records mean much dead memory: fall back, so that Python frees it before this call
    # allocates more.
    if left > _MAX_PENDING:
        return False
    drain_soon()
    return True
