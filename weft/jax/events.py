"""Events: JAX asks whether something is done, waits for it, or wants to be called then."""

from __future__ import annotations

import ctypes
from typing import Any

from weft.array.awaited import Awaited
from weft.jax.handles import EVENT_STATE, Handles
from weft.jax.records import EVENT, FAILED, FIELDS, READY, words
from weft.jax.slots import slot

_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


class Event:
    """Something that will be done, or will fail."""

    def __init__(self, handles: Handles, awaited: Awaited) -> None:
        self.handles, self.awaited = handles, awaited
        self.callbacks: list[tuple[int, int]] = []
        self.address = 0
        self.settled = self.gone = False

    def settle(self) -> None:
        """It is done: say so, and call whoever wants to be called."""
        with self.handles.lock:
            error = self.awaited.error
            words(self.address)[EVENT_STATE] = READY if error is None else FAILED
            self.settled = True
            waiting, self.callbacks = self.callbacks, []
            if self.gone:
                self.handles.native.give(self.address)
        for callback, given in waiting:
            _CALLBACK(callback)(0 if error is None else self.handles.error(error), given)

    def released(self) -> bool:
        """JAX has let go of it: whether the record can be used again."""
        with self.handles.lock:
            self.gone = True
            return self.settled


def event_of(handles: Handles, awaited: Awaited) -> int:
    """A handle of the event that something is there."""
    if awaited.is_ready and awaited.error is None:
        return handles.ready
    event = Event(handles, awaited)
    event.address = handles.keep(EVENT, event)
    awaited.then(event.settle)
    return event.address


@slot("Event_Await")
def _await(handles: Handles, args: Any) -> None:
    handles.kept[args.event].awaited.wait()


@slot("Event_Error")
def _error(handles: Handles, args: Any) -> None:
    error = handles.kept[args.event].awaited.error
    if error is not None:
        raise error


@slot("Event_OnReady")
def _on_ready(handles: Handles, args: Any) -> None:
    event: Event = handles.kept[args.event]
    with handles.lock:
        if not event.settled:
            event.callbacks.append((args.callback, args.user_arg))
            return
    error = event.awaited.error
    _CALLBACK(args.callback)(0 if error is None else handles.error(error), args.user_arg)


@slot("Buffer_ReadyEvent")
def _buffer_ready(handles: Handles, args: Any) -> None:
    family = words(args.buffer)[FIELDS["buffer"]["family"]]
    args.event = event_of(handles, handles.kept[family])
