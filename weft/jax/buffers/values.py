"""Values behind buffers: the pieces of one sharded array on its devices."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any
from weakref import ref

import ml_dtypes
import numpy as np

from weft.array.future import StackFuture
from weft.array.host import HOST_MEMORY
from weft.array.lease import Lease
from weft.array.memory import DeviceBuffer
from weft.array.stacked import Kind, Stacked, one_for_all
from weft.errors import Unsupported, WeftError
from weft.ir.types import Array
from weft.jax.buffers.client import Space
from weft.jax.buffers.events import follow
from weft.jax.buffers.watching import is_computed
from weft.jax.native.handles import IMMORTAL, Handles, text_at
from weft.jax.native.records import (
    ARRAY,
    ENQUEUED,
    MOST_DIMS,
    PENDING,
    READY,
    SIZE,
    ArrayRecord,
    BufferRecord,
    LayoutRecord,
    RecordWords,
    words,
)
from weft.jax.versions import TRIED, jaxlib_version, release
from weft.mesh.sub_axes import SubAxes, sub_axes_of
from weft.native.cpython import address_of

ONE_DEVICE: SubAxes = sub_axes_of(1, ())

# PJRT_Buffer_Type numbers of element types.
_NAMES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 bfloat16 "
    "complex64 complex128 float8_e5m2 float8_e4m3fn float8_e4m3b11fnuz float8_e5m2fnuz "
    "float8_e4m3fnuz int4 uint4 token int2 uint2 float8_e4m3 float8_e3m4 float8_e8m0fnu "
    "float4_e2m1fn int1 uint1 float6_e2m3fn float6_e3m2fn"
).split()
_NO_ARRAYS = {"token", "int1", "uint1"}  # numbered by PJRT, without a numpy type
_SINCE_0_11 = {"float6_e2m3fn", "float6_e3m2fn"}  # unknown to older jaxlibs
_IS_OLD = (release(jaxlib_version()) or TRIED[-1]) < (0, 11)
DTYPES: dict[int, np.dtype[Any]] = {
    number: np.dtype(getattr(ml_dtypes, name, None) or name)
    for number, name in enumerate(_NAMES, 1)
    if name not in _NO_ARRAYS and not (_IS_OLD and name in _SINCE_0_11)
}
_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}


def dtype_at(number: int) -> np.dtype[Any]:
    """The numpy type of a PJRT_Buffer_Type."""
    if found := DTYPES.get(number):
        return found
    raise WeftError(f"unknown PJRT element type {number}", help="convert the array first")


def buffer_type_of(dtype: np.dtype[Any]) -> int:
    """The PJRT_Buffer_Type of a numpy type."""
    if found := _NUMBERS.get(dtype):
        return found
    raise Unsupported(
        f"an argument or result of {dtype}: jaxlib {jaxlib_version()} has no such type",
        help="convert it inside of the program, as with x.astype(jax.numpy.float32)",
    )


class PjrtArray(StackFuture):
    """One sharded array: its pieces, in the order of its buffers' devices."""

    lent: Stacked | None = None  # external references by buffer
    when_released: tuple[Callable[[], None], ...] = ()  # called when JAX releases the array
    _ordered: dict[int, Any] | None = None  # copies of pieces in requested layouts
    _whole: PjrtArray | None = None  # the array whose memory this one is a part of
    # Cache: the parts it was gathered with, and the result.
    _gathered: tuple[list[tuple[ref[PjrtArray], int]], PjrtArray] | None = None

    def __init__(
        self,
        stacked: Stacked | None = None,
        order: tuple[int, ...] | None = None,
    ) -> None:
        self.held = stacked
        self._ready = stacked is not None
        self.order = order  # index in the stack of each device's piece; None: identity

    def at(self, place: int) -> int:
        """The index in the stack of a device's piece."""
        return place if self.order is None else self.order[place]

    def part(self, place: int) -> Any:
        """One device's piece, in the memory that it is in; pinned against donation."""
        if self.enqueued().is_on_host:
            return self.pinned().piece(self.at(place))  # the view pins it
        return self.borrow().part(self.at(place))

    def in_order(self, place: int, dims: tuple[int, ...]) -> Any:
        """One device's piece with its dims permuted, kept alive for its reader."""
        if self._ordered is None:
            self._ordered = {}
        if place not in self._ordered:
            self._ordered[place] = transposed(self.part(place), dims)
        return self._ordered[place]

    def share(self) -> None:
        """Mark the memory as externally shared, so that it is not overwritten."""
        held = self.enqueued()
        with self.changing:  # order: a donor deletes first, and checks this afterwards
            # Never set again: an external reader does not say when it is done.
            held.owned = False
            if self._whole is not None and not self._whole.is_deleted:
                self._whole.share()

    def lend(self) -> tuple[Stacked, Lease]:
        """The pieces for a reader and the lease that pins their memory; that of the whole, too."""
        self.enqueued()
        with self.changing:
            stacked, lease = super().lend()
            if self._whole is not None and not self._whole.is_deleted:
                _, lease.beside = self._whole.lend()
        return stacked, lease

    @property
    def is_part(self) -> bool:
        """Whether its memory is part of another array's, which may be donated."""
        return self._whole is not None

    def borrow(self) -> Stacked:
        """The pieces, readable from now on even if JAX deletes the array."""
        with self.changing:  # another thread may join it to a whole meanwhile
            self.share()
            return self.enqueued()

    def join(self, whole: PjrtArray, piece: Any) -> None:
        """Become a part of an array that it was copied into, and free its own memory."""
        if self.lent is None and not self.is_deleted:
            with self.changing:  # existing external references carry over
                self._whole = whole
                # A view of the whole: the elements exist once from here on.
                self.held = one_for_all(piece, ONE_DEVICE)

    def remember(self, parts: Sequence[tuple[PjrtArray, int]], made: PjrtArray) -> None:
        """Cache the array gathered from these pieces, the first of which is this one's."""
        # Weak references: the cache must not keep arrays alive that the user has dropped.
        self._gathered = [(ref(value), place) for value, place in parts], made

    def gathered_from(
        self, parts: Sequence[tuple[PjrtArray, int]], order: tuple[int, ...] | None
    ) -> PjrtArray | None:
        """The cached array gathered from these pieces."""
        if self._gathered is None:
            return None
        known, array = self._gathered
        same = len(known) == len(parts) and array.order == order and not array.is_deleted
        pairs = zip(known, parts, strict=False)
        if same and all(a() is value and b == place for (a, b), (value, place) in pairs):
            return array
        return None

    def released(self) -> None:
        """Called when JAX holds no buffer any longer."""
        for let_go in self.when_released:
            let_go()


NOTHING = Stacked(np.zeros(1, np.uint8), ONE_DEVICE)


def template(
    shape: Sequence[int],
    dtype: np.dtype[Any],
    state: int = PENDING,
    minor_to_major: tuple[int, ...] | None = None,
    kind: Kind | None = None,
    native: bool = False,
) -> bytes:
    """The initial record of an array with this shape, type and layout (default row-major).

    With a kind, its pieces are laid out accordingly and the user of the template sets the address;
    `native` marks arrays without a Python object.
    """
    line = ArrayRecord.words(
        what=ARRAY,
        state=state,
        type=buffer_type_of(dtype),
        rank=len(shape),
        nbytes=math.prod(shape) * dtype.itemsize,
        order=layout_at(minor_to_major or tuple(reversed(range(len(shape))))),
    )
    if len(shape) <= MOST_DIMS:
        begin = ArrayRecord.sizes.word
        # and `dims` is 0: the sizes are inline in the record
        line[begin : begin + len(shape)] = shape
    else:
        line[ArrayRecord.dims.word] = numbers_at(tuple(shape))
    if kind is not None:
        line[_KIND], line[ArrayRecord.step.word] = number_of(kind), step_of(kind) or 0
        line[ArrayRecord.native.word] = native
    return bytes(RecordWords(*line))


_NUMBERED: dict[Kind, int] = {}  # native numbers of kinds
_KINDS: list[Kind] = []
_ONE_AT_A_TIME = threading.RLock()  # held briefly


def number_of(kind: Kind) -> int:
    """The native number of a kind; never 0."""
    if (known := _NUMBERED.get(kind)) is not None:
        return known
    with _ONE_AT_A_TIME:
        if kind not in _NUMBERED:
            _KINDS.append(kind)
            _NUMBERED[kind] = len(_KINDS)
        return _NUMBERED[kind]


def step_of(kind: Kind) -> int | None:
    """The stride between pieces in bytes; 0 if all devices share one."""
    lead, sizes = len(kind.sub_axes.sizes), kind.sub_axes.sizes
    head = kind.shape[:lead]
    if all(size == 1 for size in head):
        return 0
    # Native code finds a piece at `data + step * place`: devices must lie in their own order.
    in_order = [*kind.sub_axes.strides] == sorted(kind.sub_axes.strides, reverse=True)
    piece = math.prod(kind.shape[lead:]) * kind.dtype.itemsize
    return piece if head == sizes and in_order else None


@cache
def layout_at(minor_to_major: tuple[int, ...]) -> int:
    """An immortal layout: the address of its dims, preceded by its text."""
    text = text_at(f"{{{','.join(map(str, minor_to_major))}}}")
    return numbers_at((*text, *minor_to_major)) - LayoutRecord.text.offset


@cache
def numbers_at(numbers: tuple[int, ...]) -> int:
    """The address of an immortal list of numbers."""
    held = (ctypes.c_int64 * max(1, len(numbers)))(*numbers)
    IMMORTAL.append(held)
    return ctypes.addressof(held)


def single(
    handles: Handles,
    value: PjrtArray,
    shape: Sequence[int],
    dtype: Any,
    space: Space,
    kind: Kind | None = None,
) -> int:
    """The buffer handle of a new single-device array; with a kind, native code may read it."""
    ready = value.is_ready and value.error is None
    assert ready or kind is None, "what native code reads is there"
    made = _template_at(tuple(shape), dtype, PENDING, kind)
    place = (ctypes.addressof(made), space.device, space.handle)
    # No free record: allocate some and try again; another thread may take them meanwhile.
    while not (buffer := handles.native.single(*place)):
        handles.more(2)
    array_record = words(buffer)[_ARRAY]
    bind_value(handles, value, array_record)
    if kind is not None:
        publish_address(value, array_record)
    return int(buffer)


@lru_cache(maxsize=1 << 12)
def _template_at(
    shape: tuple[int, ...], dtype: np.dtype[Any], state: int, kind: Kind | None
) -> Any:
    return ctypes.create_string_buffer(template(shape, dtype, state, kind=kind), SIZE)


def bind_value(handles: Handles, value: PjrtArray, array_record: int) -> None:
    """Associate a value with an array record, and publish when it is ready."""
    handles.objects[array_record] = value
    if value.is_ready and value.error is None:
        words(array_record)[_STATE] = READY if is_computed(value) else ENQUEUED
    else:
        follow(handles, value, array_record)


_STATE, _ARRAY = ArrayRecord.state.word, BufferRecord.array.word
_KIND, _DATA = ArrayRecord.kind.word, ArrayRecord.data.word
_LENT, _PLACE = ArrayRecord.lent.word, BufferRecord.place.word
_DELETED = BufferRecord.deleted.word
_free = ctypes.PyDLL(None).free
_free.argtypes, _free.restype = [ctypes.c_size_t], None


def copied(array: Array) -> Stacked:
    """A single-device array in its own memory."""
    made = HOST_MEMORY.allocate(array.shape, array.dtype, array.nbytes)
    made[...] = array
    return one_for_all(made, ONE_DEVICE, owned=True)


def transposed(piece: Any, dims: tuple[int, ...]) -> Any:
    """A dense copy of a piece with its dims permuted, in the memory that it is in."""
    if piece.__class__ is DeviceBuffer:
        return piece.memory.rearranged(piece, piece.shape, dims)
    return np.ascontiguousarray(piece.transpose(dims))


def publish_address(value: PjrtArray, array_record: int) -> None:
    """Publish the data address of an array whose record already has its kind."""
    assert value.held is not None, "what is shown is there"
    words(array_record)[_DATA] = address_of(value.held.data)


def publish_kind(value: PjrtArray, array_record: int, kind: Kind) -> None:
    """Publish the address and the kind of an array that is ready, if it is of this kind."""
    if value.held is not None and value.held.is_on_host and value.held.located() is kind:
        record = words(array_record)
        record[ArrayRecord.step.word] = step_of(kind) or 0
        publish_address(value, array_record)
        # Last: native code reads the address of an array with a kind.
        record[_KIND] = number_of(kind)


def value_of(handles: Handles, buffer: int) -> tuple[PjrtArray, int]:
    """The value of a buffer, and the index of its piece."""
    record = words(buffer)
    if record[_DELETED]:
        raise deleted()
    return value_at(handles, record[_ARRAY]), record[_PLACE]


def value_at(handles: Handles, array_record: int) -> PjrtArray:
    """The value of an array record."""
    value: PjrtArray | None = handles.objects.get(array_record)
    if value is None:
        with _ONE_AT_A_TIME:  # the second thread finds the first one's object
            value = handles.objects.get(array_record) or _adopted(handles, array_record)
            handles.objects[array_record] = value
    share_lent(value, array_record)
    return value


def share_lent(value: PjrtArray, array_record: int) -> None:
    """Pin memory that native code has lent out."""
    if value.lent is None and value.held is not None and words(array_record)[_LENT]:
        value.lent = value.borrow()


def _adopted(handles: Handles, array_record: int) -> PjrtArray:
    """The value of a natively created array; Python owns its memory from now on."""
    address: int = handles.native.disown(array_record)
    if not address:
        raise deleted()
    # Numbers begin at 1, since 0 in a record means that there is no kind.
    kind = _KINDS[words(array_record)[_KIND] - 1]
    # The array interface, not from_address: numpy keeps the object as the base, whose end frees it.
    memory = _Memory(address, math.prod(kind.shape) * kind.dtype.itemsize)
    data = np.asarray(memory).view(kind.dtype).reshape(kind.shape)
    return PjrtArray(Stacked(data, kind.sub_axes, True, kind))


class _Memory:
    """Memory allocated by native code, freed with this object."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.address = address
        self.__array_interface__ = {
            "data": (address, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }

    def __del__(self, free: Callable[[int], None] = _free) -> None:
        free(self.address)


def deleted() -> WeftError:
    """The error for a deleted buffer."""
    return WeftError(
        "Array has been deleted: the buffer has been deleted or donated",
        help="keep a copy, or do not donate what is still needed",
    )
