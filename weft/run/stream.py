"""A stream: work is enqueued and done in order by a thread; what calls out lets others go on."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Task = Callable[[], None]
_here = threading.local()


class Stream:
    """Work in order, on one thread; a second one takes over while the first waits for a callback.

    A callback may itself run programs and wait for them, from whatever thread.
    """

    def __init__(self, name: str = "weft") -> None:
        self.name = name
        self.tasks: deque[Task] = deque()
        self.changed = threading.Condition()
        self.free = 0  # threads that wait for work
        self.busy = 0  # threads that do work and are not inside of a callback
        self.outside = 0  # threads that are inside of a callback

    def enqueue(self, task: Task) -> None:
        """Have something done after all that was enqueued before; it must not raise."""
        with self.changed:
            self.tasks.append(task)
            self._staff()
            self.changed.notify()

    def _staff(self) -> None:
        """Start a thread if there is work and nobody to do it."""
        if not self.busy and not self.free and self.tasks:
            self.free += 1
            threading.Thread(target=self._work, name=self.name, daemon=True).start()

    def _work(self) -> None:
        _here.stream = self
        while True:
            with self.changed:
                while self.busy or not self.tasks:
                    if self.busy and self.free > 1:  # one is enough to wait
                        self.free -= 1
                        return
                    self.changed.wait()
                task = self.tasks.popleft()
                self.free -= 1
                self.busy += 1
            try:
                task()
            finally:
                del task  # what it holds must not live on while the thread waits
                with self.changed:
                    self.busy -= 1
                    self.free += 1
                    self.changed.notify_all()

    @contextmanager
    def released(self) -> Iterator[None]:
        """Let another thread do what comes next, while this one calls out."""
        with self.changed:
            self.busy -= 1
            self.outside += 1
            self._staff()
            self.changed.notify_all()
        try:
            yield
        finally:
            with self.changed:
                self.busy += 1  # for a while there may be two at work, on different programs
                self.outside -= 1


@contextmanager
def released() -> Iterator[None]:
    """The same for the stream whose thread this is, if it is one's."""
    stream: Stream | None = getattr(_here, "stream", None)
    if stream is None:
        yield
        return
    with stream.released():
        yield


DEFAULT = Stream()
