"""Asynchronous host-to-device transfers: buffers that are filled chunk by chunk, or fail."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from weft.array.host import HOST_MEMORY
from weft.array.stacked import one_for_all
from weft.ir.types import Array
from weft.jax.abi import api
from weft.jax.buffers.buffers import placed_in, sizes_at, space_of
from weft.jax.buffers.client import Space
from weft.jax.buffers.values import ONE_DEVICE, PjrtArray, dtype_at, single
from weft.jax.native.handles import INVALID, Handles, PjrtError
from weft.jax.native.records import LENT
from weft.jax.native.slots import SlotFunction
from weft.native.cpython import address_of


class PendingBuffer:
    """A buffer that is being filled."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], space: Space) -> None:
        self.shape, self.dtype, self.space = shape, dtype, space
        self.nbytes = math.prod(shape) * dtype.itemsize
        self.value = PjrtArray()
        self.room: Array = HOST_MEMORY.allocate(shape, dtype, self.nbytes)

    def fill(self, data: int, offset: int, size: int, is_last: bool) -> None:
        """Copy a chunk."""
        if not 0 <= offset <= offset + size <= self.nbytes:
            raise PjrtError(INVALID, f"bytes {offset} to {offset + size} of {self.nbytes}")
        ctypes.memmove(address_of(self.room) + offset, data, size)
        if is_last:
            held = placed_in(self.space, self.room)
            self.value.resolve(one_for_all(held, ONE_DEVICE, owned=True))


class HostTransfer:
    """A transfer manager: buffers of one device that are being filled."""

    def __init__(self, space: Space, buffers: list[PendingBuffer]) -> None:
        self.space, self.buffers = space, buffers


def _create(handles: Handles, args: Any) -> None:
    handles.drain()
    kind: Any = api().structs["ShapeSpec"]
    specs = (kind * args.num_shape_specs).from_address(args.shape_specs)
    space = space_of(args.memory, 0)
    made = [
        PendingBuffer(sizes_at(s.dims, s.num_dims), dtype_at(s.element_type), space) for s in specs
    ]
    args.transfer_manager = handles.keep(LENT, HostTransfer(space, made))


def _buffer(handles: Handles, args: Any) -> PendingBuffer:
    transfer: HostTransfer = handles.objects[args.transfer_manager]
    index: int = args.buffer_index
    if not 0 <= index < len(transfer.buffers):
        raise PjrtError(INVALID, f"buffer {index} of {len(transfer.buffers)}")
    return transfer.buffers[index]


def _retrieve(handles: Handles, args: Any) -> None:
    found = _buffer(handles, args)
    space = handles.objects[args.transfer_manager].space
    args.buffer_out = single(handles, found.value, found.shape, found.dtype, space)


def _transfer(handles: Handles, args: Any) -> None:
    found = _buffer(handles, args)
    found.fill(args.data, args.offset, args.transfer_size, args.is_last_transfer)
    args.done_with_h2d_transfer = handles.ready


def _literal(handles: Handles, args: Any) -> None:
    found = _buffer(handles, args)
    found.fill(args.data, 0, found.nbytes, True)
    args.done_with_h2d_transfer = handles.ready


def _fail(handles: Handles, args: Any) -> None:
    message = ctypes.string_at(args.error_message, args.error_message_size).decode()
    _buffer(handles, args).value.fail(PjrtError(args.error_code, message))


def _device(handles: Handles, args: Any) -> None:
    args.device_out = handles.objects[args.transfer_manager].space.device


def _count(handles: Handles, args: Any) -> None:
    args.buffer_count = len(handles.objects[args.transfer_manager].buffers)


def _size(handles: Handles, args: Any) -> None:
    args.buffer_size = _buffer(handles, args).nbytes


def _metadata(handles: Handles, args: Any) -> None:
    """Ignored: metadata is for profilers of other devices."""


SLOTS: tuple[tuple[str, SlotFunction], ...] = (
    ("Client_CreateBuffersForAsyncHostToDevice", _create),
    ("AsyncHostToDeviceTransferManager_RetrieveBuffer", _retrieve),
    ("AsyncHostToDeviceTransferManager_TransferData", _transfer),
    ("AsyncHostToDeviceTransferManager_TransferLiteral", _literal),
    ("AsyncHostToDeviceTransferManager_SetBufferError", _fail),
    ("AsyncHostToDeviceTransferManager_Device", _device),
    ("AsyncHostToDeviceTransferManager_BufferCount", _count),
    ("AsyncHostToDeviceTransferManager_BufferSize", _size),
    ("AsyncHostToDeviceTransferManager_AddMetadata", _metadata),
)
