"""The PJRT client: devices and memories."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from weft.array.device import Device
from weft.array.host import HOST_MEMORY
from weft.array.memory import Memory, Stream
from weft.jax.abi import api
from weft.jax.native.handles import IMMORTAL, INVALID, Handles, PjrtError, text_at
from weft.jax.native.records import (
    SIZE,
    STATIC,
    ClientRecord,
    DeviceRecord,
    HandleRecord,
    MemoryRecord,
    words,
)
from weft.jax.native.slots import SlotFunction
from weft.jax.processes import JaxProcesses
from weft.knobs import TARGET
from weft.native.memory import Struct
from weft.records import dataclass

PLATFORM = "weft"
KINDS = ("device", "pinned_host", "unpinned_host")  # memory kinds, the default first


@dataclass(frozen=True, slots=True)
class Space:
    """A memory of a device: the handles of both, and where its arrays are."""

    handle: int
    device: int
    memory: Memory


@dataclass(frozen=True, slots=True)
class Home:
    """The memory of kind `device`, and the stream of its kernels, if they are enqueued."""

    memory: Memory
    stream: Stream | None = None

    def of(self, kind: str) -> Memory:
        """The memory of a kind."""
        return self.memory if kind == KINDS[0] else HOST_MEMORY


def default_home() -> Home:
    """The memory of the default target, whose package may take long to import."""
    if TARGET.value() in (None, "llvm", "numpy"):
        return Home(HOST_MEMORY)
    from weft.targets import target_named

    target = target_named(None)
    return Home(target.memory, target.stream) if target.has_kernels else Home(HOST_MEMORY)


class Devices(Sequence[Device]):
    """The devices of all processes; Python objects are created on demand.

    Their records are contiguous, as are those of their memories: a handle determines the number.
    """

    def __init__(self, processes: JaxProcesses, home: Home) -> None:
        count = processes.count
        self.processes, self.home = processes, home
        self.records = _records(count)
        self.memory_records = _records(count * len(KINDS))
        self.handles = _addresses(self.records)
        self.memory_handles = _addresses(self.memory_records)
        self._spaces: dict[int, Space] = {}  # by handle
        self._fill_memories(count)
        self._fill_devices(count)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, number: Any) -> Any:
        """The device of a number, or those of a slice."""
        if isinstance(number, slice):
            return [self[n] for n in range(*number.indices(len(self)))]
        number = range(len(self))[number]
        return Device(number, process_index=self.processes.owner(number), platform=PLATFORM)

    def at(self, handle: int) -> Device:
        """The device of a handle."""
        found: Device = self[(handle - int(self.handles[0])) // SIZE]
        return found

    def space(self, device: Device, kind: str = KINDS[0]) -> Space:
        """The memory of a kind of a device."""
        if kind not in KINDS:
            raise PjrtError(INVALID, f"unknown memory {kind!r}; expected {', '.join(KINDS)}")
        which = device.id * len(KINDS) + KINDS.index(kind)
        handle, device_handle = int(self.memory_handles[which]), int(self.handles[device.id])
        return Space(handle, device_handle, self.home.of(kind))

    def space_at(self, handle: int) -> Space:
        """The memory of a handle; for a device's handle, its default memory."""
        space = self._spaces.get(handle)
        if space is None:
            number, rest = divmod(handle - int(self.handles[0]), SIZE)
            if not rest and 0 <= number < len(self):
                space = self.space(self[number])
            else:
                which = (handle - int(self.memory_handles[0])) // SIZE
                device, kind = divmod(which, len(KINDS))
                space = self.space(self[device], KINDS[kind])
            self._spaces[handle] = space
        return space

    def _fill_devices(self, count: int) -> None:
        kind, kind_size = text_at(PLATFORM)
        texts, sizes = _texts([f"WeftDevice(id={n})" for n in range(count)])
        owners = np.arange(count) // self.processes.here
        _fill_all(
            DeviceRecord,
            self.records,
            id=np.arange(count),
            text=texts,
            text_size=sizes,
            kind=kind,
            kind_size=kind_size,
            memories=_addresses(_immortal(self.memory_handles.reshape(count, -1))),
            memory_count=len(KINDS),
            memory=self.memory_handles[:: len(KINDS)],
            self=self.handles,
            process=owners,
            local=np.arange(count) % self.processes.here,
            is_addressable=(owners == self.processes.index).astype(np.int64),
        )

    def _fill_memories(self, count: int) -> None:
        names = [text_at(kind) for kind in KINDS]
        texts, sizes = _texts([f"weft:{n} {kind}" for n in range(count) for kind in KINDS])
        _fill_all(
            MemoryRecord,
            self.memory_records,
            id=np.arange(count * len(KINDS)),
            kind=np.tile([at for at, _ in names], count),
            kind_size=np.tile([size for _, size in names], count),
            kind_id=np.tile(np.arange(len(KINDS)), count),
            text=texts,
            text_size=sizes,
            devices=np.repeat(_addresses(_immortal(self.handles.reshape(-1, 1))), len(KINDS)),
            device_count=1,
            on_host=np.tile([int(self.home.of(kind).is_host) for kind in KINDS], count),
        )


IndexArray: TypeAlias = npt.NDArray[np.int64]


def _records(count: int) -> IndexArray:
    """Immortal records, one a row."""
    made = _immortal(np.zeros((count, SIZE // 8), np.int64))
    made[:, HandleRecord.what.word] = STATIC
    return made


def _immortal(array: IndexArray) -> IndexArray:
    """Make an array immortal."""
    dense = np.ascontiguousarray(array)
    IMMORTAL.append(dense)
    return dense


def _addresses(rows: IndexArray) -> IndexArray:
    """The address of each row."""
    first: int = rows.ctypes.data
    return first + rows.strides[0] * np.arange(len(rows))


def _texts(texts: Sequence[str]) -> tuple[IndexArray, IndexArray]:
    """The address and length of each text; immortal, in one allocation."""
    encoded = [text.encode() for text in texts]
    sizes = np.array([len(text) for text in encoded], np.int64)
    first, _ = text_at("\0".join(texts))
    return first + np.cumsum(sizes + 1) - sizes - 1, sizes


def _fill_all(record: type[Struct], records: IndexArray, **values: IndexArray | int) -> None:
    """Write fields of many records."""
    for name, value in values.items():
        records[:, record.FIELDS[name].word] = value


class Client:
    """The PJRT client: the devices of all processes, some of them addressable here."""

    def __init__(self, handles: Handles, processes: JaxProcesses, version: str, home: Home) -> None:
        self.devices, self.processes, self.home = Devices(processes, home), processes, home
        here = slice(processes.first, processes.first + processes.here)
        memories = _immortal(self.devices.memory_handles.reshape(-1, len(KINDS))[here])
        self.handle = self.topology = handles.new(STATIC)
        devices = _immortal(self.devices.handles).ctypes.data
        platform, version_text = text_at(PLATFORM), text_at(version)
        fill(
            ClientRecord,
            self.handle,
            platform=platform[0],
            platform_size=platform[1],
            version=version_text[0],
            version_size=version_text[1],
            devices=devices,
            device_count=processes.count,
            addressable=_immortal(self.devices.handles[here]).ctypes.data,
            addressable_count=processes.here,
            memories=memories.ctypes.data,
            memory_count=memories.size,
            process=processes.index,
            topology=self.topology,
            descriptions=devices,
        )


def fill(record: type[Struct], address: int, **values: int) -> None:
    """Write fields of a record."""
    line = words(address)
    for name, value in values.items():
        line[record.FIELDS[name].word] = value


_CLIENT: list[Client] = []


def the_client() -> Client:
    """The client of this process."""
    return _CLIENT[0]


def start(handles: Handles, processes: JaxProcesses, version: str, home: Home) -> Client:
    """Create the client."""
    _CLIENT[:] = [Client(handles, processes, version, home)]
    return _CLIENT[0]


def _create(handles: Handles, args: Any) -> None:
    args.client = the_client().handle


def _lookup(handles: Handles, args: Any) -> None:
    args.device = _numbered(args.id)


def _lookup_addressable(handles: Handles, args: Any) -> None:
    processes = the_client().processes
    if not 0 <= args.local_hardware_id < processes.here:
        raise PjrtError(
            INVALID,
            f"unknown local device {args.local_hardware_id}: devices are 0 to {processes.here - 1}",
        )
    args.addressable_device = _numbered(processes.first + args.local_hardware_id)


def _numbered(number: int) -> int:
    devices = the_client().devices
    if not 0 <= number < len(devices):
        raise PjrtError(INVALID, f"unknown device {number}: devices are 0 to {len(devices) - 1}")
    return int(devices.handles[number])


def _assignment(handles: Handles, args: Any) -> None:
    count = args.num_replicas * args.num_partitions
    processes = the_client().processes
    have = processes.count
    if count > have:
        raise PjrtError(
            INVALID,
            f"{count} devices requested, but there are {have}: set WEFT_DEVICES={count}",
        )
    found = (ctypes.c_int32 * count).from_address(args.default_assignment)
    found[:] = processes.default_devices(count)


def _initialize(handles: Handles, args: Any) -> None:
    """Nothing to initialize."""


def attributes() -> tuple[int, int]:
    """The client's attributes: the StableHLO version of jaxlib, which parses programs."""
    from jaxlib.mlir.dialects import stablehlo

    version = [int(part) for part in stablehlo.get_current_version().split(".")]
    named: Any = api().structs["NamedValue"]()
    named.struct_size = ctypes.sizeof(named)
    named.name, named.name_size = text_at("stablehlo_current_version")
    held = (ctypes.c_int64 * len(version))(*version)
    named.type, named.u, named.value_size = _NUMBERS, ctypes.addressof(held), len(version)
    IMMORTAL.extend([named, held])
    return ctypes.addressof(named), 1


_NUMBERS = 2  # PJRT_NamedValue type: int64 list


SLOTS: tuple[tuple[str, SlotFunction], ...] = (
    ("Client_Create", _create),
    ("Client_LookupDevice", _lookup),
    ("Client_LookupAddressableDevice", _lookup_addressable),
    ("Client_DefaultDeviceAssignment", _assignment),
    ("Plugin_Initialize", _initialize),
)
