"""Host streams: queues of tasks run in order by a thread; tasks may call user callbacks.

While a task is inside of a callback, work that the callback itself enqueues or waits for runs
immediately on its own thread. A second thread continues with tasks without callbacks, for other
waiters; tasks with callbacks keep their order.

A thread that waits for a result runs pending tasks itself, if they are next and have no callbacks:
waking the stream's own thread may take longer.

Threads exit after a short idle time, and the process exits after them: enqueued work is always
completed, even without a waiter.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Protocol, Self

from weft.array.future import StackFuture
from weft.array.memory import Event
from weft.errors import WeftError

LINGER = 0.05  # seconds of idling before a thread exits


class Task(Protocol):
    """A unit of work, which must not raise."""

    calls_host: bool

    @property
    def is_ready(self) -> bool:
        """Whether all of its inputs are ready."""
        ...

    def __call__(self) -> None:
        """Run it."""
        ...

    def abandon(self, error: BaseException) -> None:
        """Fail its results because of an interrupt."""
        ...


class _Here(threading.local):
    """Thread-local state: the stream whose worker this is, and the tasks on its stack."""

    stream: HostStream | None = None
    tasks: list[Task]

    def __init__(self) -> None:
        self.tasks = []


_here = _Here()


class HostEvent(StackFuture):
    """A point in a host stream, ready when all earlier work is done."""

    def reach(self) -> Self:
        """Mark as reached."""
        self._helper = None
        self._complete()
        return self


class _Mark:
    """A task that waits for another stream's event, or that sets an event."""

    calls_host = True  # keeps its place in the order

    def __init__(self, event: HostEvent, after: Event | None = None) -> None:
        self.results, self.event, self.after = (event,), event, after

    @property
    def is_ready(self) -> bool:
        return self.after is None or self.after.is_ready

    def __call__(self) -> None:
        try:
            if self.after is not None:
                self.after.wait()
        except BaseException as error:  # noqa: BLE001  # the other stream's tasks own it
            report(error)
        self.event.reach()

    def abandon(self, error: BaseException) -> None:
        self.event.fail(error)


def report(error: BaseException) -> None:
    """Print an error that has no waiter."""
    shown = (type(error), error, error.__traceback__, threading.current_thread())
    threading.excepthook(threading.ExceptHookArgs(shown))


class HostStream:
    """An ordered queue of tasks with worker threads."""

    def __init__(self, name: str = "weft") -> None:
        self.name = name
        self.tasks: deque[Task] = deque()
        self.lock = threading.RLock()  # safe under interrupts, unlike a condition variable
        self.changed = threading.Condition(self.lock)
        self.free = 0  # idle threads
        self.busy = 0  # threads running a task outside of callbacks
        self.outside = 0  # threads inside of a callback
        # A mark for each run that bypasses the queue. It is set before the run takes its arguments
        # out of arrays: a donor that deletes an array and then sees no mark may overwrite the
        # memory.
        self.beside: list[None] = []

    def enqueue(self, task: Task) -> None:
        """Run a task after all enqueued ones; inside of a callback, immediately."""
        if self.is_inside:
            self._do(task)
            return
        with self.lock:
            self.tasks.append(task)
            self._staff()
            self.changed.notify_all()

    def record(self) -> HostEvent:
        """An event after all work enqueued so far."""
        event = HostEvent().helped_by(self.help)
        with self.lock:
            # Nothing to wait for: no thread is started for an event that has passed.
            if self.is_idle:
                return event.reach()
            self.enqueue(_Mark(event))
        return event

    def wait(self, event: Event) -> None:
        """Make later work wait for another stream's event."""
        if not event.is_ready:
            self.enqueue(_Mark(HostEvent(), event))

    def synchronize(self) -> None:
        """Block until all work enqueued so far is done."""
        self.record().wait()

    @property
    def is_inside(self) -> bool:
        """Whether this thread is a worker of the stream, so a callback is active."""
        return _here.stream is self

    @property
    def is_idle(self) -> bool:
        """Whether the queue is drained."""
        return not (self.tasks or self.busy or self.outside)

    def _next(self) -> Task | None:
        """The next runnable task; inside of a callback, one without callbacks."""
        if self.busy or not self.tasks:
            return None
        if not self.outside:
            return self.tasks[0]
        # A callback is running, perhaps for long: ready tasks without callbacks may overtake its
        # program, up to one that waits for another stream.
        for task in self.tasks:
            if isinstance(task, _Mark) and task.after is not None:
                return None  # order barrier
            if not task.calls_host and task.is_ready:
                return task
        return None

    def _staff(self) -> None:
        """Start a worker if tasks are pending and none is idle."""
        if not self.free and self._next() is not None:
            self.free += 1
            # Not a daemon: enqueued work, which may write files or print, ends before the process
            # does.
            threading.Thread(target=self._work, name=self.name, daemon=False).start()

    def _go_on(self) -> None:
        """Wake a worker if tasks are pending."""
        if self.tasks:
            self._staff()
            self.changed.notify_all()

    def _work(self) -> None:
        _here.stream = self
        while (task := self._take()) is not None:
            try:
                self._do(task)
            finally:
                del task  # drop references before idling
                with self.lock:
                    self.busy -= 1
                    self.free += 1
                    self._go_on()

    def _take(self) -> Task | None:
        """Wait for a task and take it; None after the idle timeout."""
        with self.lock:
            # Threads linger a little: a loop that enqueues one step after another would otherwise
            # start a thread for each.
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
                self._go_on()  # tasks that depend on its results may be runnable now

    @contextmanager
    def released(self) -> Iterator[None]:
        """Release the stream for the duration of a callback on this thread."""
        with self.lock:
            self.busy -= 1
            self.outside += 1
            self._go_on()
        try:
            yield
        finally:
            with self.lock:
                self.busy += 1  # two workers may overlap for a while, on different programs
                self.outside -= 1
                self._go_on()

    def help(self, array: StackFuture, patient: bool = True) -> None:
        """Run the tasks that an array waits for, if this thread may.

        A thread of the user's only if it is `patient`: with a timeout, it must not start a task of
        unknown length.
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
                # In order, even if the array depends on a later task only: effects of earlier ones
                # must come first.
                task = self.tasks.popleft() if self.tasks else None
            if task is None:
                return  # another thread runs it
            self._do(task)

    def _take_over(self, array: StackFuture) -> None:
        """Run pending tasks in order until an array is ready or another thread takes over.

        Tasks do not raise, but a user's thread may be interrupted at any time: waiters of an
        interrupted task get the interrupt as its error.
        """
        while not array.is_ready:
            before, is_ours = _here.stream, False
            try:
                with self.lock:
                    idle = self.tasks and not self.busy and not self.outside
                    task = self.tasks[0] if idle else None
                    # A callback may block for long, and this thread waits for one array only.
                    if task is None or task.calls_host or not task.is_ready:
                        return
                    self.busy += 1
                    is_ours = True
                    self.tasks.popleft()
                _here.stream = self
                self._do(task)
            except BaseException as error:
                if is_ours and task is not None:
                    task.abandon(error)
                raise
            finally:
                _here.stream = before
                task = None
                if is_ours:
                    with self.lock:
                        self.busy -= 1
                        self._go_on()


@contextmanager
def released() -> Iterator[None]:
    """Release this thread's stream, if any, for the duration of a callback."""
    stream = _here.stream
    if stream is None:
        yield
        return
    with stream.released():
        yield


_around: list[Callable[[], AbstractContextManager[None]]] = []


def around_calls(enter: Callable[[], AbstractContextManager[None]]) -> None:
    """Register a context manager to enter around user callbacks."""
    _around.append(enter)


@contextmanager
def calling() -> Iterator[None]:
    """The context of a user callback: other work proceeds meanwhile."""
    if _here.stream is None and len(_around) == 1:  # as in a small program of JAX's
        with _around[0]():
            yield
        return
    with ExitStack() as stack:
        stack.enter_context(released())
        for enter in _around:
            stack.enter_context(enter())
        yield


DEFAULT = HostStream()
