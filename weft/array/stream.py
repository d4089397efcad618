"""Host streams: work is enqueued and done in order by a thread, and callbacks may call back.

While a run is inside of a callback, what the callback itself enqueues or waits for is done at once,
by its own thread. A second thread goes on with the work that calls nobody, for whoever else waits;
work with callbacks keeps its order.

A thread that waits for a result takes over what has not been begun, if it is next and calls nobody:
the stream's own thread may take long to wake up.

Threads end when there is no work for a moment, and the process ends after them: what was enqueued
is done, also where nobody waits for it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Protocol, Self

from weft.array.awaited import Awaited
from weft.array.memory import Event
from weft.errors import WeftError

LINGER = 0.05  # seconds that a thread waits for more work


class Task(Protocol):
    """Something to be done, which must not raise."""

    calls_host: bool

    @property
    def is_ready(self) -> bool:
        """Whether all that it needs is there."""
        ...

    def __call__(self) -> None:
        """Do it."""
        ...

    def abandon(self, error: BaseException) -> None:
        """Say that an interrupt has kept it from being done."""
        ...


class _Here(threading.local):
    """Whose thread this is, and which tasks it is in the midst of."""

    stream: HostStream | None = None
    tasks: list[Task]

    def __init__(self) -> None:
        self.tasks = []


_here = _Here()


class HostEvent(Awaited):
    """A point in a host stream, which is ready when all before it is done."""

    def reach(self) -> Self:
        """Say that all before it is done."""
        self._helper = None
        self._tell()
        return self


class _Mark:
    """A task that waits for an event of another stream, or that says where an event is."""

    calls_host = True  # so that it keeps its order

    def __init__(self, event: HostEvent, after: Event | None = None) -> None:
        self.results, self.event, self.after = (event,), event, after

    @property
    def is_ready(self) -> bool:
        return self.after is None or self.after.is_ready

    def __call__(self) -> None:
        try:
            if self.after is not None:
                self.after.wait()
        except BaseException as error:  # noqa: BLE001  # what has failed is its own stream's work
            report(error)
        self.event.reach()

    def abandon(self, error: BaseException) -> None:
        self.event.fail(error)


def report(error: BaseException) -> None:
    """Show an error that nothing waits for."""
    shown = (type(error), error, error.__traceback__, threading.current_thread())
    threading.excepthook(threading.ExceptHookArgs(shown))


class HostStream:
    """Work in order."""

    def __init__(self, name: str = "weft") -> None:
        self.name = name
        self.tasks: deque[Task] = deque()
        self.lock = threading.RLock()  # an interrupt cannot leave it locked, as it can a condition
        self.changed = threading.Condition(self.lock)
        self.free = 0  # threads that wait for work
        self.busy = 0  # threads that do work and are not inside of a callback
        self.outside = 0  # threads that are inside of a callback
        # A mark for each run beside the queue. It is there before the run takes its arguments out
        # of arrays: whoever deletes an array and then finds no mark may write over the memory.
        self.beside: list[None] = []

    def enqueue(self, task: Task) -> None:
        """Have something done after all that was enqueued before; from a callback, at once."""
        if self.is_inside:
            self._do(task)
            return
        with self.lock:
            self.tasks.append(task)
            self._staff()
            self.changed.notify_all()

    def record(self) -> HostEvent:
        """The point after all that is enqueued now."""
        event = HostEvent().helped_by(self.help)
        with self.lock:
            if self.is_idle:
                return event.reach()
            self.enqueue(_Mark(event))
        return event

    def wait(self, event: Event) -> None:
        """Have what is enqueued from now on begin after an event of another stream."""
        if not event.is_ready:
            self.enqueue(_Mark(HostEvent(), event))

    def synchronize(self) -> None:
        """Wait until all that is enqueued now is done."""
        self.record().wait()

    @property
    def is_inside(self) -> bool:
        """Whether this thread does the stream's work, so that a callback has called."""
        return _here.stream is self

    @property
    def is_idle(self) -> bool:
        """Whether all that was enqueued is done."""
        return not (self.tasks or self.busy or self.outside)

    def _next(self) -> Task | None:
        """The task that can be begun now; inside of a callback, one that calls nobody."""
        if self.busy or not self.tasks:
            return None
        if not self.outside:
            return self.tasks[0]
        for task in self.tasks:
            if isinstance(task, _Mark) and task.after is not None:
                return None  # nothing passes it
            if not task.calls_host and task.is_ready:
                return task
        return None

    def _staff(self) -> None:
        """Start a thread if there is work and nobody to do it."""
        if not self.free and self._next() is not None:
            self.free += 1
            threading.Thread(target=self._work, name=self.name, daemon=False).start()

    def _go_on(self) -> None:
        """Have what is left to do looked at: nobody is woken if that is nothing."""
        if self.tasks:
            self._staff()
            self.changed.notify_all()

    def _work(self) -> None:
        _here.stream = self
        while (task := self._take()) is not None:
            try:
                self._do(task)
            finally:
                del task  # what it holds must not live on while the thread waits
                with self.lock:
                    self.busy -= 1
                    self.free += 1
                    self._go_on()

    def _take(self) -> Task | None:
        """Wait for a task and take it on; None if none comes for a while."""
        with self.lock:
            self.changed.wait_for(lambda: self._next() is not None, LINGER)
            self.free -= 1
            task = self._next()
            if task is not None:
                self.tasks.remove(task)
                self.busy += 1
            return task

    def _do(self, task: Task) -> None:
        _here.tasks.append(task)
        try:
            task()
        finally:
            _here.tasks.pop()
            with self.lock:
                self._go_on()  # what waited for its results may be begun

    @contextmanager
    def released(self) -> Iterator[None]:
        """Let another thread go on, while this one is inside of a callback."""
        with self.lock:
            self.busy -= 1
            self.outside += 1
            self._go_on()
        try:
            yield
        finally:
            with self.lock:
                self.busy += 1  # for a while there may be two at work, on different programs
                self.outside -= 1
                self._go_on()

    def help(self, array: Awaited, patient: bool = True) -> None:
        """Do what must be done before an array is ready, if this thread is the one to do it.

        One that is not patient, and of another's, only waits.
        """
        if _here.stream is not self:
            if patient:
                self._take_over(array)
            return
        while not array.is_ready:
            if any(array is r for task in _here.tasks for r in getattr(task, "results", ())):
                raise WeftError(
                    "a callback waits for a result of the program that calls it",
                    help="wait for it where the program was called",
                )
            with self.lock:
                task = self.tasks.popleft() if self.tasks else None
            if task is None:
                return  # another thread is at it
            self._do(task)

    def _take_over(self, array: Awaited) -> None:
        """Do what is next, in order, until an array is ready or somebody else is at it.

        Tasks do not raise, but an interrupt may come at any time to a thread of the user's: what it
        kept from being done is told to those who wait.
        """
        while not array.is_ready:
            before, taken = _here.stream, False
            try:
                with self.lock:
                    idle = self.tasks and not self.busy and not self.outside
                    task = self.tasks[0] if idle else None
                    if task is None or task.calls_host or not task.is_ready:
                        return
                    self.busy += 1
                    taken = True
                    self.tasks.popleft()
                _here.stream = self
                self._do(task)
            except BaseException as error:
                if taken and task is not None:
                    task.abandon(error)
                raise
            finally:
                _here.stream = before
                task = None
                if taken:
                    with self.lock:
                        self.busy -= 1
                        self._go_on()


@contextmanager
def released() -> Iterator[None]:
    """Let the stream whose thread this is go on, if it is one's, while a callback runs."""
    stream = _here.stream
    if stream is None:
        yield
        return
    with stream.released():
        yield


_around: list[Callable[[], AbstractContextManager[None]]] = []


def around_calls(enter: Callable[[], AbstractContextManager[None]]) -> None:
    """Have something entered wherever a program calls a function of the user's."""
    _around.append(enter)


@contextmanager
def calling() -> Iterator[None]:
    """Where a program calls a function of the user's: others go on meanwhile."""
    with ExitStack() as stack:
        stack.enter_context(released())
        for enter in _around:
            stack.enter_context(enter())
        yield


DEFAULT = HostStream()
