"""The functions that JAX calls without Python: made as machine code when the plugin is loaded.

JAX reads shapes, devices and states while it holds locks of its own, and frees buffers while a
Python exception is on its way: then no Python may run. So whatever only reads a record, and
whatever destroys one, is native. What is destroyed goes onto a list; Python empties it when it is
called the next time. What needs Python comes through a bridge, which keeps a pending exception
aside, and has an answer ready in case that Python is interrupted before its first line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from weft.jax.abi import Api
from weft.jax.records import BUFFER, READY, SIZE, STATIC, at

# A slot, the field of its arguments that has the handle, what that is, and what fields it fills.
Getter = tuple[str, str, str, Mapping[str, str]]

GETTERS: tuple[Getter, ...] = (
    ("Client_PlatformName", "client", "client",
     {"platform_name": "platform", "platform_name_size": "platform_size"}),
    ("Client_PlatformVersion", "client", "client",
     {"platform_version": "version", "platform_version_size": "version_size"}),
    ("Client_Devices", "client", "client", {"devices": "devices", "num_devices": "device_count"}),
    ("Client_AddressableDevices", "client", "client",
     {"addressable_devices": "devices", "num_addressable_devices": "device_count"}),
    ("Client_AddressableMemories", "client", "client",
     {"addressable_memories": "memories", "num_addressable_memories": "memory_count"}),
    ("Client_TopologyDescription", "client", "client", {"topology": "topology"}),
    ("TopologyDescription_PlatformName", "topology", "client",
     {"platform_name": "platform", "platform_name_size": "platform_size"}),
    ("TopologyDescription_PlatformVersion", "topology", "client",
     {"platform_version": "version", "platform_version_size": "version_size"}),
    ("TopologyDescription_GetDeviceDescriptions", "topology", "client",
     {"descriptions": "descriptions", "num_descriptions": "device_count"}),
    ("DeviceDescription_Id", "device_description", "device", {"id": "id"}),
    ("DeviceDescription_Kind", "device_description", "device",
     {"device_kind": "kind", "device_kind_size": "kind_size"}),
    ("DeviceDescription_DebugString", "device_description", "device",
     {"debug_string": "text", "debug_string_size": "text_size"}),
    ("DeviceDescription_ToString", "device_description", "device",
     {"to_string": "text", "to_string_size": "text_size"}),
    ("Device_GetDescription", "device", "device", {"device_description": "self"}),
    ("Device_LocalHardwareId", "device", "device", {"local_hardware_id": "id"}),
    ("Device_AddressableMemories", "device", "device",
     {"memories": "memories", "num_memories": "memory_count"}),
    ("Device_DefaultMemory", "device", "device", {"memory": "memory"}),
    ("Memory_Id", "memory", "memory", {"id": "id"}),
    ("Memory_Kind", "memory", "memory", {"kind": "kind", "kind_size": "kind_size"}),
    ("Memory_Kind_Id", "memory", "memory", {"kind_id": "kind_id"}),
    ("Memory_DebugString", "memory", "memory",
     {"debug_string": "text", "debug_string_size": "text_size"}),
    ("Memory_ToString", "memory", "memory", {"to_string": "text", "to_string_size": "text_size"}),
    ("Memory_AddressableByDevices", "memory", "memory",
     {"devices": "devices", "num_devices": "device_count"}),
    ("Error_Message", "error", "error", {"message": "message", "message_size": "message_size"}),
    ("Error_GetCode", "error", "error", {"code": "code"}),
    ("Buffer_Device", "buffer", "buffer", {"device": "device"}),
    ("Buffer_Memory", "buffer", "buffer", {"memory": "memory"}),
    ("Buffer_IsDeleted", "buffer", "buffer", {"is_deleted": "deleted"}),
    ("Buffer_ElementType", "buffer", "family", {"type": "type"}),
    ("Buffer_Dimensions", "buffer", "family", {"dims": "dims", "num_dims": "rank"}),
    ("Buffer_UnpaddedDimensions", "buffer", "family",
     {"unpadded_dims": "dims", "num_dims": "rank"}),
    ("Buffer_OnDeviceSizeInBytes", "buffer", "family", {"on_device_size_in_bytes": "nbytes"}),
    ("Executable_NumReplicas", "executable", "executable", {"num_replicas": "replicas"}),
    ("Executable_NumPartitions", "executable", "executable", {"num_partitions": "partitions"}),
    ("Executable_NumOutputs", "executable", "executable", {"num_outputs": "outputs"}),
    ("Executable_Name", "executable", "executable",
     {"executable_name": "name", "executable_name_size": "name_size"}),
    ("Executable_SizeOfGeneratedCodeInBytes", "executable", "executable",
     {"size_in_bytes": "code_bytes"}),
    ("LoadedExecutable_IsDeleted", "executable", "executable", {"is_deleted": "deleted"}),
)  # fmt: skip

# What is the same for all: numbers, and what stays for ever needs nobody to free it.
CONSTANTS: tuple[tuple[str, Mapping[str, int | str]], ...] = (
    ("Client_ProcessIndex", {"process_index": 0}),
    ("DeviceDescription_ProcessIndex", {"process_index": 0}),
    ("DeviceDescription_Attributes", {"num_attributes": 0, "attributes": 0}),
    ("Device_IsAddressable", {"is_addressable": 1}),
    ("Buffer_DynamicDimensionIndices", {"dynamic_dim_indices": 0, "num_dynamic_dims": 0}),
    ("Buffer_IsOnCpu", {"is_on_cpu": 1}),
    ("TopologyDescription_Attributes", {"num_attributes": 0, "attributes": 0}),
    (
        "Device_GetAttributes",
        {"num_attributes": 0, "attributes": 0, "attributes_deleter": "@nothing"},
    ),
    ("Client_Destroy", {}),
    ("TopologyDescription_Destroy", {}),
    ("Error_ForEachPayload", {}),
)

DESTROYERS = (
    ("Error_Destroy", "error"),
    ("Event_Destroy", "event"),
    ("Buffer_Destroy", "buffer"),
    ("Executable_Destroy", "executable"),
    ("LoadedExecutable_Destroy", "executable"),
)

# Slots that are native where the answer is known, and ask Python elsewhere.
EVENTS = ("Event_IsReady", "Event_Await", "Event_Error", "Event_OnReady", "Buffer_ReadyEvent")

# The state that all functions share, in words.
STATE = {"gone": 0, "free": 1, "count": 2, "closed": 3, "ready": 4, "interrupted": 5}
THUNKS = 8  # the words before those that hold what bridges call


def native_slots() -> list[str]:
    """The slots that native code fills."""
    named = [getter[0] for getter in GETTERS] + [name for name, _ in (*CONSTANTS, *DESTROYERS)]
    return [*named, *EVENTS, "Buffer_GetMemoryLayout"]


HELPERS = ("home", "drain", "take", "give", "columns", "spread", "drop", "nothing")


def text(api: Api, bridged: Iterable[str]) -> str:
    """All functions: those of slots are called as their slots are, bridges too."""
    thunks = {name: THUNKS + n for n, name in enumerate(bridged)}
    state = f"@state = internal global [{THUNKS + len(thunks)} x i64] zeroinitializer, align 128"
    parts = [state, _PYTHON, _HELPERS]
    parts += [_getter(api, *getter) for getter in GETTERS]
    parts += [_constant(api, *constant) for constant in CONSTANTS]
    parts += [_destroyer(api, *destroyer) for destroyer in DESTROYERS]
    parts += _events(api)
    parts += [_layout(api)]
    asking = {*EVENTS} & {*thunks}
    for name, word in thunks.items():
        parts.append(_bridge(f"ask_{name}" if name in asking else name, word, name in asking))
    return "\n".join(parts)


def _word(size: int) -> str:
    return f"i{8 * size}"


def _getter(api: Api, slot: str, handle: str, record: str, filled: Mapping[str, str]) -> str:
    lines = [f"define ptr @{slot}(ptr %args) {{", *_load("record", api, slot, handle)]
    source = "record"
    if record == "family":
        lines += [
            f"  %to = getelementptr i8, ptr %record, i64 {at('buffer', 'family')}",
            "  %family = load ptr, ptr %to",
        ]
        source = "family"
    for n, (field, kept) in enumerate(filled.items()):
        offset, size = api.offset(slot, field)
        lines += [
            f"  %from{n} = getelementptr i8, ptr %{source}, i64 {at(record, kept)}",
            f"  %value{n} = load {_word(size)}, ptr %from{n}",
            f"  %into{n} = getelementptr i8, ptr %args, i64 {offset}",
            f"  store {_word(size)} %value{n}, ptr %into{n}",
        ]
    return "\n".join([*lines, "  ret ptr null", "}"])


def _load(name: str, api: Api, slot: str, field: str) -> Iterator[str]:
    offset, _ = api.offset(slot, field)
    yield f"  %at_{name} = getelementptr i8, ptr %args, i64 {offset}"
    yield f"  %{name} = load ptr, ptr %at_{name}"


def _constant(api: Api, slot: str, filled: Mapping[str, int | str]) -> str:
    lines = [f"define ptr @{slot}(ptr %args) {{"]
    for n, (field, value) in enumerate(filled.items()):
        offset, size = api.offset(slot, field)
        lines += [
            f"  %into{n} = getelementptr i8, ptr %args, i64 {offset}",
            f"  store {_word(size) if isinstance(value, int) else 'ptr'} {value}, ptr %into{n}",
        ]
    return "\n".join([*lines, "  ret ptr null", "}"])


def _destroyer(api: Api, slot: str, handle: str) -> str:
    lines = [f"define ptr @{slot}(ptr %args) {{", *_load("record", api, slot, handle)]
    return "\n".join([*lines, "  call void @destroy(ptr %record)", "  ret ptr null", "}"])


def _layout(api: Api) -> str:
    """Row-major: the dims from the last to the first."""
    slot = "Buffer_GetMemoryLayout"
    tiled = api.structs["Buffer_MemoryLayout"]
    base, _ = api.offset(slot, "layout")
    inner = base + tiled.tiled.offset
    fields = api.structs["Buffer_MemoryLayout_Tiled"]
    order, rank, tiles = (
        inner + getattr(fields, name).offset
        for name in ("minor_to_major", "minor_to_major_size", "num_tiles")
    )
    kind = base + tiled.type.offset
    return f"""
define ptr @{slot}(ptr %args) {{
{chr(10).join(_load("record", api, slot, "buffer"))}
  %to = getelementptr i8, ptr %record, i64 {at("buffer", "family")}
  %family = load ptr, ptr %to
  %from_order = getelementptr i8, ptr %family, i64 {at("family", "order")}
  %order = load i64, ptr %from_order
  %from_rank = getelementptr i8, ptr %family, i64 {at("family", "rank")}
  %rank = load i64, ptr %from_rank
  %into_order = getelementptr i8, ptr %args, i64 {order}
  store i64 %order, ptr %into_order
  %into_rank = getelementptr i8, ptr %args, i64 {rank}
  store i64 %rank, ptr %into_rank
  %into_tiles = getelementptr i8, ptr %args, i64 {tiles}
  store i64 0, ptr %into_tiles
  %into_kind = getelementptr i8, ptr %args, i64 {kind}
  store i32 0, ptr %into_kind
  ret ptr null
}}"""


def _events(api: Api) -> list[str]:
    """Functions of events and of what is ready: at once if it is, else Python's business."""
    callback, given = (api.offset("Event_OnReady", f)[0] for f in ("callback", "user_arg"))
    event, _ = api.offset("Buffer_ReadyEvent", "event")
    is_ready, _ = api.offset("Event_IsReady", "is_ready")
    at_once = {
        "Event_Await": "",
        "Event_Error": "",
        "Event_OnReady": f"""
  %at_callback = getelementptr i8, ptr %args, i64 {callback}
  %callback = load ptr, ptr %at_callback
  %at_given = getelementptr i8, ptr %args, i64 {given}
  %given = load ptr, ptr %at_given
  call void %callback(ptr null, ptr %given)""",
        "Buffer_ReadyEvent": f"""
  %at_ready = getelementptr i8, ptr @state, i64 {8 * STATE["ready"]}
  %ready = load i64, ptr %at_ready
  %into = getelementptr i8, ptr %args, i64 {event}
  store i64 %ready, ptr %into""",
    }
    made = [
        f"""
define ptr @Event_IsReady(ptr %args) {{
{chr(10).join(_load("record", api, "Event_IsReady", "event"))}
  %at_state = getelementptr i8, ptr %record, i64 {at("event", "state")}
  %state = load atomic i64, ptr %at_state acquire, align 8
  %is = icmp ne i64 %state, 0
  %byte = zext i1 %is to i8
  %into = getelementptr i8, ptr %args, i64 {is_ready}
  store i8 %byte, ptr %into
  ret ptr null
}}"""
    ]
    for slot, body in at_once.items():
        if slot == "Buffer_ReadyEvent":
            where = [
                *_load("buffer", api, slot, "buffer"),
                f"  %to = getelementptr i8, ptr %buffer, i64 {at('buffer', 'family')}",
                "  %record = load ptr, ptr %to",
            ]
        else:
            where = [*_load("record", api, slot, "event")]
        made.append(
            f"""
define ptr @{slot}(ptr %args) {{
{chr(10).join(where)}
  %at_state = getelementptr i8, ptr %record, i64 {at("event", "state")}
  %state = load atomic i64, ptr %at_state acquire, align 8
  %is = icmp eq i64 %state, {READY}
  br i1 %is, label %known, label %ask
known:{body}
  ret ptr null
ask:
  %answer = call ptr @ask_{slot}(ptr %args)
  ret ptr %answer
}}"""
        )
    return made


def _bridge(name: str, word: int, internal: bool) -> str:
    """Into Python, with what must not be lost on the way."""
    return f"""
define {"internal " if internal else ""}ptr @{name}(ptr %args) {{
  %answer = call ptr @bridge(ptr %args, i64 {8 * word})
  ret ptr %answer
}}"""


assert at("family", "state") == at("event", "state"), "both are asked alike"

_PYTHON = f"""
declare i32 @PyGILState_Check()
declare i32 @Py_IsInitialized()
declare void @PyErr_Fetch(ptr, ptr, ptr)
declare void @PyErr_Restore(ptr, ptr, ptr)

; Call Python: `void thunk(args, answer)`.
define internal ptr @bridge(ptr %args, i64 %at) {{
entry:
  %type = alloca ptr
  %value = alloca ptr
  %trace = alloca ptr
  %answer = alloca ptr
  %at_interrupted = getelementptr i8, ptr @state, i64 {8 * STATE["interrupted"]}
  %interrupted = load ptr, ptr %at_interrupted
  store ptr %interrupted, ptr %answer
  %at_closed = getelementptr i8, ptr @state, i64 {8 * STATE["closed"]}
  %closed = load atomic i64, ptr %at_closed acquire, align 8
  %is_closed = icmp ne i64 %closed, 0
  br i1 %is_closed, label %done, label %open
open:
  %at_thunk = getelementptr i8, ptr @state, i64 %at
  %thunk = load ptr, ptr %at_thunk
  %holds = call i32 @PyGILState_Check()
  %has = icmp ne i32 %holds, 0
  br i1 %has, label %inside, label %outside
inside:
  call void @PyErr_Fetch(ptr %type, ptr %value, ptr %trace)
  call void %thunk(ptr %args, ptr %answer)
  %old_type = load ptr, ptr %type
  %old_value = load ptr, ptr %value
  %old_trace = load ptr, ptr %trace
  call void @PyErr_Restore(ptr %old_type, ptr %old_value, ptr %old_trace)
  br label %done
outside:
  call void %thunk(ptr %args, ptr %answer)
  br label %done
done:
  %made = load ptr, ptr %answer
  ret ptr %made
}}
"""

_HELPERS = f"""
; Where the state is.
define ptr @home() {{
  ret ptr @state
}}

; What is called to free what stays for ever.
define void @nothing(ptr %given) {{
  ret void
}}

; Put a record onto the list of those that are gone; any thread may.
define internal void @destroy(ptr %record) {{
entry:
  %none = icmp eq ptr %record, null
  br i1 %none, label %done, label %look
look:
  %at_what = getelementptr i8, ptr %record, i64 {at("record", "what")}
  %what = load i64, ptr %at_what
  %static = icmp eq i64 %what, {STATIC}
  br i1 %static, label %done, label %push
push:
  %head = load atomic ptr, ptr @state monotonic, align 8
  store ptr %head, ptr %record
  %swap = cmpxchg ptr @state, ptr %head, ptr %record release monotonic
  %ok = extractvalue {{ ptr, i1 }} %swap, 1
  br i1 %ok, label %done, label %push
done:
  ret void
}}

; A record that is free, null if there is none; only with Python's lock, as all below.
define ptr @take() {{
entry:
  %at_free = getelementptr i8, ptr @state, i64 {8 * STATE["free"]}
  %free = load ptr, ptr %at_free
  %none = icmp eq ptr %free, null
  br i1 %none, label %done, label %some
some:
  %next = load ptr, ptr %free
  store ptr %next, ptr %at_free
  %at_count = getelementptr i8, ptr @state, i64 {8 * STATE["count"]}
  %count = load i64, ptr %at_count
  %less = sub i64 %count, 1
  store i64 %less, ptr %at_count
  store ptr null, ptr %free
  br label %done
done:
  ret ptr %free
}}

define void @give(ptr %record) {{
  %at_free = getelementptr i8, ptr @state, i64 {8 * STATE["free"]}
  %free = load ptr, ptr %at_free
  store ptr %free, ptr %record
  store ptr %record, ptr %at_free
  %at_count = getelementptr i8, ptr @state, i64 {8 * STATE["count"]}
  %count = load i64, ptr %at_count
  %more = add i64 %count, 1
  store i64 %more, ptr %at_count
  ret void
}}

; Take back all buffers that are gone; write down the families that have none left, and whatever
; else is gone. At most %room of these; how many there were.
define i64 @drain(ptr %out, i64 %room) {{
entry:
  %list = atomicrmw xchg ptr @state, ptr null acquire, align 8
  br label %loop
loop:
  %record = phi ptr [%list, %entry], [%next, %buffer], [%next, %other], [%next, %last]
  %n = phi i64 [0, %entry], [%n, %buffer], [%more, %other], [%more_last, %last]
  %none = icmp eq ptr %record, null
  br i1 %none, label %done, label %test
test:
  %full = icmp sge i64 %n, %room
  br i1 %full, label %back, label %one
one:
  %next = load ptr, ptr %record
  %at_what = getelementptr i8, ptr %record, i64 {at("record", "what")}
  %what = load i64, ptr %at_what
  %is_buffer = icmp eq i64 %what, {BUFFER}
  br i1 %is_buffer, label %leave, label %other
leave:
  %at_family = getelementptr i8, ptr %record, i64 {at("buffer", "family")}
  %family = load ptr, ptr %at_family
  %at_live = getelementptr i8, ptr %family, i64 {at("family", "live")}
  %live = load i64, ptr %at_live
  %fewer = sub i64 %live, 1
  store i64 %fewer, ptr %at_live
  call void @give(ptr %record)
  %is_last = icmp eq i64 %fewer, 0
  br i1 %is_last, label %last, label %buffer
buffer:
  br label %loop
last:
  %into_last = getelementptr ptr, ptr %out, i64 %n
  store ptr %family, ptr %into_last
  %more_last = add i64 %n, 1
  br label %loop
other:
  store ptr null, ptr %record
  %into = getelementptr ptr, ptr %out, i64 %n
  store ptr %record, ptr %into
  %more = add i64 %n, 1
  br label %loop
back:
  %rest = load ptr, ptr %record
  call void @destroy(ptr %record)
  %was_last = icmp eq ptr %rest, null
  br i1 %was_last, label %done, label %again
again:
  br label %back_loop
back_loop:
  %each = phi ptr [%rest, %again], [%following, %back_loop]
  %following = load ptr, ptr %each
  call void @destroy(ptr %each)
  %end = icmp eq ptr %following, null
  br i1 %end, label %done, label %back_loop
done:
  ret i64 %n
}}

; For each argument the family whose buffers, in the order of devices, were passed; 0 where they are
; of several families or in another order, and 1 where one is deleted.
define void @columns(ptr %lists, i64 %devices, i64 %arguments, ptr %out) {{
entry:
  br label %argument
argument:
  %j = phi i64 [0, %entry], [%j_next, %write]
  %j_end = icmp sge i64 %j, %arguments
  br i1 %j_end, label %done, label %first
first:
  %list0 = load ptr, ptr %lists
  %at0 = getelementptr ptr, ptr %list0, i64 %j
  %buffer0 = load ptr, ptr %at0
  %at_family0 = getelementptr i8, ptr %buffer0, i64 {at("buffer", "family")}
  %family0 = load ptr, ptr %at_family0
  br label %device
device:
  %d = phi i64 [0, %first], [%d_next, %keep]
  %kept = phi ptr [%family0, %first], [%chosen, %keep]
  %d_end = icmp sge i64 %d, %devices
  br i1 %d_end, label %write, label %look
look:
  %at_list = getelementptr ptr, ptr %lists, i64 %d
  %list = load ptr, ptr %at_list
  %at_buffer = getelementptr ptr, ptr %list, i64 %j
  %buffer = load ptr, ptr %at_buffer
  %at_deleted = getelementptr i8, ptr %buffer, i64 {at("buffer", "deleted")}
  %deleted = load i64, ptr %at_deleted
  %is_deleted = icmp ne i64 %deleted, 0
  br i1 %is_deleted, label %gone, label %keep
keep:
  %at_family = getelementptr i8, ptr %buffer, i64 {at("buffer", "family")}
  %family = load ptr, ptr %at_family
  %at_place = getelementptr i8, ptr %buffer, i64 {at("buffer", "place")}
  %place = load i64, ptr %at_place
  %same = icmp eq ptr %family, %family0
  %here = icmp eq i64 %place, %d
  %fits = and i1 %same, %here
  %chosen = select i1 %fits, ptr %kept, ptr null
  %d_next = add i64 %d, 1
  br label %device
gone:
  br label %write
write:
  %found = phi ptr [%kept, %device], [inttoptr (i64 1 to ptr), %gone]
  %into = getelementptr ptr, ptr %out, i64 %j
  store ptr %found, ptr %into
  %j_next = add i64 %j, 1
  br label %argument
done:
  ret void
}}

; New families, copies of the templates, and a buffer of each on every device; 0 if records lack.
define i64 @spread(ptr %lists, i64 %devices, i64 %results, ptr %templates, ptr %on, ptr %in,
                   ptr %out) {{
entry:
  %per = add i64 %devices, 1
  %need = mul i64 %per, %results
  %at_count = getelementptr i8, ptr @state, i64 {8 * STATE["count"]}
  %count = load i64, ptr %at_count
  %enough = icmp sge i64 %count, %need
  br i1 %enough, label %result, label %lack
lack:
  ret i64 0
result:
  %o = phi i64 [0, %entry], [%o_next, %device]
  %o_end = icmp sge i64 %o, %results
  br i1 %o_end, label %done, label %family
family:
  %family_at = call ptr @take()
  %skip = mul i64 %o, {SIZE}
  %template = getelementptr i8, ptr %templates, i64 %skip
  call void @llvm.memcpy.p0.p0.i64(ptr %family_at, ptr %template, i64 {SIZE}, i1 0)
  %at_live = getelementptr i8, ptr %family_at, i64 {at("family", "live")}
  store i64 %devices, ptr %at_live
  %at_dims = getelementptr i8, ptr %family_at, i64 {at("family", "dims")}
  %dims = load i64, ptr %at_dims
  %inline = icmp eq i64 %dims, 0
  %own = getelementptr i8, ptr %family_at, i64 64
  %own_word = ptrtoint ptr %own to i64
  %dims_at = select i1 %inline, i64 %own_word, i64 %dims
  store i64 %dims_at, ptr %at_dims
  %into = getelementptr ptr, ptr %out, i64 %o
  store ptr %family_at, ptr %into
  %o_next = add i64 %o, 1
  br label %device
device:
  %d = phi i64 [0, %family], [%d_next, %fill]
  %d_end = icmp sge i64 %d, %devices
  br i1 %d_end, label %result, label %fill
fill:
  %buffer = call ptr @take()
  %at_what = getelementptr i8, ptr %buffer, i64 {at("record", "what")}
  store i64 {BUFFER}, ptr %at_what
  %at_family = getelementptr i8, ptr %buffer, i64 {at("buffer", "family")}
  store ptr %family_at, ptr %at_family
  %at_place = getelementptr i8, ptr %buffer, i64 {at("buffer", "place")}
  store i64 %d, ptr %at_place
  %from_on = getelementptr ptr, ptr %on, i64 %d
  %device_at = load ptr, ptr %from_on
  %at_device = getelementptr i8, ptr %buffer, i64 {at("buffer", "device")}
  store ptr %device_at, ptr %at_device
  %row = mul i64 %o, %devices
  %cell = add i64 %row, %d
  %from_in = getelementptr ptr, ptr %in, i64 %cell
  %memory_at = load ptr, ptr %from_in
  %at_memory = getelementptr i8, ptr %buffer, i64 {at("buffer", "memory")}
  store ptr %memory_at, ptr %at_memory
  %at_deleted = getelementptr i8, ptr %buffer, i64 {at("buffer", "deleted")}
  store i64 0, ptr %at_deleted
  %at_list = getelementptr ptr, ptr %lists, i64 %d
  %list = load ptr, ptr %at_list
  %into_list = getelementptr ptr, ptr %list, i64 %o
  store ptr %buffer, ptr %into_list
  %d_next = add i64 %d, 1
  br label %device
done:
  ret i64 1
}}

; Mark the buffers of an argument as deleted.
define void @drop(ptr %lists, i64 %devices, i64 %argument) {{
entry:
  br label %device
device:
  %d = phi i64 [0, %entry], [%d_next, %one]
  %d_end = icmp sge i64 %d, %devices
  br i1 %d_end, label %done, label %one
one:
  %at_list = getelementptr ptr, ptr %lists, i64 %d
  %list = load ptr, ptr %at_list
  %at_buffer = getelementptr ptr, ptr %list, i64 %argument
  %buffer = load ptr, ptr %at_buffer
  %at_deleted = getelementptr i8, ptr %buffer, i64 {at("buffer", "deleted")}
  store i64 1, ptr %at_deleted
  %d_next = add i64 %d, 1
  br label %device
done:
  ret void
}}

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""
