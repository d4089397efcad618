"""Streams of the host: their order, and events that order two of them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from weft.array.stream import HostStream, released


class Task:
    """Something to be done, which may call a function of the user's."""

    is_ready = True

    def __init__(self, work: Callable[[], object], calls_host: bool = False) -> None:
        self.work, self.calls_host = work, calls_host

    def __call__(self) -> None:
        if self.calls_host:
            with released():
                self.work()
        else:
            self.work()

    def abandon(self, error: BaseException) -> None:
        raise AssertionError("nothing interrupts it") from error


def test_an_event_of_an_idle_stream_is_ready():
    stream = HostStream()
    assert stream.record().is_ready
    stream.synchronize()


@pytest.mark.parametrize("calls_host", [False, True])
def test_an_event_is_ready_after_what_was_enqueued_before(calls_host: bool):
    stream, go, done = HostStream(), threading.Event(), []
    stream.enqueue(Task(lambda: go.wait(30), calls_host))
    stream.enqueue(Task(lambda: done.append("first"), True))
    event = stream.record()
    stream.enqueue(Task(lambda: done.append("second"), True))
    assert not event.is_ready
    go.set()
    event.wait()
    assert done[:1] == ["first"]
    stream.synchronize()
    assert done == ["first", "second"]


@pytest.mark.parametrize("calls_host", [False, True])
def test_a_stream_waits_for_an_event_of_another(calls_host: bool):
    """What does not wait for the event goes on, also while a function of the user's runs."""
    one, other = HostStream("one"), HostStream("other")
    go, leave, done = threading.Event(), threading.Event(), []
    one.enqueue(Task(lambda: (go.wait(30), done.append("one"))))
    event = one.record()
    other.enqueue(Task(lambda: done.append("before")))
    if calls_host:
        other.enqueue(Task(lambda: leave.wait(30), True))
    other.wait(event)
    other.enqueue(Task(lambda: done.append("after")))
    passed = other.record()
    assert not passed.is_ready
    while "before" not in done:
        pass
    assert done == ["before"]
    go.set()
    one.synchronize()
    leave.set()
    passed.wait()
    assert done == ["before", "one", "after"]
    other.wait(event)  # that is over: nothing is enqueued
    assert other.record().is_ready or other.synchronize() is None


def test_what_nothing_waits_for_is_shown(monkeypatch: pytest.MonkeyPatch):
    class Lost:
        is_ready = False

        def wait(self) -> None:
            raise OSError("the device is gone")

    shown: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda told: shown.append(told.exc_value))
    stream = HostStream()
    stream.wait(Lost())
    stream.synchronize()
    assert [str(error) for error in shown] == ["the device is gone"]


def test_another_worker_comes_while_a_function_of_the_users_waits_for_it():
    stream = HostStream()
    for _ in range(3):
        came, seen = threading.Event(), []
        stream.enqueue(Task(lambda came=came, seen=seen: seen.append(came.wait(10)), True))
        stream.enqueue(Task(came.set))
        while not seen:
            pass
        assert seen == [True]
    stream.synchronize()
