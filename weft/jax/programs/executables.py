"""Executables: compiled programs on devices, and their metadata for JAX."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from weft.array.device import Device
from weft.array.host import HOST_MEMORY
from weft.array.memory import DeviceMemory, on_host
from weft.array.stacked import Kind, Stacked, kind_of
from weft.errors import WeftError
from weft.executable.items import piece_bytes
from weft.ir.types import Array, TensorType
from weft.jax.abi import api
from weft.jax.buffers.client import Client, fill, the_client
from weft.jax.buffers.formats import BufferFormat, buffer_formats, taken_over
from weft.jax.buffers.values import ONE_DEVICE, buffer_type_of, step_of, template
from weft.jax.native.handles import INVALID, Handles, PjrtError
from weft.jax.native.records import ENQUEUED, EXECUTABLE, PENDING, READY, ExecutableRecord
from weft.jax.native.slots import SlotFunction
from weft.jax.programs.compiling import PjrtExecutable, compiled
from weft.jax.programs.own_stack import on_own_stack
from weft.jax.programs.placement import (
    devices_of,
    order_here,
    partitions_compiled,
    partitions_here,
)
from weft.jax.questions.protos import device_assignment
from weft.run import LocalProgram
from weft.varying.masks import union

_Pointer = ctypes.c_size_t


class Described:
    """An executable's metadata, in memory that native code reads."""

    def __init__(self, executable: PjrtExecutable) -> None:
        self.executable, self.results = executable, executable.results
        self.held: list[Any] = []
        self.cached: dict[str, Any] = {}
        self.count = len(self.results)
        self.name = self.bytes(executable.name.encode())
        self.options = self.bytes(executable.options)
        self.types = self.words(ctypes.c_int32, [buffer_type_of(d) for _, d in self.results])
        self.dims = self.words(ctypes.c_int64, [n for shape, _ in self.results for n in shape])
        self.ranks = self.words(_Pointer, [len(shape) for shape, _ in self.results])
        self.inside, self.outside = buffer_formats(executable.local)
        self.kinds_inside = self._kinds(self.inside)
        self.kinds, self.kind_sizes = self._kinds(self.outside)

    def _kinds(self, side: Sequence[BufferFormat]) -> tuple[int, int]:
        """The memory kinds of arguments or results: texts and lengths."""
        kinds = [self.bytes(buffer_format.memory.encode()) for buffer_format in side]
        texts, sizes = [at for at, _ in kinds], [size for _, size in kinds]
        return self.words(_Pointer, texts), self.words(_Pointer, sizes)

    def remembered(self, name: str, make: Callable[[PjrtExecutable], Any]) -> Any:
        """A lazily computed, cached attribute."""
        if name not in self.cached:
            self.cached[name] = make(self.executable)
        return self.cached[name]

    def words(self, kind: Any, numbers: Sequence[int]) -> int:
        """The address of an array of numbers."""
        self.held.append((kind * max(1, len(numbers)))(*numbers))
        return ctypes.addressof(self.held[-1])

    def bytes(self, content: bytes) -> tuple[int, int]:
        """The address and length of bytes."""
        self.held.append(ctypes.create_string_buffer(content, len(content) + 1))
        return ctypes.addressof(self.held[-1]), len(content)


class LoadedExecutable:
    """An executable on devices, with everything precomputed that a call needs."""

    release_executable: Callable[[], None]  # drops its reference to the executable behind it
    calls = 0  # number of calls through Python
    descriptor: object = None  # its native call descriptor

    def __init__(self, described: Described, client: Client) -> None:
        self.described, executable, self.client = described, described.executable, client
        self.program, self.results = executable.local, described.results
        request = executable.request
        numbers = devices_of(request, client.processes)
        if max(numbers) >= len(client.devices):
            raise PjrtError(
                INVALID,
                f"the program runs on device {max(numbers)}, but there are {len(client.devices)}",
            )
        here = partitions_here(numbers, client.processes)
        self.count = len(here)
        self.devices = [client.devices[numbers[n]] for n in here]
        logical = [n for d in here for n in divmod(d, request.partitions)]
        # PJRT_LogicalDeviceIds: pairs of replica and partition, in the order of the devices.
        self.logical_ids = described.words(ctypes.c_int32, logical)
        assigned = device_assignment(numbers, request.replicas, request.partitions)
        self.assignment = described.bytes(assigned)
        self.on_at, self.inside_at = self.places(self.devices)
        self._elsewhere: dict[int, tuple[int, int]] = {}
        order = partial(order_here, self.program, partitions_compiled(numbers, client.processes))
        self.orders = [order(buffer_format) for buffer_format in described.inside]
        self.result_orders = [order(buffer_format) for buffer_format in described.outside]
        # Of several processes, each with one device: its arrays are those of a single device.
        self.is_one_of_many = self.program.here is not None and self.count == 1
        if self.is_one_of_many:
            self.orders, self.result_orders = [None] * len(self.orders), [None] * described.count
        self._kinds_here: dict[Kind, Kind] = {}
        self.at_once = executable.runs_at_once()
        # Scratch lists of array records, one for each argument and result.
        self.records_in = _Pointer * max(1, len(self.program.arg_types))
        self.records_out = _Pointer * max(1, len(self.results))
        self.kinds = [kind for kind, *_ in self.program.arguments.listed]
        self.kinds_here = [kind and self.kind_here(kind) for kind in self.kinds]
        self.memory = self.program.arguments.memory
        kept = [client.home.of(result.memory) for result in described.outside]
        ours = HOST_MEMORY if self.program.is_on_host else self.program.held_in
        # Results that JAX expects in another memory than the program's.
        self.moved = {n: memory for n, memory in enumerate(kept) if memory is not ours}
        self.enqueued = [client.home.stream is not None and not m.is_host for m in kept]
        self.donated = taken_over(self.program)
        self.forwarded = _forwarded(self.program, self.donated)
        self.shown = self._shown()
        self.aliases = self._aliases()
        self.pending_at = self._templates(PENDING, {})
        self.ready_at = self._templates(READY, self.shown)
        self.heads = [self.program.stack_dims.shape(union(mask)) for mask in self.program.masks]

    def kind_here(self, kind: Kind) -> Kind:
        """The kind of an argument or result as JAX's arrays have it in this process."""
        if not self.is_one_of_many:
            return kind
        found = self._kinds_here.get(kind)
        if found is None:
            piece = kind.shape[len(kind.sub_axes.sizes) :]
            found = kind_of(ONE_DEVICE, (1, *piece), kind.dtype, kind.memory)
            self._kinds_here[kind] = found
        return found

    def _shown(self) -> dict[int, Kind]:
        """The results whose memory native code may read, and their kinds."""
        return {
            n: self.kind_here(kind)
            for n, kind in self.program.known
            if n not in self.forwarded
            and n not in self.moved
            and kind.memory.is_host
            and self.result_orders[n] is None
            and self.described.outside[n].is_row_major
            and step_of(kind) is not None
        }

    def _aliases(self) -> dict[int, Kind]:
        """Results that are arguments or constants, with their kinds if native code may read them.

        Without kinds, native code could not take them as arguments, and so not give them back.
        """
        known, kinds = dict(self.program.known), self.program.result_kinds()
        return {
            n: self.kind_here(kind)
            for n, kind in enumerate(kinds)
            if n not in known
            and n not in self.moved
            and kind is not None
            and kind.memory.is_host
            and self.result_orders[n] is None
            and self.described.outside[n].is_row_major
            and step_of(kind) is not None
        }

    def _templates(self, state: int, kinds: Mapping[int, Kind]) -> int:
        """The initial array records of the results, contiguous."""
        pairs = zip(self.results, self.described.outside, strict=True)
        records = [
            template(
                *result,
                ENQUEUED if state == READY and self.enqueued[n] else state,
                buffer_format.minor_to_major,
                kinds.get(n),
            )
            for n, (result, buffer_format) in enumerate(pairs)
        ]
        return self.described.bytes(b"".join(records))[0]

    def places(self, devices: Sequence[Device]) -> tuple[int, int]:
        """Result devices and memories, one row for each result."""
        known = self.client.devices
        on = self.described.words(_Pointer, [int(known.handles[d.id]) for d in devices])
        kinds = [buffer_format.memory for buffer_format in self.described.outside]
        memories = [known.space(device, kind).handle for kind in kinds for device in devices]
        return on, self.described.words(_Pointer, memories)

    def elsewhere(self, device: Device) -> tuple[int, int]:
        """The same program on another device, for portable single-device programs."""
        if device.id not in self._elsewhere:
            self._elsewhere[device.id] = self.places([device])
        return self._elsewhere[device.id]

    def released(self) -> None:
        """Called when JAX releases it: releases the executable behind it."""
        self.release_executable()

    # Arguments

    def fit(self, index: int, stacked: Stacked) -> Stacked:
        """An argument as the program takes it: its sub-axes, once where replicated, its memory."""
        if stacked.is_on_host:
            fitted = self._fit(index, stacked)
        else:
            if stacked.memory is not self.memory:
                return self.fit(index, stacked.on_host())
            if self.is_one_of_many:
                return self._of_one_device(index, stacked)
            rows = stacked.rows()
            picked = self._fit(index, rows)
            fitted = stacked if picked is rows else stacked.picked(picked)
        if not self.memory.is_host:
            if fitted.is_on_host:
                fitted = Stacked(self.memory.place(fitted.data), fitted.sub_axes, owned=True)
            fitted.located()
        return fitted

    def _fit(self, index: int, stacked: Stacked) -> Stacked:
        head, sub_axes = self.heads[index], self.program.sub_axes
        if self.is_one_of_many:
            return self._of_one_device(index, stacked)
        if stacked.sub_axes == sub_axes and stacked.data.shape[: len(head)] == head:
            return stacked
        try:
            moved = stacked.to(sub_axes)
        except WeftError:  # the sub-axes do not subdivide each other
            pieces = stacked.pieces()[self.distinct(index)]
            return Stacked(pieces.reshape(*head, *stacked.shape), sub_axes, owned=True)
        if moved.data.shape[: len(head)] == head:
            return moved
        data = moved.data[tuple([slice(size) for size in head])]
        return Stacked(np.broadcast_to(data, (*head, *moved.shape)), sub_axes)

    def _of_one_device(self, index: int, stacked: Stacked) -> Stacked:
        """An array of this process's only device, as the program's stack of the same memory."""
        shape, data = (*self.heads[index], *stacked.shape), stacked.data
        if data.shape != shape:
            data = data.reshape(shape)
        kind = self.kinds[index] if stacked.kind is self.kinds_here[index] else None
        address, lease = stacked.address, stacked.lease
        return Stacked(data, self.program.sub_axes, stacked.owned, kind, address, lease)

    def fitted(self, stacks: Sequence[Stacked | None]) -> Sequence[Stacked | None]:
        """All arguments in the program's sub-axes; usually unchanged."""
        # Kinds are interned, so this compares identities: the common case costs one pass.
        if [stacked and stacked.kind for stacked in stacks] == self.kinds:
            return stacks
        return [stacked and self.fit(n, stacked) for n, stacked in enumerate(stacks)]

    @cached_property
    def _places(self) -> Array:
        """The places of this process's devices, one dim for each sub-axis."""
        program = self.program
        places = (
            np.arange(math.prod(program.sub_axes.sizes))
            if program.here is None
            else np.array(program.here.places)
        )
        return places.reshape(program.stack_dims.shape(program.stack_dims.everything))

    def distinct(self, index: int) -> list[int]:
        """The places of an argument's distinct pieces."""
        chosen = self._places[tuple([slice(size) for size in self.heads[index]])]
        found: list[int] = chosen.reshape(-1).tolist()
        return found

    def representatives(self, index: int) -> dict[int, int]:
        """For every place, the place of its representative piece."""
        places = self._places
        chosen = places[tuple([slice(size) for size in self.heads[index]])]
        stands = np.broadcast_to(chosen, places.shape)
        return dict(zip(places.reshape(-1).tolist(), stands.reshape(-1).tolist(), strict=True))

    def piece(self, index: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """The local shape and type of an argument."""
        type = self.program.arg_types[index]
        assert isinstance(type, TensorType), "arguments are tensors"
        return type.sizes, type.dtype.numpy

    def stack(self, index: int, pieces: Sequence[Any]) -> Stacked:
        """An argument from its distinct pieces."""
        type, head = self.program.arg_types[index], self.heads[index]
        assert isinstance(type, TensorType), "arguments are tensors"
        shape, dtype, memory = (*head, *type.sizes), type.dtype.numpy, self.memory
        listed = [self._in_memory(piece) for piece in pieces]
        if len(pieces) == 1:
            return Stacked(listed[0].reshape(shape), self.program.sub_axes)
        size = piece_bytes(type)
        data = memory.allocate(shape, dtype, size * len(pieces))
        for number, piece in enumerate(listed):
            memory.copy(piece, memory.view(data, number * size, type.sizes, dtype))
        return Stacked(data, self.program.sub_axes, owned=True)

    def _in_memory(self, piece: Any) -> Any:
        """A piece where the program reads it."""
        if not isinstance(self.memory, DeviceMemory):
            return on_host(piece)
        return self.memory.operand(self.memory.place(piece))


def _forwarded(program: LocalProgram, donated: Sequence[int]) -> list[int]:
    """Results that alias arguments which stay alive: JAX expects copies of them."""
    return [n for n, argument in program.lent.items() if argument not in donated]


def load(handles: Handles, executable: PjrtExecutable) -> int:
    """The handle of an executable loaded on its devices."""
    described = Described(executable)
    loaded = LoadedExecutable(described, the_client())
    behind = _handle(handles, described, described)
    address = _handle(handles, described, loaded)
    loaded.release_executable = partial(handles.native.destroy, behind)
    fill(
        ExecutableRecord,
        address,
        executable=behind,
        devices=loaded.on_at,
        device_count=len(loaded.devices),
        logical_ids=loaded.logical_ids,
        assignment=loaded.assignment[0],
        assignment_size=loaded.assignment[1],
    )
    return address


def _handle(handles: Handles, described: Described, thing: Described | LoadedExecutable) -> int:
    address = handles.keep(EXECUTABLE, thing)
    executable = described.executable
    fill(
        ExecutableRecord,
        address,
        replicas=executable.request.replicas,
        partitions=executable.request.partitions,
        outputs=described.count,
        name=described.name[0],
        name_size=described.name[1],
        code_bytes=len(executable.code),
        types=described.types,
        dims=described.dims,
        ranks=described.ranks,
        kinds=described.kinds,
        kind_sizes=described.kind_sizes,
        options=described.options[0],
        options_size=described.options[1],
    )
    return address


def _compile(handles: Handles, args: Any) -> None:
    handles.drain()
    program: Any = api().structs["Program"].from_address(args.program)
    code = ctypes.string_at(program.code, program.code_size)
    format = ctypes.string_at(program.format, program.format_size).decode()
    options = ctypes.string_at(args.compile_options, args.compile_options_size)
    made = on_own_stack(lambda: compiled(code, format, options))
    args.executable = load(handles, made)


def _parameter_memories(handles: Handles, args: Any) -> None:
    facts: Described = handles.objects[args.executable]
    args.num_parameters = len(facts.inside)
    args.memory_kinds, args.memory_kind_sizes = facts.kinds_inside


SLOTS: tuple[tuple[str, SlotFunction], ...] = (
    ("Client_Compile", _compile),
    ("Executable_ParameterMemoryKinds", _parameter_memories),
)
