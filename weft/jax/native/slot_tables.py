"""Slots that tables describe: the fields of a record, constants, and what destroys a handle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from weft.jax.abi import Api
from weft.jax.native.record_code import destroy, nothing
from weft.jax.native.records import (
    ArrayRecord,
    BufferRecord,
    ClientRecord,
    DeviceRecord,
    ErrorRecord,
    ExecutableRecord,
    HandleRecord,
    LayoutRecord,
    MemoryRecord,
)
from weft.native.builder import FunctionBuilder, NativeModule, Typed, constant
from weft.native.function import NativeFunction
from weft.native.memory import Member, Pointer, Struct, i8, i32

# What fills a field: a field of the record by its name, a number, or a function.
Filling: TypeAlias = str | int | NativeFunction[..., Any]
# A slot, the field of its arguments that has the handle, what that is, and what fields it fills.
Getter = tuple[str, str, type[Struct], Mapping[str, Filling]]

GETTERS: tuple[Getter, ...] = (
    ("Client_PlatformName", "client", ClientRecord,
     {"platform_name": "platform", "platform_name_size": "platform_size"}),
    ("Client_PlatformVersion", "client", ClientRecord,
     {"platform_version": "version", "platform_version_size": "version_size"}),
    ("Client_Devices", "client", ClientRecord,
     {"devices": "devices", "num_devices": "device_count"}),
    ("Client_AddressableDevices", "client", ClientRecord,
     {"addressable_devices": "addressable", "num_addressable_devices": "addressable_count"}),
    ("Client_ProcessIndex", "client", ClientRecord, {"process_index": "process"}),
    ("Client_AddressableMemories", "client", ClientRecord,
     {"addressable_memories": "memories", "num_addressable_memories": "memory_count"}),
    ("Client_TopologyDescription", "client", ClientRecord, {"topology": "topology"}),
    ("TopologyDescription_PlatformName", "topology", ClientRecord,
     {"platform_name": "platform", "platform_name_size": "platform_size"}),
    ("TopologyDescription_PlatformVersion", "topology", ClientRecord,
     {"platform_version": "version", "platform_version_size": "version_size"}),
    ("TopologyDescription_GetDeviceDescriptions", "topology", ClientRecord,
     {"descriptions": "descriptions", "num_descriptions": "device_count"}),
    ("DeviceDescription_Id", "device_description", DeviceRecord, {"id": "id"}),
    ("DeviceDescription_ProcessIndex", "device_description", DeviceRecord,
     {"process_index": "process"}),
    ("DeviceDescription_Kind", "device_description", DeviceRecord,
     {"device_kind": "kind", "device_kind_size": "kind_size"}),
    ("DeviceDescription_DebugString", "device_description", DeviceRecord,
     {"debug_string": "text", "debug_string_size": "text_size"}),
    ("DeviceDescription_ToString", "device_description", DeviceRecord,
     {"to_string": "text", "to_string_size": "text_size"}),
    ("Device_GetDescription", "device", DeviceRecord, {"device_description": "self"}),
    ("Device_LocalHardwareId", "device", DeviceRecord, {"local_hardware_id": "local"}),
    ("Device_IsAddressable", "device", DeviceRecord, {"is_addressable": "is_addressable"}),
    ("Device_AddressableMemories", "device", DeviceRecord,
     {"memories": "memories", "num_memories": "memory_count"}),
    ("Device_DefaultMemory", "device", DeviceRecord, {"memory": "memory"}),
    ("Memory_Id", "memory", MemoryRecord, {"id": "id"}),
    ("Memory_Kind", "memory", MemoryRecord, {"kind": "kind", "kind_size": "kind_size"}),
    ("Memory_Kind_Id", "memory", MemoryRecord, {"kind_id": "kind_id"}),
    ("Memory_DebugString", "memory", MemoryRecord,
     {"debug_string": "text", "debug_string_size": "text_size"}),
    ("Memory_ToString", "memory", MemoryRecord,
     {"to_string": "text", "to_string_size": "text_size"}),
    ("Memory_AddressableByDevices", "memory", MemoryRecord,
     {"devices": "devices", "num_devices": "device_count"}),
    ("Error_Message", "error", ErrorRecord, {"message": "message", "message_size": "message_size"}),
    ("Error_GetCode", "error", ErrorRecord, {"code": "code"}),
    ("Buffer_Device", "buffer", BufferRecord, {"device": "device"}),
    ("Buffer_Memory", "buffer", BufferRecord, {"memory": "memory"}),
    ("Buffer_IsDeleted", "buffer", BufferRecord, {"is_deleted": "deleted"}),
    ("Buffer_ElementType", "buffer", ArrayRecord, {"type": "type"}),
    ("Buffer_Dimensions", "buffer", ArrayRecord, {"dims": "dims", "num_dims": "rank"}),
    ("Buffer_UnpaddedDimensions", "buffer", ArrayRecord,
     {"unpadded_dims": "dims", "num_dims": "rank"}),
    ("Buffer_OnDeviceSizeInBytes", "buffer", ArrayRecord, {"on_device_size_in_bytes": "nbytes"}),
    ("Executable_NumReplicas", "executable", ExecutableRecord, {"num_replicas": "replicas"}),
    ("Executable_NumPartitions", "executable", ExecutableRecord, {"num_partitions": "partitions"}),
    ("Executable_NumOutputs", "executable", ExecutableRecord, {"num_outputs": "outputs"}),
    ("Executable_Name", "executable", ExecutableRecord,
     {"executable_name": "name", "executable_name_size": "name_size"}),
    ("Executable_SizeOfGeneratedCodeInBytes", "executable", ExecutableRecord,
     {"size_in_bytes": "code_bytes"}),
    ("Executable_OutputElementTypes", "executable", ExecutableRecord,
     {"output_types": "types", "num_output_types": "outputs"}),
    ("Executable_OutputDimensions", "executable", ExecutableRecord,
     {"num_outputs": "outputs", "dims": "dims", "dim_sizes": "ranks"}),
    ("Executable_OutputMemoryKinds", "executable", ExecutableRecord,
     {"num_outputs": "outputs", "memory_kinds": "kinds", "memory_kind_sizes": "kind_sizes"}),
    ("Executable_GetCompileOptions", "executable", ExecutableRecord,
     {"serialized_bytes": "options", "serialized_bytes_size": "options_size",
      "serialized_compile_options": 0, "serialized_compile_options_deleter": nothing}),
    ("LoadedExecutable_IsDeleted", "executable", ExecutableRecord, {"is_deleted": "deleted"}),
    ("LoadedExecutable_AddressableDevices", "executable", ExecutableRecord,
     {"addressable_devices": "devices", "num_addressable_devices": "device_count"}),
    ("LoadedExecutable_AddressableDeviceLogicalIds", "executable", ExecutableRecord,
     {"addressable_device_logical_ids": "logical_ids",
      "num_addressable_device_logical_ids": "device_count"}),
    ("LoadedExecutable_GetDeviceAssignment", "executable", ExecutableRecord,
     {"serialized_bytes": "assignment", "serialized_bytes_size": "assignment_size",
      "serialized_device_assignment": 0, "serialized_device_assignment_deleter": nothing}),
    ("Layouts_Buffer_MemoryLayout", "buffer", ArrayRecord, {"layout": "order"}),
    ("Layouts_MemoryLayout_Serialize", "layout", LayoutRecord,
     {"serialized_bytes": "text", "serialized_bytes_size": "text_size", "serialized_layout": 0,
      "serialized_layout_deleter": nothing}),
)  # fmt: skip

# A slot, the field of its arguments that has the handle, and what says that it is deleted: the
# memory is given back when JAX destroys it, too, which it does next.
DELETERS: tuple[tuple[str, str, Member[int]], ...] = (
    ("Buffer_Delete", "buffer", BufferRecord.deleted),
    ("LoadedExecutable_Delete", "executable", ExecutableRecord.deleted),
)

# Slots with constant results. Clients and topologies are immortal: destroying one does nothing.
CONSTANTS: tuple[tuple[str, Mapping[str, Filling]], ...] = (
    ("DeviceDescription_Attributes", {"num_attributes": 0, "attributes": 0}),
    ("Buffer_DynamicDimensionIndices", {"dynamic_dim_indices": 0, "num_dynamic_dims": 0}),
    ("TopologyDescription_Attributes", {"num_attributes": 0, "attributes": 0}),
    (
        "Device_GetAttributes",
        {"num_attributes": 0, "attributes": 0, "attributes_deleter": nothing},
    ),
    ("Client_Destroy", {}),
    ("TopologyDescription_Destroy", {}),
    ("Error_ForEachPayload", {}),
    ("Buffer_DecreaseExternalReferenceCount", {}),  # the memory is lent while there is a buffer
    ("Device_CreateAsyncTrackingEvent", {"event": 0}),
    ("AsyncTrackingEvent_Destroy", {}),
    ("ExecuteContext_Destroy", {}),
    ("Client_UpdateGlobalProcessInfo", {}),  # collectives detect lost processes
    ("Layouts_MemoryLayout_Destroy", {}),
)

DESTROYERS = (
    ("AsyncHostToDeviceTransferManager_Destroy", "transfer_manager"),
    ("Error_Destroy", "error"),
    ("Event_Destroy", "event"),
    ("Buffer_Destroy", "buffer"),
    ("Executable_Destroy", "executable"),
    ("LoadedExecutable_Destroy", "executable"),
)


def table_slots() -> list[str]:
    """The slots of all tables."""
    deleters = [slot for slot, *_ in DELETERS]
    getters = [slot for slot, *_ in GETTERS]
    return [*getters, *[row[0] for row in (*CONSTANTS, *DESTROYERS)], *deleters]


def add_slots(module: NativeModule, api: Api) -> None:
    """Add the functions of all tables to a module."""
    for slot, handle, kind, filled in GETTERS:
        writer = _Slot(module, api, slot)
        writer.get(handle, kind, filled)
        writer.finish()
    for slot, constants in CONSTANTS:
        writer = _Slot(module, api, slot)
        for field, value in constants.items():
            writer.fill(field, value, None)
        writer.finish()
    for slot, handle in DESTROYERS:
        writer = _Slot(module, api, slot)
        writer.builder.call(destroy, [writer.handle(handle, HandleRecord)])
        writer.finish()
    for slot, handle, mark in DELETERS:
        writer = _Slot(module, api, slot)
        writer.builder.set(writer.handle(handle, mark.owner), mark, constant(1), "release")
        writer.finish()


_BYTES: dict[int, Any] = {1: i8, 4: i32, 8: int}  # the types of numbers


class _Slot:
    """A function of one argument, a structure of PJRT's."""

    def __init__(self, module: NativeModule, api: Api, slot: str) -> None:
        self.api, self.slot = api, slot
        self.args = Typed(Pointer, "%args")
        params = [("args", Pointer)]
        self.builder = FunctionBuilder(module, slot, params, Pointer, internal=False)

    def finish(self) -> None:
        """Answer that all is well."""
        self.builder.ret(Typed(Pointer, "null"))
        self.builder.finish()

    def handle(self, field: str, kind: type[Struct]) -> Typed:
        """The record that a field of the arguments has the handle of."""
        offset, _ = self.api.offset(self.slot, field)
        return self.builder.load(kind, self.builder.offset(self.args, offset))

    def get(self, field: str, kind: type[Struct], filled: Mapping[str, Filling]) -> None:
        """Fill fields from a record; an array record is that of a buffer."""
        if kind is ArrayRecord:
            record = self.builder.get(self.handle(field, BufferRecord), BufferRecord.array)
        else:
            record = self.handle(field, kind)
        for name, value in filled.items():
            self.fill(name, value, record)

    def fill(self, field: str, value: Filling, record: Typed | None) -> None:
        """Fill one field."""
        builder = self.builder
        offset, size = self.api.offset(self.slot, field)
        kind, into = _BYTES[size], builder.offset(self.args, offset)
        match value:
            case int():
                builder.store(kind, constant(value), into)
            case str():
                assert record is not None, "a field of a record"
                at = builder.field(record, record.type.FIELDS[value])
                # Numbers are not negative: of those that JAX wants shorter, the lower bytes.
                builder.store(kind, builder.load(kind, at), into)
            case NativeFunction():
                builder.store(Pointer, Typed(Pointer, f"@{value.name}"), into)
