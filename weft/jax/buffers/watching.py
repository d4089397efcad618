"""The watch: arrays that a device still computes are settled in a thread, once JAX asks for them.

JAX asks with locks of its own held, so that the question is answered without Python: native code
lists the arrays and wakes the thread through a pipe (see `weft.jax.native.events`).
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from weft.array.future import StackFuture
from weft.array.memory import DeviceBuffer
from weft.jax.native.handles import Handles
from weft.jax.native.records import ArrayRecord, words
from weft.jax.native.state import PluginState

WATCHING = "weft-watch"  # the name of the thread
_ASKED, _WAKE = ArrayRecord.asked.word, PluginState.wake.word


class DeviceWatch:
    """Waits for devices on behalf of JAX; `settle` tells the outcome to JAX."""

    def __init__(
        self, handles: Handles, settle: Callable[[Handles, StackFuture, int], None]
    ) -> None:
        self.handles, self.settle = handles, settle
        self.later: deque[tuple[StackFuture, int]] = deque()  # arrays that Python hands over
        self.ended = False
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.writing, False)
        # A daemon, as arrays may be asked for until the process ends; `end` stops it before.
        self.thread = threading.Thread(target=self._run, name=WATCHING, daemon=True)
        self.thread.start()
        handles.native.state[_WAKE] = self.writing
        atexit.register(self.end)

    def add(self, awaited: StackFuture, record: int) -> None:
        """Settle a record when the device has computed its array."""
        self.later.append((awaited, record))
        self._wake()

    def end(self) -> None:
        """Settle all records in the queue, and end the thread: the process outlives the device."""
        self.handles.native.state[_WAKE] = 0
        self.ended = True
        self._wake()
        self.thread.join()

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # a full pipe: the thread is awake
            os.write(self.writing, b"\0")

    def _run(self) -> None:
        while not self.ended:
            os.read(self.reading, 1 << 12)
            self._settle_asked()

    def _settle_asked(self) -> None:
        address: int = self.handles.native.take_asked()
        while address:
            # Before it is settled: then the record may be given back, and be another array's.
            following = words(address)[_ASKED]
            self._wait(self.handles.objects[address], address)
            address = following
        while self.later:
            self._wait(*self.later.popleft())

    def _wait(self, awaited: StackFuture, record: int) -> None:
        try:
            awaited.settle()
        except BaseException as error:  # noqa: BLE001  # a device's error is told to JAX
            if awaited.error is None:
                awaited.fail(error)
        self.settle(self.handles, awaited, record)


_WATCH: list[DeviceWatch] = []


def start_watch(handles: Handles, settle: Callable[[Handles, StackFuture, int], None]) -> None:
    """Watch a device of this process, whose kernels are enqueued."""
    _WATCH[:] = [DeviceWatch(handles, settle)]


def is_computed(awaited: StackFuture) -> bool:
    """Whether a completed array's elements are there: a device may still compute them."""
    held = awaited.held
    if held is None or held.data.__class__ is not DeviceBuffer:
        return True
    event = held.data.event
    return event is None or event.is_ready


def watch_later(awaited: StackFuture, record: int) -> None:
    """Settle a record when the device has computed its array."""
    _WATCH[0].add(awaited, record)
