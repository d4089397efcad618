"""The client: its devices and their memories."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from weft.jax.abi import api
from weft.jax.handles import FOR_EVER, INVALID, Handles, Refused, list_at, text_at
from weft.jax.records import FIELDS, STATIC, words
from weft.jax.slots import slot

PLATFORM = "weft"
KINDS = ("device", "pinned_host", "unpinned_host")  # of memory, the default first


@dataclass(frozen=True, slots=True)
class Memory:
    """A memory of a device."""

    handle: int
    device: Device
    kind: str


@dataclass(slots=True)
class Device:
    """A virtual device."""

    number: int
    handle: int
    memories: tuple[Memory, ...] = ()

    def memory(self, kind: str) -> Memory:
        """The memory of a kind."""
        for memory in self.memories:
            if memory.kind == kind:
                return memory
        raise Refused(INVALID, f"there is no memory {kind!r}: there are {', '.join(KINDS)}")


class Client:
    """What JAX talks to: all devices of this process."""

    def __init__(self, handles: Handles, count: int, version: str) -> None:
        self.devices = [Device(n, handles.new(STATIC)) for n in range(count)]
        for device in self.devices:
            self._add_memories(handles, device)
        self.memories = [memory for device in self.devices for memory in device.memories]
        self.by_handle: dict[int, Device | Memory] = {d.handle: d for d in self.devices}
        self.by_handle.update({memory.handle: memory for memory in self.memories})
        self.handle = self.topology = handles.new(STATIC)
        devices = list_at([device.handle for device in self.devices])
        platform, version_text = text_at(PLATFORM), text_at(version)
        fill(
            "client",
            self.handle,
            platform=platform[0],
            platform_size=platform[1],
            version=version_text[0],
            version_size=version_text[1],
            devices=devices,
            device_count=count,
            memories=list_at([memory.handle for memory in self.memories]),
            memory_count=len(self.memories),
            topology=self.topology,
            descriptions=devices,
        )

    def _add_memories(self, handles: Handles, device: Device) -> None:
        made = tuple([Memory(handles.new(STATIC), device, kind) for kind in KINDS])
        device.memories = made
        own = list_at([device.handle])
        for number, memory in enumerate(made):
            kind, text = text_at(memory.kind), text_at(f"weft:{device.number} {memory.kind}")
            fill(
                "memory",
                memory.handle,
                id=device.number * len(KINDS) + number,
                kind=kind[0],
                kind_size=kind[1],
                kind_id=number,
                text=text[0],
                text_size=text[1],
                devices=own,
                device_count=1,
            )
        text, kind = text_at(f"WeftDevice(id={device.number})"), text_at(PLATFORM)
        fill(
            "device",
            device.handle,
            id=device.number,
            text=text[0],
            text_size=text[1],
            kind=kind[0],
            kind_size=kind[1],
            memories=list_at([memory.handle for memory in made]),
            memory_count=len(made),
            memory=made[0].handle,
            self=device.handle,
        )


def fill(record: str, address: int, **values: int) -> None:
    """Write fields of a record."""
    line = words(address)
    for name, value in values.items():
        line[FIELDS[record][name]] = value


_CLIENT: list[Client] = []


def the_client() -> Client:
    """The client of this process."""
    return _CLIENT[0]


def start(handles: Handles, count: int, version: str) -> Client:
    """Make the client."""
    _CLIENT[:] = [Client(handles, count, version)]
    return _CLIENT[0]


@slot("Client_Create")
def _create(handles: Handles, args: Any) -> None:
    args.client = the_client().handle


@slot("Client_LookupDevice")
def _lookup(handles: Handles, args: Any) -> None:
    args.device = _numbered(args.id)


@slot("Client_LookupAddressableDevice")
def _lookup_addressable(handles: Handles, args: Any) -> None:
    args.addressable_device = _numbered(args.local_hardware_id)


def _numbered(number: int) -> int:
    devices = the_client().devices
    if not 0 <= number < len(devices):
        raise Refused(INVALID, f"there is no device {number}: devices are 0 to {len(devices) - 1}")
    return devices[number].handle


@slot("Client_DefaultDeviceAssignment")
def _assignment(handles: Handles, args: Any) -> None:
    count = args.num_replicas * args.num_partitions
    have = len(the_client().devices)
    if count > have:
        raise Refused(
            INVALID,
            f"{count} devices are asked for, but there are {have}: set WEFT_DEVICES={count}",
        )
    (ctypes.c_int32 * count).from_address(args.default_assignment)[:] = list(range(count))


@slot("Plugin_Initialize")
def _initialize(handles: Handles, args: Any) -> None:
    """Nothing is left to be done."""


def attributes() -> tuple[int, int]:
    """The version of StableHLO that is read: that of jaxlib, which reads it."""
    from jaxlib.mlir.dialects import stablehlo

    version = [int(part) for part in stablehlo.get_current_version().split(".")]
    named: Any = api().structs["NamedValue"]()
    named.struct_size = ctypes.sizeof(named)
    named.name, named.name_size = text_at("stablehlo_current_version")
    held = (ctypes.c_int64 * len(version))(*version)
    named.type, named.u, named.value_size = _NUMBERS, ctypes.addressof(held), len(version)
    FOR_EVER.extend([named, held])
    return ctypes.addressof(named), 1


_NUMBERS = 2  # the type of a named value that is a list of numbers
