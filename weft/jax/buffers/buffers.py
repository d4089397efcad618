"""Buffer slots: host transfers, copies between devices, deletion, external references."""

from __future__ import annotations

import ctypes
import math
from functools import lru_cache
from typing import Any
from weakref import ref

import numpy as np

from weft.array.host import HOST_MEMORY
from weft.array.memory import AllocatorStats, DeviceBuffer, Memory
from weft.array.stacked import Kind, Stacked, kind_of, one_for_all
from weft.ir.types import Array
from weft.jax.abi import api
from weft.jax.buffers.aliasing import NOW
from weft.jax.buffers.client import Space, the_client
from weft.jax.buffers.events import event_of
from weft.jax.buffers.reading import TRANSFERS, WaitingCopy, is_computed_soon
from weft.jax.buffers.values import (
    NOTHING,
    ONE_DEVICE,
    PjrtArray,
    copied,
    dtype_at,
    publish_kind,
    single,
    step_of,
    template,
    transposed,
    value_of,
)
from weft.jax.native.arrivals import SMALL_ARRIVAL, TEMPLATES, place_in_table
from weft.jax.native.handles import PRECONDITION, UNIMPLEMENTED, Handles, PjrtError
from weft.jax.native.records import MOST_DIMS, READY, SIZE, ArrayRecord, BufferRecord, words
from weft.jax.native.slots import SlotFunction
from weft.native.cpython import address_of
from weft.records import dataclass

_Sizes = [ctypes.c_int64 * max(1, n) for n in range(64)]
_ARRAY = BufferRecord.array.word


def sizes_at(address: int, count: int) -> tuple[int, ...]:
    """A list of sizes at an address."""
    return tuple(_Sizes[count].from_address(address)[:count]) if count else ()


def _from_host(handles: Handles, args: Any) -> None:
    handles.drain()
    address, rank = args.data, args.num_dims
    shape = sizes_at(args.dims, rank)
    strides = sizes_at(args.byte_strides, rank) if args.num_byte_strides else None
    dtype, nbytes, is_dense = _elements(args.type, shape, strides)
    space = space_of(args.memory, args.device)
    lent, kind, on_host = NOW.array, None, space.memory.is_host
    is_small = is_dense and nbytes < SMALL_ARRIVAL and rank <= MOST_DIMS
    if lent is None and is_small and the_client().home.memory.is_host:
        _enter(args.type, shape, dtype)
        if handles.native.arrive(ctypes.addressof(args)):  # native code handles the following ones
            return
    if lent is not None and lent.ctypes.data == address and lent.shape == shape:
        held, NOW.buffer = lent if NOW.buffer is None else NOW.buffer, None
        value = PjrtArray(one_for_all(placed_in(space, held), ONE_DEVICE))
    elif nbytes >= SMALL_ARRIVAL and is_dense:
        value = _shared(address, shape, dtype, nbytes, space)
        kind = _kind(shape, dtype) if on_host else None
    elif is_dense and on_host:
        value = PjrtArray(_moved(address, shape, dtype, nbytes))
    else:
        given = host_array(address, shape, dtype, strides)
        value = PjrtArray(copied(given) if on_host else _on_device(given, space))
    args.buffer = single(handles, value, shape, dtype, space, kind)
    if kind is None and on_host and (lent is None or is_dense):
        publish_kind(value, words(args.buffer)[_ARRAY], _kind(shape, dtype))
    args.done_with_host_buffer = handles.ready


@lru_cache(maxsize=1 << 12)
def _elements(
    number: int, shape: tuple[int, ...], strides: tuple[int, ...] | None
) -> tuple[np.dtype[Any], int, bool]:
    """The element type, its bytes, and whether the array is dense."""
    dtype = dtype_at(number)
    nbytes = math.prod(shape) * dtype.itemsize
    steps = [math.prod(shape[n + 1 :]) * dtype.itemsize for n in range(len(shape))]
    pairs = zip(shape, strides or steps, steps, strict=True)
    return dtype, nbytes, not nbytes or all(n == 1 or a == b for n, a, b in pairs)


def _enter(number: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Register host arrays of this type with native code."""
    kind = _kind(shape, dtype)
    place = place_in_table(number, shape)
    made = ctypes.create_string_buffer(template(shape, dtype, READY, kind=kind, native=True), SIZE)
    TEMPLATES[place] = ctypes.addressof(made)
    _entered[place] = made


_entered: dict[int, Any] = {}  # registered so far


def _kind(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Kind:
    """The kind of an array on one device."""
    return kind_of(ONE_DEVICE, (1,) * len(ONE_DEVICE.sizes) + shape, dtype)


def _moved(address: int, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> Stacked:
    """A copy of dense host memory."""
    made = HOST_MEMORY.allocate((1, *shape), dtype, nbytes)
    ctypes.memmove(address_of(made), address, nbytes)
    return Stacked(made, ONE_DEVICE, owned=True)


def _on_device(array: Array, space: Space) -> Stacked:
    """A copy of a host array in a device's memory."""
    kind = kind_of(ONE_DEVICE, (1, *array.shape), array.dtype, space.memory)
    return Stacked(placed_in(space, array).reshape(kind.shape), ONE_DEVICE, True, kind)


def placed_in(space: Space, held: Any) -> Any:
    """Elements in a memory: as they are if they are there, else a copy, which may be enqueued."""
    memory, stream = space.memory, the_client().home.stream
    if memory.is_host:
        return memory.place(held)
    is_there = held.__class__ is DeviceBuffer and held.memory is memory
    made = memory.operand(held) if is_there else memory.place(held)  # type: ignore[attr-defined]
    if made is not held and stream is not None:
        made.event = stream.record()
    return made


@dataclass(frozen=True, slots=True)
class _Arrival:
    """The last transfer of a large array: other devices may receive the same one next."""

    what: tuple[int, tuple[int, ...], np.dtype[Any], Memory]
    value: ref[PjrtArray]
    seen: Array | None  # its elements, where the host does not read those of the device

    def is_again(self, address: int, nbytes: int) -> Stacked | None:
        """The elements on the device, if those at an address are the same."""
        value = self.value()
        before = None if value is None or value.is_part else value.held
        if value is None or before is None:
            return None
        seen = before.data if self.seen is None else self.seen
        if _compare(address, address_of(seen), nbytes):
            return None
        value.share()
        return Stacked(before.data, ONE_DEVICE)


_last: list[_Arrival] = []


def forget_arrivals() -> None:
    """Free the host's copy of what has been put onto the devices, where there is one."""
    if _last and _last[0].seen is not None:
        _last.clear()


def _shared(
    address: int, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int, space: Space
) -> PjrtArray:
    """A copy of dense host memory, shared by all devices that receive the same array."""
    what = (address, shape, dtype, space.memory)
    for arrival in _last:
        if arrival.what == what and (again := arrival.is_again(address, nbytes)) is not None:
            return PjrtArray(again)
    seen = None
    if space.memory.is_host:
        made = PjrtArray(_moved(address, shape, dtype, nbytes))
    elif the_client().processes.here == 1:
        return PjrtArray(_on_device(host_array(address, shape, dtype, None), space))
    else:
        seen = _moved(address, shape, dtype, nbytes).data.reshape(shape)
        made = PjrtArray(_on_device(seen, space))
    _last[:] = [_Arrival(what, ref(made), seen)]
    return made


_compare = ctypes.PyDLL(None).memcmp  # atomic under the GIL
_compare.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def space_of(memory: int, device: int) -> Space:
    """The requested memory, or the device's default."""
    return the_client().devices.space_at(memory or device)


def host_array(
    address: int, shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...] | None
) -> Array:
    """Host memory as an array."""
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


def _to_host(handles: Handles, args: Any) -> None:
    value, place = value_of(handles, args.src)
    if not args.dst:
        args.dst_size = words(words(args.src)[_ARRAY])[ArrayRecord.nbytes.word]
        return
    order = _host_order(args.host_layout)
    to, size = args.dst, args.dst_size

    waits = not (value.is_ready and value.error is None)
    if waits:
        value.claim()  # it may be deleted before it is ready
        held, lease = None, None
    else:
        held, lease = value.lend()  # pinned against donation until it is copied

    def copy() -> None:
        # A waiting thread copies before the stream continues; otherwise another thread could donate
        # it.
        piece = (held or value.take_claimed()).part(value.at(place))
        if piece.nbytes > size:
            raise PjrtError(PRECONDITION, f"{piece.nbytes} bytes do not fit into {size}")
        if order is not None:
            piece = transposed(piece, order)
        if piece.__class__ is DeviceBuffer:
            piece.memory.copy(piece, host_array(to, piece.shape, piece.dtype, None))
        else:
            dense = np.ascontiguousarray(piece)
            ctypes.memmove(to, address_of(dense), dense.nbytes)

    if waits or is_computed_soon(value):
        args.event = after(handles, value, copy)
    else:
        # Another thread waits for the device.
        task = WaitingCopy(value, copy, lease)
        TRANSFERS.enqueue(task)
        args.event = event_of(handles, task.done)


def _host_order(layout: int) -> tuple[int, ...] | None:
    """The dims from major to minor, or None for row-major."""
    if not layout:
        return None
    requested: Any = api().structs["Buffer_MemoryLayout"].from_address(layout)
    if requested.type != 0 or not requested.tiled.minor_to_major_size:
        return None
    if requested.tiled.num_tiles:
        raise PjrtError(UNIMPLEMENTED, "layouts with tiles")
    minor = sizes_at(requested.tiled.minor_to_major, requested.tiled.minor_to_major_size)
    order = tuple(reversed(minor))
    return None if order == tuple(range(len(order))) else order


def after(handles: Handles, value: PjrtArray, act: Any) -> int:
    """Run an action when a value is ready; returns the completion event."""
    if value.is_ready and value.error is None:
        act()
        return handles.ready
    done = PjrtArray()

    def go() -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001  # set on the event
            done.fail(error)
        else:
            done.resolve(NOTHING)  # the value may be deleted meanwhile

    value.then(go)
    return event_of(handles, done)


def _to_device(handles: Handles, args: Any) -> None:
    args.dst_buffer = _copy(handles, args.buffer, space_of(0, args.dst_device))


def _to_memory(handles: Handles, args: Any) -> None:
    args.dst_buffer = _copy(handles, args.buffer, space_of(args.dst_memory, 0))


def _copy(handles: Handles, buffer: int, space: Space) -> int:
    """The same piece on another device, in the same memory if it may be: buffers are immutable."""
    handles.drain()
    value, place = value_of(handles, buffer)
    array_record = words(words(buffer)[_ARRAY])
    shape = sizes_at(array_record[ArrayRecord.dims.word], array_record[ArrayRecord.rank.word])
    array = PjrtArray()

    def share() -> None:
        if value.error is not None:
            array.fail(value.error)
            return
        array.resolve(one_for_all(placed_in(space, value.part(place)), ONE_DEVICE))

    value.then(share)
    return single(handles, array, shape, dtype_at(array_record[ArrayRecord.type.word]), space)


def _unsafe_pointer(handles: Handles, args: Any) -> None:
    args.buffer_pointer = _pointer(handles, args.buffer)


def _opaque_pointer(handles: Handles, args: Any) -> None:
    args.device_memory_ptr = _pointer(handles, args.buffer)


def _pointer(handles: Handles, buffer: int) -> int:
    """The address of a piece; it is pinned from now on, also after the buffer is deleted."""
    address = words(buffer)[_ARRAY]
    value, place = value_of(handles, buffer)
    value.lent = value.enqueued()  # pin before reading the address
    value.lent.located()
    value.lent = stacked = value.borrow()
    # Noted for an export by DLPack, which is row-major.
    NOW.pointed = piece = stacked.part(value.at(place))
    array_record = words(address)
    minor = sizes_at(array_record[ArrayRecord.order.word], array_record[ArrayRecord.rank.word])
    if minor != tuple(reversed(range(len(minor)))):
        return _address(value.in_order(place, minor[::-1]))
    step = step_of(stacked.located()) if value.order is None and stacked.is_on_host else None
    if step is not None and handles.objects.get(address) is value:  # publish to native code
        array_record[ArrayRecord.step.word] = step
        array_record[ArrayRecord.data.word] = address_of(stacked.data)
    return _address(piece)


def _address(piece: Any) -> int:
    memory = piece.memory if piece.__class__ is DeviceBuffer else HOST_MEMORY
    return int(memory.address(piece))


def _lend(handles: Handles, args: Any) -> None:
    """Add an external reference: pin the memory while a buffer is alive."""
    _pointer(handles, args.buffer)


def _error_buffer(handles: Handles, args: Any) -> None:
    """A buffer that carries an error instead of elements."""
    message = ctypes.string_at(args.error_message, args.error_message_size).decode()
    failed = PjrtArray().failed(PjrtError(args.error_code, message))
    shape = sizes_at(args.shape_dims, args.shape_num_dims)
    space = space_of(args.memory, 0)
    args.buffer = single(handles, failed, shape, dtype_at(args.shape_element_type), space)


def _memory_stats(handles: Handles, args: Any) -> None:
    """The bytes of the device's buffers, and the peak of those seen and of its share of the memory.

    All devices share one memory: programs have their temporaries there, and pieces that are
    replicated are stored once.
    """
    count, device = the_client().processes.here, args.device
    use = the_client().home.memory.use() or AllocatorStats(0, 0, 0)
    args.bytes_in_use = used = handles.bytes_on(device)
    _most[device] = max(used, use.peak // count, _most.get(device, 0))
    args.peak_bytes_in_use, args.peak_bytes_in_use_is_set = _most[device], True
    for name in ("num_allocs", "largest_alloc_size", "bytes_reserved"):
        setattr(args, f"{name}_is_set", False)
    args.bytes_limit, args.bytes_limit_is_set = (use.limit or 0) // count, use.limit is not None
    for name in ("peak_bytes_reserved", "bytes_reservable_limit", "largest_free_block_bytes"):
        setattr(args, f"{name}_is_set", False)
    args.pool_bytes, args.pool_bytes_is_set = max(used, use.pool // count), True
    args.peak_pool_bytes_is_set = False


_most: dict[int, int] = {}  # the peak of a device's memory


SLOTS: tuple[tuple[str, SlotFunction], ...] = (
    ("Client_BufferFromHostBuffer", _from_host),
    ("Buffer_ToHostBuffer", _to_host),
    ("Buffer_CopyToDevice", _to_device),
    ("Buffer_CopyToMemory", _to_memory),
    ("Buffer_UnsafePointer", _unsafe_pointer),
    ("Buffer_OpaqueDeviceMemoryDataPointer", _opaque_pointer),
    ("Buffer_IncreaseExternalReferenceCount", _lend),
    ("Client_CreateErrorBuffer", _error_buffer),
    ("Device_MemoryStats", _memory_stats),
)
