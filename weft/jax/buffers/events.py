"""Events: completion state, waiting, and callbacks."""

from __future__ import annotations

from functools import partial
from typing import Any

from weft.array.future import StackFuture
from weft.jax.buffers.watching import is_computed, watch_later
from weft.jax.native.handles import Handles
from weft.jax.native.records import EVENT, FAILED, READY, CountedRecord, words
from weft.jax.native.slots import SlotFunction

_LIVE = CountedRecord.live.word


def event_of(handles: Handles, awaited: StackFuture) -> int:
    """An event handle for a future."""
    if awaited.is_ready and awaited.error is None and is_computed(awaited):
        return handles.ready
    event = handles.keep(EVENT, awaited)
    follow(handles, awaited, event)
    return event


def follow(handles: Handles, awaited: StackFuture, event: int) -> None:
    """Settle an event or an array record when a future completes; kept alive until then."""
    words(event)[_LIVE] += 1
    awaited.then(partial(_completed, handles, awaited, event))


def _completed(handles: Handles, awaited: StackFuture, event: int) -> None:
    """Settle, unless a device still computes what the host has enqueued."""
    if awaited.error is None and not is_computed(awaited):
        watch_later(awaited, event)
    else:
        settle(handles, awaited, event)


def settle(handles: Handles, awaited: StackFuture, event: int) -> None:
    """Tell JAX the outcome of a future; drops a reference to the record."""
    error = awaited.error
    if error is None:
        handles.native.settle(event, READY, 0)
    else:
        handles.native.settle(event, FAILED, handles.error_of_event(error))


def _await(handles: Handles, args: Any) -> None:
    handles.objects[args.event].settle()


SLOTS: tuple[tuple[str, SlotFunction], ...] = (("Event_Await", _await),)
