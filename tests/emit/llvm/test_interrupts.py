"""The check whether a native loop goes on: machine code, and the same function as Python."""

import ctypes

import pytest

from weft.emit.llvm.flow import interrupts
from weft.emit.llvm.flow.interrupts import GOES_ON, PATIENCE, goes_on, interruptions
from weft.native.libc import pthread_self
from weft.native.memory import Items, Pointer


def native_function():
    (address,) = interruptions()._library.addresses.values()
    return ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(address)


@pytest.fixture(params=["native", "python"])
def check(request):
    call = native_function() if request.param == "native" else None
    assert goes_on.name == GOES_ON

    def run(since: int) -> tuple[int, int]:
        word = (ctypes.c_int64 * 1)(since)
        at = ctypes.addressof(word)
        return (call(at) if call else goes_on(Items[int](at))), word[0]

    return run


def test_the_first_check_only_starts_the_clock(check):
    answer, since = check(0)
    assert answer == 1 and since > 0
    assert check(since) == (1, since)  # soon after: not asked


def test_python_is_asked_after_a_while(check):
    calls = []
    before = interrupts.listener.function
    now = check(0)[1]
    interrupts.listen(lambda: calls.append(1))
    try:
        answer, since = check(now - PATIENCE)
        assert answer == 1 and since >= now and calls == [1]
    finally:
        interrupts.listener.function = before


def test_an_exception_ends_the_loop_and_is_raised_in_python():
    before = interrupts.listener.function
    interrupts.listen(lambda: 1 // 0)
    try:
        since = ctypes.c_int64(1)
        assert native_function()(ctypes.addressof(since)) == 0
        with pytest.raises(ZeroDivisionError):
            interruptions().raise_up()
        assert not interrupts.raised.type
    finally:
        interrupts.listener.function = before


def test_loops_of_other_threads_end_too(check):
    interrupts.raised.type = Pointer(1)
    try:
        assert check(0) == (0, 0)
    finally:
        interrupts.raised.type = Pointer(0)


def test_a_short_run_ends_when_its_time_is_up(check):
    record = interrupts.short_run
    record.thread = pthread_self()
    try:
        record.limit = 10**12
        begun = check(0)
        assert begun[0] == 1 and begun[1] > 0 and check(begun[1])[0] == 1
        assert record.unfinished == 0
        record.limit = 1
        assert check(begun[1])[0] == 0 and record.unfinished == 1
        record.limit = record.unfinished = 0
        assert check(0)[0] == 0 and record.unfinished == 1
    finally:
        record.thread, record.unfinished, record.limit = Pointer(0), 0, 0
