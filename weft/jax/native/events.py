"""Events in native code: whether something is there, and callbacks for when it is.

An array's record is itself its ready event, so nothing is made where JAX asks for
it. Callbacks are put onto a list; the list is closed when the event is settled.
"""

from __future__ import annotations

from weft.jax.native.bridge import python_bridge
from weft.jax.native.record_code import destroy
from weft.jax.native.records import (
    ENQUEUED,
    PENDING,
    READY,
    ArrayRecord,
    BufferRecord,
    CountedRecord,
    EventRecord,
    ReadyCallback,
    Waiter,
    offsets_of,
)
from weft.jax.native.state import PluginState, state
from weft.native.function import native, to_i32
from weft.native.libc import free, malloc, write
from weft.native.memory import Member, Pointer, Struct

CLOSED = 1  # what the list of callbacks is when an event is settled
ASKING = ("Event_Await",)  # slots that ask Python where the answer is not known
_ask = python_bridge(*ASKING)


class IsReadyArgs(Struct, offsets=offsets_of("Event_IsReady_Args")):
    """The arguments of `Event_IsReady`."""

    event: Member[EventRecord]
    is_ready: Member[bool]


class EventArgs(Struct, offsets=offsets_of("Event_Error_Args")):
    """The arguments of `Event_Error` and of `Event_Await`."""

    event: Member[EventRecord]


assert EventArgs.event.offset == offsets_of("Event_Await_Args")["event"][0]


class ReadyEventArgs(Struct, offsets=offsets_of("Buffer_ReadyEvent_Args")):
    """The arguments of `Buffer_ReadyEvent`."""

    buffer: Member[BufferRecord]
    event: Member[EventRecord]


class OnReadyArgs(Struct, offsets=offsets_of("Event_OnReady_Args")):
    """The arguments of `Event_OnReady`."""

    event: Member[EventRecord]
    callback: Member[ReadyCallback]
    user_arg: Member[Pointer]


@native(name="Event_IsReady")
def is_ready(args: IsReadyArgs) -> Pointer:
    """Whether something is there."""
    args.is_ready = EventRecord.state.load(args.event, "acquire") != 0
    return Pointer(0)


@native(name="Event_Error")
def error_of(args: EventArgs) -> Pointer:
    """The error of a settled event, or null."""
    return EventRecord.error.load(args.event, "acquire")


@native(name="Event_Await")
def await_event(args: EventArgs) -> Pointer:
    """Wait for something: Python does."""
    if EventRecord.state.load(args.event, "acquire") != 0:
        return EventRecord.error.load(args.event, "acquire")
    return _ask(args)


@native(name="Buffer_ReadyEvent")
def ready_event(args: ReadyEventArgs) -> Pointer:
    """The event that a buffer is there: one for all that are, or its array."""
    array = args.buffer.array
    known = EventRecord.state.load(array, "acquire")
    if known == ENQUEUED:
        known = watch(array)
    if known == READY:
        args.event = PluginState.ready.load(state, "acquire")
    else:
        # JAX owns the event that it gets, and destroys it: that drops this reference, not the
        # array's own.
        CountedRecord.live.add(array, 1, "acq_rel")
        args.event = array
    return Pointer(0)


@native
def watch(array: ArrayRecord) -> int:
    """Have an enqueued array settled when the device has computed it; its state.

    JAX asks with a lock held that a thread with Python's lock may wait for, so that Python cannot
    be called: a thread of Python's is woken by a pipe.
    """
    pipe = PluginState.wake.load(state, "acquire")
    if pipe == 0:
        return READY  # at the end of the process, when devices are done
    if not EventRecord.state.replace(array, ENQUEUED, PENDING, "acq_rel", "acquire"):
        return EventRecord.state.load(array, "acquire")  # another thread asks for it, too
    CountedRecord.live.add(array, 1, "acq_rel")  # which `settle` consumes
    done = False
    while not done:
        head = PluginState.asked.load(state, "monotonic")
        array.asked = head
        done = PluginState.asked.replace(state, head, array, "release", "monotonic")
    # A full pipe refuses the byte: its reader is awake then, or will be.
    write(to_i32(pipe), state, 1)
    return PENDING


@native
def take_asked() -> ArrayRecord:
    """Take the list of enqueued arrays to be watched."""
    return PluginState.asked.swap(state, ArrayRecord(0), "acquire")


@native(name="Event_OnReady")
def on_ready(args: OnReadyArgs) -> Pointer:
    """Have JAX called when something is there."""
    event = args.event
    # A first look without an allocation: most events are settled when JAX asks.
    if EventRecord.waiting.load(event, "acquire") != Waiter(CLOSED):
        waiter = Waiter(malloc(Waiter.SIZE))
        waiter.callback = args.callback
        waiter.given = args.user_arg
        head = EventRecord.waiting.load(event, "acquire")
        while head != Waiter(CLOSED):
            waiter.next = head
            if EventRecord.waiting.replace(event, head, waiter, "acq_rel", "acquire"):
                return Pointer(0)
            head = EventRecord.waiting.load(event, "acquire")
        # Settled between the first look and the exchange: this thread runs the callback, as below.
        free(waiter)
    args.callback(EventRecord.error.load(event, "acquire"), args.user_arg)
    return Pointer(0)


@native
def settle(event: EventRecord, known: int, error: Pointer) -> None:
    """Settle an event, as ready or failed, and call its callbacks; consumes a reference to it."""
    # The error before the state: a thread that sees the state (acquire) then sees the error.
    EventRecord.error.store(event, error, "release")
    EventRecord.state.store(event, known, "release")
    # Closing and taking the list is one step: a callback is either on it, or its thread sees CLOSED
    # and calls it itself. None is called twice or lost.
    waiter = EventRecord.waiting.swap(event, Waiter(CLOSED), "acq_rel")
    while waiter:
        following = waiter.next
        callback = waiter.callback
        given = waiter.given
        free(waiter)
        callback(error, given)
        waiter = following
    destroy(event)


EVENTS = (is_ready, error_of, await_event, ready_event, on_ready)
