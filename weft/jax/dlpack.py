"""DLPack: arrays shared with other libraries in memory of the host, without a copy.

JAX has this in compiled code, for platforms whose names it knows. For Weft's devices, whose memory
is the host's, tensors are made and read here.
"""

from __future__ import annotations

import ctypes
import functools
import math
from typing import Any

import ml_dtypes
import numpy as np

from weft.ir.types import Array
from weft.jax.aliasing import aliased
from weft.jax.client import PLATFORM
from weft.jax.handles import FOR_EVER, Handles
from weft.jax.native_lending import LENT_AT
from weft.jax.records import LENT

_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # of kinds of numbers
_BFLOAT = 4
BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
_ALIGNED = 16  # bytes, as all that numpy allocates
_CPU = 1  # the kind of device whose memory is the host's
_NAME, _USED = (ctypes.create_string_buffer(name) for name in (b"dltensor", b"used_dltensor"))


class _Tensor(ctypes.Structure):
    """What a library hands to another, who calls the deleter with it in the end."""

    _fields_ = [
        ("data", ctypes.c_size_t),
        ("device", ctypes.c_int32),
        ("device_number", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("sizes", ctypes.c_size_t),
        ("strides", ctypes.c_size_t),
        ("offset", ctypes.c_uint64),
        ("context", ctypes.c_size_t),
        ("deleter", ctypes.c_size_t),
    ]


# Out


def tensor_of(handles: Handles, array: Array) -> Any:
    """A capsule with an array, which is held until whoever takes it gives it back."""
    code = _BFLOAT if array.dtype == BFLOAT16 else _CODES.get(array.dtype.kind)
    if code is None:
        raise BufferError(f"DLPack has no elements of type {array.dtype}")
    shape = (ctypes.c_int64 * max(1, array.ndim))(*array.shape)
    steps = [step // array.itemsize for step in array.strides]
    strides = (ctypes.c_int64 * max(1, array.ndim))(*steps)
    record = handles.keep(LENT, (array, shape, strides))
    tensor = _Tensor.from_address(record + LENT_AT)
    tensor.data = array.ctypes.data if array.size else 0
    tensor.device, tensor.rank = _CPU, array.ndim
    tensor.code, tensor.bits, tensor.lanes = code, 8 * array.itemsize, 1
    tensor.sizes, tensor.strides = ctypes.addressof(shape), ctypes.addressof(strides)
    tensor.deleter = handles.native.addresses["take_back"]
    make = ctypes.pythonapi.PyCapsule_New
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    drop = handles.native.addresses["drop_capsule"]
    return make(record + LENT_AT, ctypes.addressof(_NAME), drop)


# In


class _Lender:
    """Who is told when no array refers to a tensor's memory any longer."""

    __slots__ = ("_deleter", "_tensor")

    def __init__(self, tensor: int, deleter: int) -> None:
        self._tensor, self._deleter = tensor, deleter

    def __del__(self) -> None:
        if self._deleter:
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._deleter)(self._tensor)


def array_in(capsule: Any) -> Array:
    """The array in a capsule, as long as something refers to it."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype = ctypes.c_void_p
    pointer.argtypes = [ctypes.py_object, ctypes.c_void_p]
    rename = ctypes.pythonapi.PyCapsule_SetName
    rename.argtypes = [ctypes.py_object, ctypes.c_void_p]
    address = pointer(capsule, ctypes.addressof(_NAME))
    tensor = _Tensor.from_address(address)
    shape = tuple((ctypes.c_int64 * tensor.rank).from_address(tensor.sizes)) if tensor.rank else ()
    dtype = _dtype(tensor)
    strides = _byte_strides(tensor, shape, dtype.itemsize)
    rename(capsule, ctypes.addressof(_USED))
    lender = _Lender(address, tensor.deleter)
    if 0 in shape:
        return np.zeros(shape, dtype)
    reach = sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    memory: Any = (ctypes.c_char * (reach + dtype.itemsize)).from_address(
        tensor.data + tensor.offset
    )
    memory.lender = lender  # arrays refer to the memory, and it refers to who lent it
    return np.ndarray(shape, dtype, memory, strides=strides)


def _dtype(tensor: _Tensor) -> np.dtype[Any]:
    kind = {code: letter for letter, code in _CODES.items()}.get(tensor.code)
    if tensor.code == _BFLOAT and tensor.bits == 16:
        return BFLOAT16
    if kind is None or tensor.lanes != 1 or tensor.bits % 8:
        raise BufferError(
            f"a DLPack tensor of type {tensor.code} with {tensor.lanes} times {tensor.bits} bits"
        )
    found: np.dtype[Any] = np.dtype("?" if kind == "b" else f"{kind}{tensor.bits // 8}")
    return found


def _byte_strides(tensor: _Tensor, shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    if tensor.strides and shape:
        steps = (ctypes.c_int64 * len(shape)).from_address(tensor.strides)
        found = tuple([step * itemsize for step in steps])
        if min(found) < 0:
            raise BufferError("a DLPack tensor whose elements are in reverse order")
        return found
    return tuple([math.prod(shape[n + 1 :]) * itemsize for n in range(len(shape))])


# In JAX's place


class _Exchange:
    """JAX's compiled functions, but for the two that are asked about Weft's devices."""

    def __init__(self, theirs: Any, handles: Handles) -> None:
        self._theirs, self._handles = theirs, handles

    def __getattr__(self, name: str) -> Any:
        return getattr(self._theirs, name)

    def buffer_to_dlpack_managed_tensor(self, array: Any, stream: Any = None) -> Any:
        """A capsule with an array of one device."""
        if array.platform() != PLATFORM:
            return self._theirs.buffer_to_dlpack_managed_tensor(array, stream=stream)
        return tensor_of(self._handles, np.asarray(array))

    def dlpack_managed_tensor_to_buffer(
        self, capsule: Any, device: Any, stream: Any, copy: bool | None, *more: Any
    ) -> Any:
        """An array of JAX's from a capsule; the memory is shared where it can be."""
        if device.platform != PLATFORM:
            return self._theirs.dlpack_managed_tensor_to_buffer(
                capsule, device, stream, copy, *more
            )
        import jax

        array = array_in(capsule)
        fits = array.ctypes.data % _ALIGNED == 0 and array.flags.c_contiguous
        if copy is False and not fits:
            raise self._theirs.JaxRuntimeError(  # in the words that JAX looks for
                f"INVALID_ARGUMENT: the memory is not aligned to {_ALIGNED} bytes in dense rows. "
            )
        if copy or not fits:
            return jax.device_put(array, device)
        with aliased(self._handles, array):
            return jax.device_put(array, device)


def exchange_by_dlpack(handles: Handles) -> None:
    """Have JAX's DLPack functions work with Weft's devices."""
    from jax._src import array, dlpack

    if isinstance(dlpack._jax, _Exchange):
        return
    dlpack._jax = _Exchange(dlpack._jax, handles)
    import jax

    if (jax.config.jax_platforms or "").split(",")[0] == PLATFORM:
        dlpack._DL_DEVICE_TO_PLATFORM[dlpack.DLDeviceType.kDLCPU] = PLATFORM
    theirs = array.ArrayImpl.__dlpack_device__

    @functools.wraps(theirs)
    def device_of(held: Any) -> Any:
        if held.platform() == PLATFORM and len(held.devices()) == 1:
            return dlpack.DLDeviceType.kDLCPU, 0
        return theirs(held)

    array.ArrayImpl.__dlpack_device__ = device_of
    FOR_EVER.append(device_of)
