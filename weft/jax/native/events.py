"""Events in native code: whether something is there, and who is called when it is.

A value's family is itself the event that the value is there, so nothing is made where JAX asks for
it. Whoever wants to be called is put onto a list; the list is closed when the event is settled.
"""

from __future__ import annotations

from weft.jax.abi import Api
from weft.jax.native.bridge import word
from weft.jax.native.records import READY, at

# Slots that are native where the answer is known, and ask Python elsewhere.
ASKING = ("Event_Await",)
EVENTS = (*ASKING, "Event_IsReady", "Event_Error", "Event_OnReady", "Buffer_ReadyEvent")

assert all(at("family", name) == at("event", name) for name in ("state", "error", "waiting"))
_STATE, _ERROR, _WAITING = (at("event", name) for name in ("state", "error", "waiting"))
_LIVE = at("record", "live")


def events(api: Api) -> str:
    """The functions of events."""
    return "\n".join([_FIELD, _questions(api), _ready_event(api), _on_ready(api), _SETTLE])


def _event_at(api: Api, slot: str) -> int:
    return api.offset(slot, "event")[0]


def _questions(api: Api) -> str:
    """Whether something is there, and what has gone wrong; Python waits for it."""
    is_ready, _ = api.offset("Event_IsReady", "is_ready")
    return f"""
define ptr @Event_IsReady(ptr %args) {{
  %event = call ptr @field(ptr %args, i64 {_event_at(api, "Event_IsReady")})
  %state = call ptr @field(ptr %event, i64 {_STATE})
  %is = icmp ne ptr %state, null
  %byte = zext i1 %is to i8
  %into = getelementptr i8, ptr %args, i64 {is_ready}
  store i8 %byte, ptr %into
  ret ptr null
}}

define ptr @Event_Error(ptr %args) {{
  %event = call ptr @field(ptr %args, i64 {_event_at(api, "Event_Error")})
  %error = call ptr @field(ptr %event, i64 {_ERROR})
  ret ptr %error
}}

define ptr @Event_Await(ptr %args) {{
  %event = call ptr @field(ptr %args, i64 {_event_at(api, "Event_Await")})
  %state = call ptr @field(ptr %event, i64 {_STATE})
  %is = icmp ne ptr %state, null
  br i1 %is, label %known, label %ask
known:
  %error = call ptr @field(ptr %event, i64 {_ERROR})
  ret ptr %error
ask:
  %answer = call ptr @ask_Event_Await(ptr %args)
  ret ptr %answer
}}"""


def _ready_event(api: Api) -> str:
    """The event that a buffer is there: one for all that are, or its family."""
    slot = "Buffer_ReadyEvent"
    buffer, _ = api.offset(slot, "buffer")
    return f"""
define ptr @{slot}(ptr %args) {{
  %buffer = call ptr @field(ptr %args, i64 {buffer})
  %family = call ptr @field(ptr %buffer, i64 {at("buffer", "family")})
  %state = call ptr @field(ptr %family, i64 {_STATE})
  %into = getelementptr i8, ptr %args, i64 {_event_at(api, slot)}
  %is = icmp eq ptr %state, inttoptr (i64 {READY} to ptr)
  br i1 %is, label %known, label %family_itself
known:
  %ready = call ptr @kept(i64 {word("ready")})
  store ptr %ready, ptr %into
  ret ptr null
family_itself:
  %at_live = getelementptr i8, ptr %family, i64 {_LIVE}
  %was = atomicrmw add ptr %at_live, i64 1 acq_rel, align 8
  store ptr %family, ptr %into
  ret ptr null
}}"""


def _on_ready(api: Api) -> str:
    """Have JAX called when something is there."""
    slot = "Event_OnReady"
    callback, given = (api.offset(slot, name)[0] for name in ("callback", "user_arg"))
    return f"""
define ptr @{slot}(ptr %args) {{
entry:
  %event = call ptr @field(ptr %args, i64 {_event_at(api, slot)})
  %callback = call ptr @field(ptr %args, i64 {callback})
  %given = call ptr @field(ptr %args, i64 {given})
  %waiting = getelementptr i8, ptr %event, i64 {_WAITING}
  %first = load atomic ptr, ptr %waiting acquire, align 8
  %already = icmp eq ptr %first, inttoptr (i64 1 to ptr)
  br i1 %already, label %now, label %make
make:
  %waiter = call ptr @malloc(i64 24)
  %at_callback = getelementptr i8, ptr %waiter, i64 8
  store ptr %callback, ptr %at_callback
  %at_given = getelementptr i8, ptr %waiter, i64 16
  store ptr %given, ptr %at_given
  br label %push
push:
  %head = load atomic ptr, ptr %waiting acquire, align 8
  %closed = icmp eq ptr %head, inttoptr (i64 1 to ptr)
  br i1 %closed, label %late, label %link
link:
  store ptr %head, ptr %waiter
  %swap = cmpxchg ptr %waiting, ptr %head, ptr %waiter acq_rel acquire
  %ok = extractvalue {{ ptr, i1 }} %swap, 1
  br i1 %ok, label %end, label %push
late:
  call void @free(ptr %waiter)
  br label %now
now:
  %error = call ptr @field(ptr %event, i64 {_ERROR})
  call void %callback(ptr %error, ptr %given)
  br label %end
end:
  ret ptr null
}}"""


_FIELD = """
declare ptr @malloc(i64)
declare void @free(ptr)

define internal ptr @field(ptr %record, i64 %at) {
  %from = getelementptr i8, ptr %record, i64 %at
  %found = load atomic ptr, ptr %from acquire, align 8
  ret ptr %found
}
"""

_SETTLE = f"""
; It is there, or there is an error: call all who wait. Whoever calls this held the event for it.
define void @settle(ptr %event, i64 %state, ptr %error) {{
entry:
  %at_error = getelementptr i8, ptr %event, i64 {_ERROR}
  store atomic ptr %error, ptr %at_error release, align 8
  %at_state = getelementptr i8, ptr %event, i64 {_STATE}
  store atomic i64 %state, ptr %at_state release, align 8
  %waiting = getelementptr i8, ptr %event, i64 {_WAITING}
  %list = atomicrmw xchg ptr %waiting, ptr inttoptr (i64 1 to ptr) acq_rel, align 8
  br label %loop
loop:
  %waiter = phi ptr [%list, %entry], [%next, %one]
  %none = icmp eq ptr %waiter, null
  br i1 %none, label %end, label %one
one:
  %next = load ptr, ptr %waiter
  %at_callback = getelementptr i8, ptr %waiter, i64 8
  %callback = load ptr, ptr %at_callback
  %at_given = getelementptr i8, ptr %waiter, i64 16
  %given = load ptr, ptr %at_given
  call void @free(ptr %waiter)
  call void %callback(ptr %error, ptr %given)
  br label %loop
end:
  call void @destroy(ptr %event)
  ret void
}}
"""
