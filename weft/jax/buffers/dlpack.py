"""DLPack: zero-copy exchange of memory with other libraries.

JAX implements it natively for the platforms it knows. For Weft's devices, tensors of the host's
memory are built and read here, and those of a device's memory by its own package.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from weft.array.memory import DeviceBuffer, DeviceMemory, Memory
from weft.ir.types import Array
from weft.jax.buffers.aliasing import NOW, aliased
from weft.jax.buffers.client import KINDS, PLATFORM, the_client
from weft.jax.native.handles import Handles
from weft.jax.native.lending import LENT_AT
from weft.jax.native.records import LENT
from weft.patches import replace_in_jax

_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # DLPack type codes
_NARROW: dict[int, np.dtype[Any]] = {  # ml_dtypes by DLPack code
    4: np.dtype(ml_dtypes.bfloat16),
    7: np.dtype(ml_dtypes.float8_e3m4),
    8: np.dtype(ml_dtypes.float8_e4m3),
    9: np.dtype(ml_dtypes.float8_e4m3b11fnuz),
    10: np.dtype(ml_dtypes.float8_e4m3fn),
    11: np.dtype(ml_dtypes.float8_e4m3fnuz),
    12: np.dtype(ml_dtypes.float8_e5m2),
    13: np.dtype(ml_dtypes.float8_e5m2fnuz),
    14: np.dtype(ml_dtypes.float8_e8m0fnu),
}
_ALIGNED = 16  # bytes: numpy's own alignment
_CPU = 1  # kDLCPU
_SPOKEN = (1, 0)  # the first DLPack version with version and flags fields
_READ_ONLY, _COPIED = 1, 2  # flags


class _Tensor(ctypes.Structure):
    """DLTensor: address, element type, sizes and strides."""

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
    ]


class _Managed(ctypes.Structure):
    """DLManagedTensor: a tensor with a deleter that the consumer calls."""

    _fields_ = [
        ("tensor", _Tensor),
        ("context", ctypes.c_size_t),
        ("deleter", ctypes.c_size_t),
    ]


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned of DLPack 1.0, with a read-only flag; requested since JAX 0.12."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_size_t),
        ("deleter", ctypes.c_size_t),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


def _names(name: bytes) -> tuple[Any, Any]:
    """The names of a capsule before and after its tensor is consumed."""
    return ctypes.create_string_buffer(name), ctypes.create_string_buffer(b"used_" + name)


_NAMES = {_Managed: _names(b"dltensor"), _Versioned: _names(b"dltensor_versioned")}


# Export


def tensor_of(
    handles: Handles,
    array: Array,
    *,
    max_version: tuple[int, int] | None = None,
    copied: bool = False,
) -> Any:
    """A capsule of an array, which is kept alive until the consumer calls the deleter."""
    shape = (ctypes.c_int64 * max(1, array.ndim))(*array.shape)
    # DLPack counts strides in elements, numpy in bytes.
    steps = [step // array.itemsize for step in array.strides]
    strides = (ctypes.c_int64 * max(1, array.ndim))(*steps)
    code = _code(array.dtype)
    # The consumer reads sizes and strides by address, so they live as long as the array.
    record = handles.keep(LENT, (array, shape, strides))
    kind = _Managed if max_version is None or max_version < _SPOKEN else _Versioned
    managed = kind.from_address(record + LENT_AT)
    if isinstance(managed, _Versioned):
        managed.major, managed.minor = _SPOKEN
        managed.flags = _READ_ONLY | (_COPIED if copied else 0)  # JAX arrays are immutable
    tensor = managed.tensor
    tensor.data = array.ctypes.data if array.size else 0
    tensor.device, tensor.rank = _CPU, array.ndim
    tensor.code, tensor.bits, tensor.lanes = code, 8 * array.itemsize, 1
    tensor.sizes, tensor.strides = ctypes.addressof(shape), ctypes.addressof(strides)
    managed.deleter = handles.native.addresses["take_back"]
    make = ctypes.pythonapi.PyCapsule_New
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    drop = handles.native.addresses["drop_capsule"]
    return make(record + LENT_AT, ctypes.addressof(_NAMES[kind][0]), drop)


def _code(dtype: np.dtype[Any]) -> int:
    narrow = {narrow: code for code, narrow in _NARROW.items()}.get(dtype)
    code = _CODES.get(dtype.kind) if narrow is None else narrow
    if code is None:
        raise BufferError(f"DLPack has no elements of type {dtype}")
    return code


# Import


class _Lender:
    """Calls the deleter when no array refers to the tensor's memory any longer."""

    __slots__ = ("_deleter", "_tensor")

    def __init__(self, tensor: int, deleter: int) -> None:
        self._tensor, self._deleter = tensor, deleter

    def __del__(self) -> None:
        if self._deleter:
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._deleter)(self._tensor)


def array_in(capsule: Any) -> Array:
    """The array of a capsule."""
    kind = _kind(capsule)
    whole, used = _NAMES[kind]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype = ctypes.c_void_p
    pointer.argtypes = [ctypes.py_object, ctypes.c_void_p]
    rename = ctypes.pythonapi.PyCapsule_SetName
    rename.argtypes = [ctypes.py_object, ctypes.c_void_p]
    address = pointer(capsule, ctypes.addressof(whole))
    managed = kind.from_address(address)
    if isinstance(managed, _Versioned) and managed.major > _SPOKEN[0]:
        raise BufferError(f"a tensor of DLPack {managed.major}.{managed.minor}; 1.x is read")
    tensor = managed.tensor
    shape = tuple((ctypes.c_int64 * tensor.rank).from_address(tensor.sizes)) if tensor.rank else ()
    dtype = _dtype(tensor)
    strides = _byte_strides(tensor, shape, dtype.itemsize)
    # The protocol's sign of consumption: the capsule's own destructor then leaves the tensor alone.
    rename(capsule, ctypes.addressof(used))
    lender = _Lender(address, managed.deleter)
    # Without elements the address may be null, which ctypes cannot view.
    if 0 in shape:
        return np.zeros(shape, dtype)
    reach = sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    memory: Any = (ctypes.c_char * (reach + dtype.itemsize)).from_address(
        tensor.data + tensor.offset
    )
    # numpy keeps `memory` as the array's base; an attribute of it lives exactly as long.
    memory.lender = lender  # array -> memory -> lender
    return np.ndarray(shape, dtype, memory, strides=strides)


def _kind(capsule: Any) -> type[_Managed] | type[_Versioned]:
    """The struct type of a capsule, by its name."""
    is_named = ctypes.pythonapi.PyCapsule_IsValid
    is_named.argtypes = [ctypes.py_object, ctypes.c_void_p]
    versioned = is_named(capsule, ctypes.addressof(_NAMES[_Versioned][0]))
    return _Versioned if versioned else _Managed


def _dtype(tensor: _Tensor) -> np.dtype[Any]:
    kind = {code: letter for letter, code in _CODES.items()}.get(tensor.code)
    narrow = _NARROW.get(tensor.code)
    if narrow is not None and (tensor.bits, tensor.lanes) == (8 * narrow.itemsize, 1):
        return narrow
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


# Replacements of JAX's functions


class _Exchange:
    """JAX's native module with the two DLPack functions extended to Weft's devices."""

    def __init__(self, theirs: Any, handles: Handles) -> None:
        self._theirs, self._handles = theirs, handles

    def __getattr__(self, name: str) -> Any:
        return getattr(self._theirs, name)

    def buffer_to_dlpack_managed_tensor(
        self, array: Any, stream: Any = None, **versioned: Any
    ) -> Any:
        """A capsule of a single-device array; since JAX 0.12 of the requested version."""
        if array.platform() != PLATFORM:
            return self._theirs.buffer_to_dlpack_managed_tensor(array, stream=stream, **versioned)
        if _memory_of(array).is_host:
            return tensor_of(self._handles, np.asarray(array), **versioned)
        array.unsafe_buffer_pointer()  # pins it
        piece: DeviceBuffer = NOW.pointed
        NOW.pointed = None
        versioned.pop("copied", None)  # the consumer need not know
        return piece.memory.exported(piece).__dlpack__(stream=stream, **versioned)

    def dlpack_managed_tensor_to_buffer(
        self, capsule: Any, device: Any, stream: Any, copy: bool | None, *more: Any
    ) -> Any:
        """A JAX array from a capsule, zero-copy where possible."""
        if device.platform != PLATFORM:
            return self._theirs.dlpack_managed_tensor_to_buffer(
                capsule, device, stream, copy, *more
            )
        memory = the_client().home.memory
        if isinstance(memory, DeviceMemory):
            return self._adopted(memory, capsule, device, copy)
        import jax

        array = array_in(capsule)
        fits = array.ctypes.data % _ALIGNED == 0 and array.flags.c_contiguous
        if copy is False and not fits:
            raise self._theirs.JaxRuntimeError(  # JAX matches this text
                f"INVALID_ARGUMENT: the memory is not aligned to {_ALIGNED} bytes in dense rows. "
            )
        if copy or not fits:
            return jax.device_put(array, device)
        with aliased(self._handles, array):
            return jax.device_put(array, device)

    def _adopted(self, memory: DeviceMemory, capsule: Any, device: Any, copy: bool | None) -> Any:
        """A JAX array of a tensor in a device's memory."""
        import jax

        found = memory.consume(capsule)
        if copy is False and found.is_copy:
            raise self._theirs.JaxRuntimeError(  # JAX matches this text
                f"INVALID_ARGUMENT: the memory is not aligned to {memory.aligned} bytes in dense "
                "rows. "
            )
        buffer = found.buffer.copy() if copy and not found.is_copy else found.buffer
        # JAX puts arrays of the host: one of this shape and type that has no elements of its own.
        stands = np.broadcast_to(np.zeros((), buffer.dtype), buffer.shape)
        # As it is: `jax.dlpack` converts 64-bit types itself, where they are off.
        with aliased(self._handles, stands, buffer), jax.enable_x64(True):
            made = jax.device_put(stands, device)
            assert NOW.buffer is None, "the buffer was taken"
        return made


def exchange_by_dlpack(handles: Handles) -> None:
    """Make JAX's DLPack functions support Weft's devices."""
    import jax

    replace_in_jax("jax._src.dlpack:_jax", partial(_Exchange, handles=handles))
    if (jax.config.jax_platforms or "").split(",")[0] == PLATFORM:
        replace_in_jax("jax._src.dlpack:_DL_DEVICE_TO_PLATFORM", _with_host)
    replace_in_jax("jax._src.array:ArrayImpl.__dlpack_device__", _dlpack_device)


def _with_host(theirs: dict[Any, str]) -> dict[Any, str]:
    """JAX's platforms by DLPack device type, with Weft for the memory of its devices."""
    from jax._src import dlpack

    kind, _ = the_client().home.memory.dlpack_device
    return {**theirs, dlpack.DLDeviceType(kind): PLATFORM} if _is_known(kind) else theirs


def _is_known(kind: int) -> bool:
    from jax._src import dlpack

    return kind in {int(known) for known in dlpack.DLDeviceType}


def _memory_of(array: Any) -> Memory:
    """Where the elements of a JAX array on one of Weft's devices are."""
    return the_client().home.of(array.sharding.memory_kind or KINDS[0])


def _dlpack_device(theirs: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The DLPack device of a JAX array, also on Weft's devices."""
    from jax._src import dlpack

    @functools.wraps(theirs)
    def device_of(held: Any) -> Any:
        if held.platform() == PLATFORM and len(held.devices()) == 1:
            kind, number = _memory_of(held).dlpack_device
            if not _is_known(kind):
                raise BufferError(f"JAX does not exchange memory of DLPack's device type {kind}")
            return dlpack.DLDeviceType(kind), number
        return theirs(held)

    return device_of
