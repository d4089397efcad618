"""Buffers: from and to the host, between devices, deleted, and lent to others."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from weft.array.room import address_of
from weft.array.stacked import one_for_all
from weft.ir.types import Array
from weft.jax.abi import api
from weft.jax.client import Device, Memory, the_client
from weft.jax.events import event_of
from weft.jax.handles import PRECONDITION, UNIMPLEMENTED, Handles, Refused
from weft.jax.records import FIELDS, words
from weft.jax.slots import slot
from weft.jax.values import ONE_DEVICE, Value, copied, dtype_at, single, value_of

_Sizes = [ctypes.c_int64 * max(1, n) for n in range(64)]


def sizes_at(address: int, count: int) -> tuple[int, ...]:
    """A list of sizes."""
    return tuple(_Sizes[count].from_address(address)[:count]) if count else ()


@slot("Client_BufferFromHostBuffer")
def _from_host(handles: Handles, args: Any) -> None:
    handles.drain()
    shape, dtype = sizes_at(args.dims, args.num_dims), dtype_at(args.type)
    strides = sizes_at(args.byte_strides, args.num_byte_strides) or None
    memory = _memory(args.memory, args.device)
    given = host_array(args.data, shape, dtype, strides)
    value = Value(copied(given))
    args.buffer = single(handles, value, shape, dtype, memory)
    args.done_with_host_buffer = handles.ready


def _memory(memory: int, device: int) -> Memory:
    client = the_client()
    if memory:
        found = client.by_handle[memory]
        assert isinstance(found, Memory)
        return found
    on = client.by_handle[device]
    assert isinstance(on, Device)
    return on.memories[0]


def host_array(
    address: int, shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...] | None
) -> Array:
    """Memory of the host as an array."""
    if not math.prod(shape):
        return np.empty(shape, dtype)
    if strides is None:
        return np.ndarray(shape, dtype, _memory_at(address, math.prod(shape) * dtype.itemsize))
    reach = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0) + dtype.itemsize
    raw = _memory_at(address + low, high - low)
    return np.ndarray(shape, dtype, raw, offset=-low, strides=strides)


def _memory_at(address: int, nbytes: int) -> memoryview:
    return memoryview((ctypes.c_char * nbytes).from_address(address))


@slot("Buffer_ToHostBuffer")
def _to_host(handles: Handles, args: Any) -> None:
    value, place = value_of(handles, args.src)
    if not args.dst:
        args.dst_size = words(words(args.src)[FIELDS["buffer"]["family"]])[
            FIELDS["family"]["nbytes"]
        ]
        return
    order = _host_order(args.host_layout)
    to, size = args.dst, args.dst_size

    def copy() -> None:
        array = value.piece(place)
        if order is not None:
            array = array.transpose(order)
        array = np.ascontiguousarray(array)
        if array.nbytes > size:
            raise Refused(PRECONDITION, f"{array.nbytes} bytes do not fit into {size}")
        ctypes.memmove(to, address_of(array), array.nbytes)

    args.event = after(handles, value, copy)


def _host_order(layout: int) -> tuple[int, ...] | None:
    """The dims from major to minor, where they are not in their own order."""
    if not layout:
        return None
    asked: Any = api().structs["Buffer_MemoryLayout"].from_address(layout)
    if asked.type != 0 or not asked.tiled.minor_to_major_size:
        return None
    if asked.tiled.num_tiles:
        raise Refused(UNIMPLEMENTED, "layouts with tiles")
    minor = sizes_at(asked.tiled.minor_to_major, asked.tiled.minor_to_major_size)
    order = tuple(reversed(minor))
    return None if order == tuple(range(len(order))) else order


def after(handles: Handles, value: Value, act: Any) -> int:
    """Do something when a value is there; the event that it is done."""
    if value.is_ready and value.error is None:
        act()
        return handles.ready
    done = Value()

    def go() -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001  # told to who waits for the event
            done.fail(error)
        else:
            done.resolve(value.stacked)

    value.then(go)
    return event_of(handles, done)


@slot("Buffer_CopyToDevice")
def _to_device(handles: Handles, args: Any) -> None:
    args.dst_buffer = _copy(handles, args.buffer, _memory(0, args.dst_device))


@slot("Buffer_CopyToMemory")
def _to_memory(handles: Handles, args: Any) -> None:
    args.dst_buffer = _copy(handles, args.buffer, _memory(args.dst_memory, 0))


def _copy(handles: Handles, buffer: int, memory: Memory) -> int:
    """The same piece elsewhere; nobody writes to it, so the memory is shared."""
    handles.drain()
    value, place = value_of(handles, buffer)
    family = words(words(buffer)[FIELDS["buffer"]["family"]])
    names = FIELDS["family"]
    shape = sizes_at(family[names["dims"]], family[names["rank"]])
    made = Value()

    def share() -> None:
        if value.error is not None:
            made.fail(value.error)
            return
        value.share()
        made.resolve(one_for_all(value.piece(place), ONE_DEVICE))

    value.then(share)
    return single(handles, made, shape, dtype_at(family[names["type"]]), memory)


@slot("Buffer_Delete")
def _delete(handles: Handles, args: Any) -> None:
    record = words(args.buffer)
    if record[FIELDS["buffer"]["deleted"]]:
        return
    record[FIELDS["buffer"]["deleted"]] = 1
    family = record[FIELDS["buffer"]["family"]]
    value: Value = handles.kept[family]
    value.deletions += 1
    if value.deletions >= words(family)[FIELDS["family"]["live"]]:
        value.delete()


@slot("Buffer_UnsafePointer")
def _unsafe_pointer(handles: Handles, args: Any) -> None:
    args.buffer_pointer = _pointer(handles, args.buffer)


@slot("Buffer_OpaqueDeviceMemoryDataPointer")
def _opaque_pointer(handles: Handles, args: Any) -> None:
    args.device_memory_ptr = _pointer(handles, args.buffer)


def _pointer(handles: Handles, buffer: int) -> int:
    """Where a piece lies; from now on others may read it."""
    value, place = value_of(handles, buffer)
    stacked = value.stacked
    stacked.located()
    value.share()
    return address_of(value.piece(place))


@slot("Buffer_IncreaseExternalReferenceCount")
def _lend(handles: Handles, args: Any) -> None:
    """Hold the memory for somebody outside, whatever JAX does with the buffer."""
    value, _ = value_of(handles, args.buffer)
    value.share()
    family = words(args.buffer)[FIELDS["buffer"]["family"]]
    words(family)[FIELDS["family"]["live"]] += 1


@slot("Buffer_DecreaseExternalReferenceCount")
def _take_back(handles: Handles, args: Any) -> None:
    family = words(args.buffer)[FIELDS["buffer"]["family"]]
    words(family)[FIELDS["family"]["live"]] -= 1
