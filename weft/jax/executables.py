"""Executables: compiled programs on their devices, and what JAX asks about them."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.array.room import ROOM
from weft.array.stacked import Stacked
from weft.ir.types import Array, TensorType
from weft.jax.abi import api
from weft.jax.client import Client, Device, fill, the_client
from weft.jax.compiling import Executable, compiled
from weft.jax.handles import INVALID, Handles, Refused
from weft.jax.protos import device_assignment
from weft.jax.records import EXECUTABLE, FIELDS, PENDING, READY, words
from weft.jax.slots import slot
from weft.jax.values import NUMBERS, template
from weft.run.layout import union
from weft.run.plan import piece_bytes

_Pointer = ctypes.c_size_t


class Described:
    """What JAX may ask about an executable, where native code can read it."""

    def __init__(self, executable: Executable) -> None:
        self.executable, self.results = executable, executable.results
        self.held: list[Any] = []
        self.count = len(self.results)
        self.name = self.bytes(executable.name.encode())
        self.options = self.bytes(executable.options)
        self.types = self.words(ctypes.c_int32, [NUMBERS[dtype] for _, dtype in self.results])
        self.dims = self.words(ctypes.c_int64, [n for shape, _ in self.results for n in shape])
        self.ranks = self.words(_Pointer, [len(shape) for shape, _ in self.results])
        kinds = [self.bytes(kind.encode()) for kind in executable.memory_kinds]
        self.kinds = self.words(_Pointer, [at for at, _ in kinds])
        self.kind_sizes = self.words(_Pointer, [size for _, size in kinds])

    def words(self, kind: Any, numbers: Sequence[int]) -> int:
        """The address of numbers."""
        self.held.append((kind * max(1, len(numbers)))(*numbers))
        return ctypes.addressof(self.held[-1])

    def bytes(self, content: bytes) -> tuple[int, int]:
        """The address and the length of bytes."""
        self.held.append(ctypes.create_string_buffer(content, len(content) + 1))
        return ctypes.addressof(self.held[-1]), len(content)


class Loaded:
    """An executable on devices: all that a call needs, worked out once."""

    def __init__(self, described: Described, client: Client) -> None:
        self.described, executable = described, described.executable
        self.program, self.results = executable.local, described.results
        asked = executable.asked
        self.count = asked.replicas * asked.partitions
        numbers = asked.devices or tuple(range(self.count))
        if max(numbers) >= len(client.devices):
            raise Refused(
                INVALID,
                f"the program runs on device {max(numbers)}, but there are {len(client.devices)}",
            )
        self.devices = [client.devices[n] for n in numbers]
        logical = [n for d in range(self.count) for n in divmod(d, asked.partitions)]
        self.logical_ids = described.words(ctypes.c_int32, logical)
        assigned = device_assignment(numbers, asked.replicas, asked.partitions)
        self.assignment = described.bytes(assigned)
        self.pending_at, self.ready_at = self._templates(PENDING), self._templates(READY)
        self.on_at, self.inside_at = self.places(self.devices)
        self._elsewhere: dict[int, tuple[int, int]] = {}
        self.order = _order(executable)
        self.heads = [self.program.layout.shape(union(mask)) for mask in self.program.masks]

    def _templates(self, state: int) -> int:
        """The records of the results' families, one after another."""
        return self.described.bytes(b"".join([template(*r, state) for r in self.results]))[0]

    def places(self, devices: Sequence[Device]) -> tuple[int, int]:
        """The devices of results, and their memories: one after another, a row for each result."""
        on = self.described.words(_Pointer, [device.handle for device in devices])
        kinds = self.described.executable.memory_kinds
        memories = [device.memory(kind).handle for kind in kinds for device in devices]
        return on, self.described.words(_Pointer, memories)

    def elsewhere(self, device: Device) -> tuple[int, int]:
        """The same on another device, for a program that runs on any one."""
        if device.number not in self._elsewhere:
            self._elsewhere[device.number] = self.places([device])
        return self._elsewhere[device.number]

    # Arguments

    def fit(self, index: int, stacked: Stacked) -> Stacked:
        """An argument as the program takes it: along digits that it is equal along, once."""
        head, atoms = self.heads[index], self.program.atoms
        if stacked.atoms == atoms and stacked.data.shape[: len(head)] == head:
            return stacked
        pieces = stacked.pieces()
        chosen = [pieces[place] for place in self.distinct(index)]
        return self.stack(index, chosen)

    def distinct(self, index: int) -> list[int]:
        """The places of the pieces of an argument that are not equal to those at other places."""
        sizes, head = self.program.atoms.sizes, self.heads[index]
        places = np.arange(math.prod(sizes)).reshape(sizes)
        found: list[int] = places[tuple([slice(size) for size in head])].reshape(-1).tolist()
        return found

    def stack(self, index: int, pieces: Sequence[Array]) -> Stacked:
        """An argument from its distinct pieces."""
        type, head = self.program.arg_types[index], self.heads[index]
        assert isinstance(type, TensorType), "arguments are tensors"
        shape = (*head, *type.sizes)
        if len(pieces) == 1:
            return Stacked(pieces[0].reshape(shape), self.program.atoms)
        data = ROOM.empty(shape, type.dtype.numpy, piece_bytes(type) * len(pieces))
        rows = data.reshape(len(pieces), *type.sizes)
        for row, piece in zip(rows, pieces, strict=True):
            row[...] = piece
        return Stacked(data, self.program.atoms, owned=True)


def _order(executable: Executable) -> tuple[int, ...] | None:
    """The place in a stack of each partition's piece; None if they are in the same order."""
    places = tuple(executable.local.world.places().tolist())
    return None if places == tuple(range(len(places))) else places


def load(handles: Handles, executable: Executable) -> int:
    """A handle of an executable on its devices."""
    described = Described(executable)
    return _handle(handles, described, Loaded(described, the_client()))


def _handle(handles: Handles, described: Described, thing: Described | Loaded) -> int:
    address = handles.keep(EXECUTABLE, thing)
    executable = described.executable
    fill(
        "executable",
        address,
        replicas=executable.asked.replicas,
        partitions=executable.asked.partitions,
        outputs=described.count,
        name=described.name[0],
        name_size=described.name[1],
        code_bytes=len(executable.code),
    )
    return address


@slot("Client_Compile")
def _compile(handles: Handles, args: Any) -> None:
    handles.drain()
    program: Any = api().structs["Program"].from_address(args.program)
    code = ctypes.string_at(program.code, program.code_size)
    format = ctypes.string_at(program.format, program.format_size).decode()
    options = ctypes.string_at(args.compile_options, args.compile_options_size)
    args.executable = load(handles, compiled(code, format, options))


@slot("LoadedExecutable_GetExecutable")
def _executable(handles: Handles, args: Any) -> None:
    described = handles.kept[args.loaded_executable].described
    args.executable = _handle(handles, described, described)


@slot("LoadedExecutable_Delete")
def _delete(handles: Handles, args: Any) -> None:
    words(args.executable)[FIELDS["executable"]["deleted"]] = 1


@slot("LoadedExecutable_AddressableDevices")
def _devices(handles: Handles, args: Any) -> None:
    loaded: Loaded = handles.kept[args.executable]
    args.addressable_devices = loaded.on_at
    args.num_addressable_devices = len(loaded.devices)


@slot("LoadedExecutable_AddressableDeviceLogicalIds")
def _logical_ids(handles: Handles, args: Any) -> None:
    loaded: Loaded = handles.kept[args.executable]
    args.addressable_device_logical_ids = loaded.logical_ids
    args.num_addressable_device_logical_ids = len(loaded.devices)


@slot("LoadedExecutable_GetDeviceAssignment")
def _assignment(handles: Handles, args: Any) -> None:
    loaded: Loaded = handles.kept[args.executable]
    args.serialized_bytes, args.serialized_bytes_size = loaded.assignment
    args.serialized_device_assignment = 0
    args.serialized_device_assignment_deleter = handles.native.addresses["nothing"]


@slot("Executable_OutputElementTypes")
def _output_types(handles: Handles, args: Any) -> None:
    facts: Described = handles.kept[args.executable]
    args.output_types, args.num_output_types = facts.types, facts.count


@slot("Executable_OutputDimensions")
def _output_dims(handles: Handles, args: Any) -> None:
    facts: Described = handles.kept[args.executable]
    args.num_outputs, args.dims, args.dim_sizes = facts.count, facts.dims, facts.ranks


@slot("Executable_OutputMemoryKinds")
def _output_memories(handles: Handles, args: Any) -> None:
    facts: Described = handles.kept[args.executable]
    args.num_outputs = facts.count
    args.memory_kinds, args.memory_kind_sizes = facts.kinds, facts.kind_sizes


@slot("Executable_GetCompileOptions")
def _options(handles: Handles, args: Any) -> None:
    facts: Described = handles.kept[args.executable]
    args.serialized_bytes, args.serialized_bytes_size = facts.options
    args.serialized_compile_options = 0
    args.serialized_compile_options_deleter = handles.native.addresses["nothing"]
