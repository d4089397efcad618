"""The functions that JAX calls without Python: made as machine code when the plugin is loaded.

JAX reads shapes, devices and states while it holds locks of its own, and frees buffers while a
Python exception is on its way: then no Python may run. So whatever only reads a record, and
whatever destroys one, is native. What is destroyed goes onto a list; Python empties it when it is
called the next time. So are all functions for whose errors JAX ends the process, and calls of small
programs, for which Python would take too long. What needs Python comes through a bridge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from weft.jax.abi import Api
from weft.jax.native.arrivals import SLOT as ARRIVE
from weft.jax.native.arrivals import arrivals
from weft.jax.native.bridge import BRIDGE, THUNKS, bridge, word
from weft.jax.native.calls import SLOT as CALL
from weft.jax.native.calls import calls
from weft.jax.native.events import ASKING, EVENTS, events
from weft.jax.native.lending import LENDING
from weft.jax.native.record_code import RECORDS
from weft.jax.native.records import at
from weft.jax.native.small import SMALL

# A slot, the field of its arguments that has the handle, what that is, and what fields it fills:
# with fields of the record, with numbers, or with functions.
Getter = tuple[str, str, str, Mapping[str, str | int]]

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
    ("Executable_OutputElementTypes", "executable", "executable",
     {"output_types": "types", "num_output_types": "outputs"}),
    ("Executable_OutputDimensions", "executable", "executable",
     {"num_outputs": "outputs", "dims": "dims", "dim_sizes": "ranks"}),
    ("Executable_OutputMemoryKinds", "executable", "executable",
     {"num_outputs": "outputs", "memory_kinds": "kinds", "memory_kind_sizes": "kind_sizes"}),
    ("Executable_GetCompileOptions", "executable", "executable",
     {"serialized_bytes": "options", "serialized_bytes_size": "options_size",
      "serialized_compile_options": 0, "serialized_compile_options_deleter": "@nothing"}),
    ("LoadedExecutable_IsDeleted", "executable", "executable", {"is_deleted": "deleted"}),
    ("LoadedExecutable_AddressableDevices", "executable", "executable",
     {"addressable_devices": "devices", "num_addressable_devices": "device_count"}),
    ("LoadedExecutable_AddressableDeviceLogicalIds", "executable", "executable",
     {"addressable_device_logical_ids": "logical_ids",
      "num_addressable_device_logical_ids": "device_count"}),
    ("LoadedExecutable_GetDeviceAssignment", "executable", "executable",
     {"serialized_bytes": "assignment", "serialized_bytes_size": "assignment_size",
      "serialized_device_assignment": 0, "serialized_device_assignment_deleter": "@nothing"}),
    ("Layouts_Buffer_MemoryLayout", "buffer", "family", {"layout": "order"}),
    ("Layouts_MemoryLayout_Serialize", "layout", "layout",
     {"serialized_bytes": "text", "serialized_bytes_size": "text_size", "serialized_layout": 0,
      "serialized_layout_deleter": "@nothing"}),
)  # fmt: skip

# A slot, the field of its arguments that has the handle, and that says that it is deleted: the
# memory is given back when JAX destroys it, too, which it does next.
DELETERS = (
    ("Buffer_Delete", "buffer", "buffer"),
    ("LoadedExecutable_Delete", "executable", "executable"),
)

# What is the same for all: numbers, and what stays for ever needs nobody to free it.
CONSTANTS: tuple[tuple[str, Mapping[str, int | str]], ...] = (
    ("Client_ProcessIndex", {"process_index": 0}),
    ("DeviceDescription_ProcessIndex", {"process_index": 0}),
    ("DeviceDescription_Attributes", {"num_attributes": 0, "attributes": 0}),
    ("Device_IsAddressable", {"is_addressable": 1}),
    ("Buffer_DynamicDimensionIndices", {"dynamic_dim_indices": 0, "num_dynamic_dims": 0}),
    ("TopologyDescription_Attributes", {"num_attributes": 0, "attributes": 0}),
    (
        "Device_GetAttributes",
        {"num_attributes": 0, "attributes": 0, "attributes_deleter": "@nothing"},
    ),
    ("Client_Destroy", {}),
    ("TopologyDescription_Destroy", {}),
    ("Error_ForEachPayload", {}),
    ("Buffer_DecreaseExternalReferenceCount", {}),  # the memory is lent while there is a buffer
    ("Device_CreateAsyncTrackingEvent", {"event": 0}),
    ("AsyncTrackingEvent_Destroy", {}),
    ("ExecuteContext_Destroy", {}),
    ("Client_UpdateGlobalProcessInfo", {}),  # there is one process
    ("Layouts_MemoryLayout_Destroy", {}),
)

# Where a piece is: the slot, and the field that says it.
POINTERS = {
    "Buffer_IncreaseExternalReferenceCount": "",
    "Buffer_OpaqueDeviceMemoryDataPointer": "device_memory_ptr",
    "Buffer_UnsafePointer": "buffer_pointer",
}

DESTROYERS = (
    ("AsyncHostToDeviceTransferManager_Destroy", "transfer_manager"),
    ("Error_Destroy", "error"),
    ("Event_Destroy", "event"),
    ("Buffer_Destroy", "buffer"),
    ("Executable_Destroy", "executable"),
    ("LoadedExecutable_Destroy", "executable"),
)


def native_slots() -> list[str]:
    """The slots that native code fills."""
    tables = (GETTERS, CONSTANTS, DESTROYERS, DELETERS)
    return [*(row[0] for table in tables for row in table), *EVENTS, *_OTHERS]


_OTHERS = (
    "Buffer_GetMemoryLayout",
    "Buffer_IsOnCpu",
    "LoadedExecutable_GetExecutable",
    "Plugin_Attributes",
    *POINTERS,
    ARRIVE,
    CALL,
)


def asks_python(name: str) -> bool:
    """Whether Python fills a slot, or is asked by native code that does."""
    return name not in native_slots() or name in (*ASKING, *POINTERS, ARRIVE, CALL)


def text(api: Api, bridged: Iterable[str]) -> str:
    """All functions: those of slots are called as their slots are, bridges too."""
    thunks = {name: THUNKS + n for n, name in enumerate(bridged)}
    state = f"@state = internal global [{THUNKS + len(thunks)} x i64] zeroinitializer, align 128"
    parts = [state, BRIDGE, RECORDS, LENDING, SMALL, calls(api), arrivals(api)]
    parts += [_getter(api, *getter) for getter in GETTERS]
    parts += [_constant(api, *constant) for constant in CONSTANTS]
    parts += [_destroyer(api, *destroyer) for destroyer in DESTROYERS]
    parts += [_deleter(api, *deleter) for deleter in DELETERS]
    parts += [events(api), _layout(api), _executable(api), _attributes(api), _place(api)]
    parts += [_pointer(api, name, field) for name, field in POINTERS.items()]
    for name, index in thunks.items():
        asked = name in native_slots()
        parts.append(bridge(f"ask_{name}" if asked else name, index, asked))
    return "\n".join(parts)


def _word(size: int) -> str:
    return f"i{8 * size}"


def _getter(api: Api, slot: str, handle: str, record: str, filled: Mapping[str, str | int]) -> str:
    lines = [f"define ptr @{slot}(ptr %args) {{", *_load("record", api, slot, handle)]
    source = "record"
    if record == "family":
        lines += [
            f"  %to = getelementptr i8, ptr %record, i64 {at('buffer', 'family')}",
            "  %family = load ptr, ptr %to",
        ]
        source = "family"
    for n, (field, kept) in enumerate(filled.items()):
        if isinstance(kept, int) or kept.startswith("@"):
            lines += _fill(api, slot, field, kept, n)
            continue
        offset, size = api.offset(slot, field)
        lines += [
            f"  %from{n} = getelementptr i8, ptr %{source}, i64 {at(record, kept)}",
            f"  %value{n} = load {_word(size)}, ptr %from{n}",
            f"  %into{n} = getelementptr i8, ptr %args, i64 {offset}",
            f"  store {_word(size)} %value{n}, ptr %into{n}",
        ]
    return "\n".join([*lines, "  ret ptr null", "}"])


def _fill(api: Api, slot: str, field: str, value: int | str, number: int) -> list[str]:
    """Fill a field with a number or a function."""
    offset, size = api.offset(slot, field)
    return [
        f"  %into{number} = getelementptr i8, ptr %args, i64 {offset}",
        f"  store {_word(size) if isinstance(value, int) else 'ptr'} {value}, ptr %into{number}",
    ]


def _load(name: str, api: Api, slot: str, field: str) -> Iterator[str]:
    offset, _ = api.offset(slot, field)
    yield f"  %at_{name} = getelementptr i8, ptr %args, i64 {offset}"
    yield f"  %{name} = load ptr, ptr %at_{name}"


def _constant(api: Api, slot: str, filled: Mapping[str, int | str]) -> str:
    lines = [f"define ptr @{slot}(ptr %args) {{"]
    for n, (field, value) in enumerate(filled.items()):
        lines += _fill(api, slot, field, value, n)
    return "\n".join([*lines, "  ret ptr null", "}"])


def _destroyer(api: Api, slot: str, handle: str) -> str:
    lines = [f"define ptr @{slot}(ptr %args) {{", *_load("record", api, slot, handle)]
    return "\n".join([*lines, "  call void @destroy(ptr %record)", "  ret ptr null", "}"])


def _deleter(api: Api, slot: str, handle: str, record: str) -> str:
    lines = [
        f"define ptr @{slot}(ptr %args) {{",
        *_load("record", api, slot, handle),
        f"  %at_deleted = getelementptr i8, ptr %record, i64 {at(record, 'deleted')}",
        "  store atomic i64 1, ptr %at_deleted release, align 8",
    ]
    return "\n".join([*lines, "  ret ptr null", "}"])


def _executable(api: Api) -> str:
    """The executable behind a loaded one, which is held once more."""
    slot = "LoadedExecutable_GetExecutable"
    into, _ = api.offset(slot, "executable")
    return f"""
define ptr @{slot}(ptr %args) {{
{chr(10).join(_load("record", api, slot, "loaded_executable"))}
  %to = getelementptr i8, ptr %record, i64 {at("executable", "executable")}
  %executable = load ptr, ptr %to
  %at_live = getelementptr i8, ptr %executable, i64 {at("record", "live")}
  %was = atomicrmw add ptr %at_live, i64 1 acq_rel, align 8
  %into = getelementptr i8, ptr %args, i64 {into}
  store ptr %executable, ptr %into
  ret ptr null
}}"""


def _attributes(api: Api) -> str:
    """What is known of the plugin before there is a client."""
    slot = "Plugin_Attributes"
    into = [api.offset(slot, field)[0] for field in ("attributes", "num_attributes")]
    return f"""
define ptr @{slot}(ptr %args) {{
  %attributes = call ptr @kept(i64 {word("attributes")})
  %into = getelementptr i8, ptr %args, i64 {into[0]}
  store ptr %attributes, ptr %into
  %count = call ptr @kept(i64 {word("attribute_count")})
  %into_count = getelementptr i8, ptr %args, i64 {into[1]}
  store ptr %count, ptr %into_count
  ret ptr null
}}"""


def _place(api: Api) -> str:
    """Whether JAX reads a buffer where it is: unless it guards what comes from devices."""
    slot = "Buffer_IsOnCpu"
    return f"""
define ptr @{slot}(ptr %args) {{
  %guarded = call ptr @kept(i64 {word("guarded")})
  %is_here = icmp eq ptr %guarded, null
  %answer = zext i1 %is_here to i8
  %into = getelementptr i8, ptr %args, i64 {api.offset(slot, "is_on_cpu")[0]}
  store i8 %answer, ptr %into
  ret ptr null
}}"""


def _pointer(api: Api, slot: str, field: str) -> str:
    """Where a piece is that is lent from now on; Python lends what is not known to native code.

    It is lent before it is asked whether it is deleted: who overwrites what was donated to it
    deletes it before it asks whether it is lent.
    """
    answer = ""
    if field:
        answer = f"""
  %at_step = getelementptr i8, ptr %family, i64 {at("family", "step")}
  %step = load i64, ptr %at_step
  %at_place = getelementptr i8, ptr %record, i64 {at("buffer", "place")}
  %place = load i64, ptr %at_place
  %far = mul i64 %step, %place
  %address = add i64 %data, %far
  %into = getelementptr i8, ptr %args, i64 {api.offset(slot, field)[0]}
  store i64 %address, ptr %into"""
    return f"""
define ptr @{slot}(ptr %args) {{
{chr(10).join(_load("record", api, slot, "buffer"))}
  %to = getelementptr i8, ptr %record, i64 {at("buffer", "family")}
  %family = load ptr, ptr %to
  %at_lent = getelementptr i8, ptr %family, i64 {at("family", "lent")}
  store atomic i64 1, ptr %at_lent seq_cst, align 8
  %at_deleted = getelementptr i8, ptr %record, i64 {at("buffer", "deleted")}
  %deleted = load atomic i64, ptr %at_deleted seq_cst, align 8
  %at_data = getelementptr i8, ptr %family, i64 {at("family", "data")}
  %data = load atomic i64, ptr %at_data seq_cst, align 8
  %known = icmp ne i64 %data, 0
  %there = icmp eq i64 %deleted, 0
  %is = and i1 %known, %there
  br i1 %is, label %lent, label %ask
lent:{answer}
  ret ptr null
ask:
  %answer = call ptr @ask_{slot}(ptr %args)
  ret ptr %answer
}}"""


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
