"""Records that handles point to, which native code reads without asking Python.

Every handle that JAX holds is the address of a record. Its first word is 0 while it is in use (JAX
looks for a table of functions there); records that were given up are chained by it. The second says
what the record is. The per-device buffers of one sharded array share an `ArrayRecord`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, TypeAlias

from weft.jax.abi import api
from weft.native.memory import Items, Member, Offsets, Pointer, Struct, i32, inline
from weft.native.short_run import ShortRun

SIZE = 208  # bytes
MOST_DIMS = 7  # whose sizes have room in an array; more lie elsewhere

STATIC, BUFFER, ERROR, LENT, EVENT, EXECUTABLE, ARRAY = range(7)
COUNTED = EVENT  # from here on records may be held several times
# ENQUEUED: on a device, which may still compute it; it is watched from when JAX asks.
PENDING, READY, FAILED, ENQUEUED = range(4)

ReadyCallback: TypeAlias = Callable[[Pointer, Pointer], None]


class HandleRecord(Struct, size=SIZE):
    """The header of every record."""

    next: Member[HandleRecord]
    what: Member[int]


class LentRecord(HandleRecord):
    """Memory that another library reads, and the structure that it was given."""

    given: Member[Items[int]] = inline(int, 16)


class BufferRecord(HandleRecord):
    """A piece on a device."""

    array: Member[ArrayRecord]
    place: Member[int]
    device: Member[DeviceRecord]
    memory: Member[MemoryRecord]
    deleted: Member[int]


class CountedRecord(HandleRecord):
    """A record that may be held several times."""

    live: Member[int]


class EventRecord(CountedRecord):
    """Whether something is there, and callbacks for when it is."""

    state: Member[int]
    error: Member[Pointer]
    waiting: Member[Waiter]


class Waiter(Struct):
    """A callback of JAX that waits for an event."""

    next: Member[Waiter]
    callback: Member[ReadyCallback]
    given: Member[Pointer]


class ArrayRecord(EventRecord):
    """A sharded array, and its own ready event. Held by its buffers, and while pending."""

    type: Member[int]
    rank: Member[int]
    dims: Member[Items[int]]
    nbytes: Member[int]
    order: Member[Items[int]]  # minor to major, as JAX writes layouts
    data: Member[int]  # where the pieces are, if that is known, and how far from each other
    step: Member[int]
    kind: Member[int]  # of the elements, as programs name it; 0 if they may not be read there
    own: Member[Pointer]  # memory that nothing but this record holds
    lent: Member[int]  # whether others may read the memory
    native: Member[int]  # whether Python does not know of it
    room: Member[int]  # bytes of `own`; 0 if not known
    asked: Member[ArrayRecord]  # the next array whose readiness JAX has asked for
    sizes: Member[Items[int]] = inline(int, MOST_DIMS)  # where there is room for them


class LayoutRecord(Struct, before=2):
    """The text of a layout, which lies before its dims, minor to major."""

    text: Member[Pointer]
    text_size: Member[int]


class ErrorRecord(HandleRecord):
    """An error."""

    code: Member[int]
    message: Member[Pointer]
    message_size: Member[int]


class ExecutableRecord(CountedRecord):
    """An executable, loaded or not."""

    deleted: Member[int]
    replicas: Member[int]
    partitions: Member[int]
    outputs: Member[int]
    name: Member[Pointer]
    name_size: Member[int]
    code_bytes: Member[int]
    executable: Member[ExecutableRecord]  # the executable behind a loaded one
    devices: Member[Pointer]
    device_count: Member[int]
    logical_ids: Member[Pointer]
    assignment: Member[Pointer]
    assignment_size: Member[int]
    types: Member[Pointer]
    dims: Member[Pointer]
    ranks: Member[Pointer]
    kinds: Member[Pointer]
    kind_sizes: Member[Pointer]
    options: Member[Pointer]
    options_size: Member[int]
    descriptor: Member[CallDescriptor]  # how it is called without Python, if it can be


class ClientRecord(HandleRecord):
    """The client, and the topology."""

    platform: Member[Pointer]
    platform_size: Member[int]
    version: Member[Pointer]
    version_size: Member[int]
    devices: Member[Pointer]  # of all processes
    device_count: Member[int]
    addressable: Member[Pointer]  # those of this process, and their memories
    addressable_count: Member[int]
    memories: Member[Pointer]
    memory_count: Member[int]
    process: Member[int]
    topology: Member[Pointer]
    descriptions: Member[Pointer]


class DeviceRecord(HandleRecord):
    """A device, and its description."""

    id: Member[int]
    text: Member[Pointer]
    text_size: Member[int]
    kind: Member[Pointer]
    kind_size: Member[int]
    memories: Member[Pointer]
    memory_count: Member[int]
    memory: Member[MemoryRecord]
    self: Member[Pointer]
    process: Member[int]
    local: Member[int]  # its number among the devices of its process
    is_addressable: Member[int]


class MemoryRecord(HandleRecord):
    """A memory of a device."""

    id: Member[int]
    kind: Member[Pointer]
    kind_size: Member[int]
    kind_id: Member[int]
    text: Member[Pointer]
    text_size: Member[int]
    devices: Member[Items[DeviceRecord]]
    device_count: Member[int]
    on_host: Member[int]  # whether the host reads it where it is


class OperandPlan(Struct, size=32):
    """Operands of a program; the addresses where their pointers are follow the plan."""

    count: Member[int]


class ArgumentPlan(OperandPlan):
    """An argument of a call descriptor."""

    kind: Member[int]
    donated: Member[int]


class ResultPlan(OperandPlan):
    """A result of a call descriptor."""

    nbytes: Member[int]
    over: Member[int]  # the argument whose memory it takes, or -1
    source: Member[Items[Pointer]]  # holds the address of what it copies; null if written


class CallDescriptor(Struct):
    """How native code calls a small program; plans of arguments and then of results follow."""

    run: Member[Callable[[Pointer, Pointer], i32]]  # the function that runs commands
    pool: Member[Pointer]
    commands: Member[Pointer]  # null if all results are copies
    devices: Member[int]
    arguments: Member[int]
    results: Member[int]
    templates: Member[ArrayRecord]  # of the results
    on: Member[Items[DeviceRecord]]
    inside: Member[Items[MemoryRecord]]
    blocks: Member[Items[Pointer]]  # room for the addresses of the results
    donates: Member[int]
    short_run: Member[ShortRun]  # null if the program always ends soon
    tries: Member[int]  # that are left if its loops take too long


def offsets_of(structure: str) -> Offsets:
    """Where the fields of a structure of PJRT are."""
    theirs = api().structs[structure]
    fields = {name: getattr(theirs, name) for name, *_ in theirs._fields_}
    return {name: (field.offset, field.size) for name, field in fields.items()}


RecordWords = ctypes.c_int64 * (SIZE // 8)


def words(address: int) -> Any:
    """A record as a list of words."""
    return RecordWords.from_address(address)
