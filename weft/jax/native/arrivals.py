"""Host-to-device copies of small arrays in native code, without entering Python.

A table has templates of arrays, by a hash of the type and the sizes; Python adds an entry the
first time it transfers an array of that type.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from weft.jax.native.blocks import block
from weft.jax.native.fast_path import DONE, sweep, with_fast_path
from weft.jax.native.record_code import array_from, buffer_of
from weft.jax.native.records import (
    MOST_DIMS,
    ArrayRecord,
    BufferRecord,
    DeviceRecord,
    EventRecord,
    MemoryRecord,
    offsets_of,
)
from weft.jax.native.state import PluginState, state
from weft.native.function import copy, native, to_int, upper_bits, wrapped
from weft.native.memory import Items, Member, Pointer, Struct, address, i32

SLOT = "Client_BufferFromHostBuffer"
SMALL_ARRIVAL = 1 << 14  # bytes from which it pays to look whether they are on a device already
ENTRIES = 1 << 10  # of the table
TEMPLATES = (ctypes.c_size_t * ENTRIES)()  # the table, which native code looks into
_FACTOR = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio
_SHIFT = 54  # what is left are the 10 bits of a place


class ArriveArgs(Struct, offsets=offsets_of(f"{SLOT}_Args")):
    """The arguments of the slot."""

    data: Member[Pointer]
    type: Member[i32]
    dims: Member[Items[int]]
    num_dims: Member[int]
    byte_strides: Member[Items[int]]
    num_byte_strides: Member[int]
    device: Member[DeviceRecord]
    memory: Member[MemoryRecord]
    device_layout: Member[Pointer]
    done_with_host_buffer: Member[EventRecord]
    buffer: Member[BufferRecord]


def place_in_table(type: int, sizes: Sequence[int]) -> int:
    """Where the template of a type and sizes is."""
    found = type
    for size in sizes:
        found = mixed(found, size)
    return place_of(found)


@native(attribute="alwaysinline")
def mixed(hash: int, size: int) -> int:
    """The hash of one more size."""
    return wrapped(hash * 31 + size)


@native(attribute="alwaysinline")
def place_of(hash: int) -> int:
    """The place of a hash in the table."""
    # Fibonacci hashing: the upper bits of the product depend on all bits of the hash.
    return upper_bits(hash * _FACTOR, _SHIFT)


@native(attribute="alwaysinline")
def may_be_known(given: Pointer) -> bool:
    """Whether the template may be in the table."""
    args = ArriveArgs(given)
    # Where host memory may be aliased, Python decides: it has to keep the numpy array alive.
    if PluginState.aliasing.load(state, "acquire") != 0:
        return False
    return args.num_dims <= MOST_DIMS and not args.device_layout


@native(name=f"try_{SLOT}")
def arrive(given: Pointer) -> int:
    """Make a buffer of a small array."""
    args = ArriveArgs(given)
    rank = args.num_dims
    template = template_of(to_int(args.type), rank, args.dims)
    if not template:
        return 0
    nbytes = template.nbytes
    if args.num_byte_strides != 0 and not is_dense(args.dims, args.byte_strides, rank, nbytes):
        return 0
    # An array and one buffer. Everything that can fail comes before the first record is taken, so
    # that the fallback to Python starts from the same state.
    if not sweep() or state.count < 2:
        return 0
    device = args.device
    memory = args.memory
    if memory:
        device = memory.devices[0]
    else:
        memory = device.memory
    elements = block(nbytes)
    if not elements:
        return 0
    copy(elements, args.data, nbytes)
    array = array_from(template, 1)
    array.own = elements
    array.room = nbytes
    array.data = address(elements)
    args.buffer = buffer_of(array, 0, device, memory)
    # The elements are copied by now, so that the host's memory is free in any case.
    args.done_with_host_buffer = PluginState.ready.load(state, "acquire")
    return DONE


@native
def template_of(type: int, rank: int, sizes: Items[int]) -> ArrayRecord:
    """The template of a type and sizes, null if it is not in the table."""
    hash = type
    for n in range(rank):
        hash = mixed(hash, sizes[n])
    # A place has one entry: a collision is a miss, and goes to Python, which writes the later one
    # there. Entries are written and read with the GIL.
    template = PluginState.templates.load(state, "acquire")[place_of(hash)]
    if not template or template.type != type or template.rank != rank:
        return ArrayRecord(0)
    for n in range(rank):
        if template.sizes[n] != sizes[n]:
            return ArrayRecord(0)
    return template


@native
def is_dense(sizes: Items[int], strides: Items[int], rank: int, nbytes: int) -> bool:
    """Whether elements lie one after another.

    Their bytes over the sizes, from the first to the last, are what the strides have to be.
    """
    if nbytes == 0:  # a size of 0 would trap below
        return True
    step = nbytes
    for n in range(rank):
        step = step // sizes[n]
        # The stride of a dim of size 1 is never used: numpy and JAX write anything there.
        if step != strides[n] and sizes[n] != 1:
            return False
    return True


ARRIVE = with_fast_path(SLOT, may_be_known, arrive)
