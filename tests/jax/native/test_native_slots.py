"""Slots of tables: every field that JAX reads is the record's, and bridges lose nothing."""

from __future__ import annotations

import ctypes
import functools
from contextlib import ExitStack
from typing import Any

import pytest

from weft.emit.llvm.emitted import Emitted, Phase
from weft.emit.llvm.jit.engine import LoadedKernel, load
from weft.jax.abi import api
from weft.jax.native import bridge as bridges
from weft.jax.native.bridge import all_slots, bridge
from weft.jax.native.functions import text
from weft.jax.native.records import (
    SIZE,
    STATIC,
    ArrayRecord,
    BufferRecord,
    ErrorRecord,
    HandleRecord,
)
from weft.jax.native.slot_tables import CONSTANTS, DELETERS, DESTROYERS, GETTERS
from weft.jax.native.state import PluginState, state
from weft.native import python_api
from weft.native.function import NativeFunction
from weft.native.libc import pthread_self
from weft.native.memory import Pointer, address, number


@functools.cache
def loaded() -> LoadedKernel:
    """All slots, with a state that no plugin has: another text has other memory."""
    made = f"{text(api())}\n; of a test"
    phases = tuple([Phase(name, 1) for name in (*all_slots(), "nothing")])
    (kernel,) = load([Emitted(made, phases)])
    return kernel


def at(slot: str) -> int:
    return loaded().phases[[*all_slots(), "nothing"].index(slot)].address


def call(slot: str, args: Any) -> int:
    function = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_size_t)(at(slot))
    return function(ctypes.addressof(args)) or 0


def numbered(kind: type) -> Any:
    """A record whose fields are all different."""
    words = (ctypes.c_int64 * (2 + SIZE // 8))(*range(1, 3 + SIZE // 8))
    return words, kind(ctypes.addressof(words) + 16)  # a layout has two words before it


@pytest.mark.parametrize("row", GETTERS, ids=lambda row: row[0])
def test_a_getter_fills_in_fields_of_its_record(row):
    slot, handle, kind, filled = row
    _words, record = numbered(kind)
    args = api().args(slot)()
    setattr(args, handle, address(record))
    buffer = BufferRecord.new()
    if kind is ArrayRecord:
        buffer.array = record
        setattr(args, handle, address(buffer))
    before = bytes(args)
    assert call(slot, args) == 0
    for name, value in filled.items():
        if isinstance(value, NativeFunction):
            assert getattr(args, name) == at(value.name)
        elif isinstance(value, int):
            assert getattr(args, name) == value
        else:
            expected = number(getattr(record, value))
            assert getattr(args, name) == (bool(expected) if _is_bool(slot, name) else expected)
        field = getattr(api().args(slot), name)
        before = _with(before, field, bytes(args))
    assert before == bytes(args), "other fields are as they were"


def _is_bool(slot: str, name: str) -> bool:
    return getattr(api().args(slot), name).size == 1


def _with(before: bytes, field: Any, after: bytes) -> bytes:
    begin, end = field.offset, field.offset + field.size
    return before[:begin] + after[begin:end] + before[end:]


@pytest.mark.parametrize("slot, filled", CONSTANTS, ids=lambda value: str(value)[:40])
def test_constants(slot, filled):
    args = api().args(slot)()
    for name in filled:
        setattr(args, name, 1)
    assert call(slot, args) == 0
    for name, value in filled.items():
        assert getattr(args, name) == (value if isinstance(value, int) else at(value.name))


def test_what_is_deleted_and_destroyed():
    for slot, handle, mark in DELETERS:
        words, record = numbered(mark.owner)
        args = api().args(slot)()
        setattr(args, handle, address(record))
        before = [*words]
        assert call(slot, args) == 0
        assert mark.__get__(record, None) == 1
        assert [n for n, word in enumerate(words) if word != before[n]] == [2 + mark.word]
    for slot, handle in DESTROYERS:
        record = HandleRecord.new()
        record.what = STATIC  # which stays
        args = api().args(slot)()
        setattr(args, handle, address(record))
        assert call(slot, args) == 0 and not record.next


# Bridges: what they do, in order, as Python with a Python that is made up.


class MadeUp:
    """Python's C API, which writes down what is called."""

    def __init__(self, stack: ExitStack, **answers: Any) -> None:
        self.called: list[str] = []
        names = [name for name in vars(python_api) if name.startswith("Py")]
        for name in names:
            made = functools.partial(self._call, name, answers.get(name, 0))
            stack.enter_context(getattr(python_api, name).replaced(made))
        main = answers.get("main", 5)
        stack.enter_context(pthread_self.replaced(lambda: Pointer(main)))

    def _call(self, name: str, answer: Any, *args: Any) -> Any:
        self.called.append(name)
        if isinstance(answer, list):
            answer = answer.pop(0)
        pointers = ("PyObject_Vectorcall", "PyLong_FromVoidPtr", "PyLong_AsVoidPtr")
        return Pointer(answer) if name in pointers else answer


@pytest.fixture
def python():
    ctypes.memset(address(state), 0, PluginState.SIZE)
    for n, name in enumerate("interrupted failed ended".split(), 1):
        setattr(state, name, ErrorRecord(4096 * n))
    state.main = Pointer(5)
    thunks = (ctypes.c_size_t * 1)(77)
    with ExitStack() as stack:
        stack.callback(lambda: ctypes.memset(address(state), 0, PluginState.SIZE))
        stack.callback(lambda: thunks)
        usual = {"Py_IsInitialized": 1, "PyLong_FromVoidPtr": 64, "PyObject_Vectorcall": 128}
        yield lambda **answers: MadeUp(stack, **(usual | answers))


ASKED = ["Py_IsInitialized", "Py_IsFinalizing", "PyGILState_Ensure", "PyErr_Fetch"]
ASKED += ["PyLong_FromVoidPtr", "PyObject_Vectorcall", "Py_DecRef"]
BACK = ["PyErr_Restore", "PyGILState_Release"]


def test_a_bridge_calls_python_and_leaves_it_as_it_was(python):
    made = python(PyLong_AsVoidPtr=7)
    assert bridge(Pointer(8), 0) == Pointer(7)
    assert made.called == [*ASKED, "PyLong_AsVoidPtr", "Py_DecRef", *BACK]
    assert state.depth == 0 and state.others == 0


def test_an_interrupt_is_raised_again(python):
    made = python(PyLong_AsVoidPtr=4096)
    assert bridge(Pointer(8), 0) == Pointer(4096)
    assert made.called[-1] == "Py_AddPendingCall"
    assert bridges.raise_again(Pointer(0)) == -1 and made.called[-1] == "PyErr_SetNone"
    state.raised = Pointer(12)
    assert bridges.raise_again(Pointer(0)) == -1 and made.called[-1] == "PyErr_Restore"
    assert not state.raised


def test_what_python_cannot_answer(python):
    made = python(PyObject_Vectorcall=0, PyErr_ExceptionMatches=1)
    assert bridge(Pointer(8), 0) == state.failed
    assert made.called == [*ASKED, "PyErr_ExceptionMatches", "PyErr_Clear", *BACK]
    made = python(PyObject_Vectorcall=0)
    assert bridge(Pointer(8), 0) == state.interrupted
    assert made.called[-4:] == ["PyErr_Fetch", *BACK, "Py_AddPendingCall"]
    made = python(PyLong_FromVoidPtr=0, PyErr_ExceptionMatches=1)
    assert bridge(Pointer(8), 0) == state.failed and "PyObject_Vectorcall" not in made.called


def test_when_python_is_not_asked(python):
    made = python(Py_IsFinalizing=1)
    assert bridge(Pointer(8), 0) == state.ended
    made = python(Py_IsInitialized=0)
    assert bridge(Pointer(8), 0) == state.ended
    state.closed = ErrorRecord(8192)
    made = python()
    assert bridge(Pointer(8), 0) == Pointer(8192) and made.called == []


def test_signals_are_remembered_in_the_main_thread(python):
    state.remembered = 1
    made = python(PyLong_AsVoidPtr=7)
    bridge(Pointer(8), 0)
    assert made.called[-1] == "Py_AddPendingCall"
    state.depth = 1  # inside of another
    made = python(PyLong_AsVoidPtr=7)
    bridge(Pointer(8), 0)
    assert made.called[-1] == "PyGILState_Release" and state.depth == 1
    made = python(PyObject_Vectorcall=0)
    assert bridges.handle_late_signals(Pointer(0)) == -1 and made.called[-1] == "Py_AddPendingCall"
    made = python()
    assert bridges.handle_late_signals(Pointer(0)) == 0 and made.called[-1] == "Py_DecRef"


def test_other_threads_are_noted_and_rest_at_the_end(python):
    made = python(main=6, PyLong_AsVoidPtr=0)
    assert bridge(Pointer(8), 0) == Pointer(0) and state.others == 1
    state.ending = Pointer(99)
    assert not bridges.should_park(Pointer(99))
    assert bridge(Pointer(8), 0) == Pointer(0) and made.called.count("PyErr_Restore") == 4
    python(PyLong_AsVoidPtr=1)
    assert bridges.should_park(Pointer(99))
    python(PyObject_Vectorcall=0)
    assert bridges.should_park(Pointer(99)), "a thread that cannot ask rests"


def test_python_is_asked_once_to_drain(python):
    made = python()
    bridges.drain_soon()
    bridges.drain_soon()
    assert state.soon == 1 and made.called.count("Py_AddPendingCall") == 1
    assert bridges.drain_now(Pointer(0)) == 0 and state.soon == 0
    state.drain = Pointer(9)
    assert bridges.drain_now(Pointer(0)) == 0 and made.called[-1] == "Py_DecRef"
    made = python(Py_AddPendingCall=-1)
    bridges.drain_soon()
    assert state.soon == 0, "the next one asks again"
