"""Records in native code: taken, given back, found in the arguments of a call, made for results.

What is destroyed goes onto a list, by any thread at any time; all else is done with Python's lock
held.
"""

from __future__ import annotations

from weft.jax.native.blocks import release
from weft.jax.native.bridge import drain_soon
from weft.jax.native.records import (
    ARRAY,
    BUFFER,
    COUNTED,
    EVENT,
    SIZE,
    STATIC,
    ArrayRecord,
    BufferRecord,
    CountedRecord,
    DeviceRecord,
    EventRecord,
    HandleRecord,
    MemoryRecord,
)
from weft.jax.native.state import PluginState, state
from weft.native.function import clear, copy, fence, native
from weft.native.memory import Items, Pointer, address

LARGE = 1 << 20  # bytes of a piece from which Python is asked to let go of it soon
DELETED = 1  # what `columns` says of an argument that is deleted, in place of an array


@native
def home() -> PluginState:
    """Where the state is."""
    return state


@native
def nothing(given: Pointer) -> None:
    """A deleter that does nothing, for immortal memory."""


@native
def push(record: HandleRecord) -> None:
    """Put a record onto the list of those that are gone; any thread may."""
    done = False
    while not done:
        head = PluginState.gone.load(state, "monotonic")
        record.next = head
        # A Treiber stack. Release publishes `record.next` and the thread's last writes to the
        # record. There is no ABA problem: records are taken off only all at once, by a swap with
        # null.
        done = PluginState.gone.replace(state, head, record, "release", "monotonic")


@native
def destroy(record: HandleRecord) -> None:
    """Let go of a record that JAX or another library held; any thread may."""
    if not record:
        return
    what = record.what
    if what == STATIC:
        return
    size = 0
    # Read before the push: afterwards another thread may drain the record and reuse it.
    if what == BUFFER:
        size = BufferRecord(record).array.nbytes
    elif what >= COUNTED and CountedRecord.live.add(CountedRecord(record), -1, "acq_rel") != 1:
        return
    push(record)
    # JAX may not call Weft for a long time after it drops a large array: ask Python to free it now.
    if size >= LARGE:
        drain_soon()


@native
def take() -> HandleRecord:
    """A record that is free, null if there is none; only with Python's lock, as all below."""
    record = state.free
    if record:
        state.free = record.next
        state.count -= 1
        record.next = HandleRecord(0)
    return record


@native
def give(record: HandleRecord) -> None:
    """Make a record free."""
    record.what = STATIC  # no buffer any longer, whose bytes are counted
    record.next = state.free
    state.free = record
    state.count += 1


@native
def fresh(what: int) -> HandleRecord:
    """A record of a kind, zeroed else, held once; null if there is none."""
    record = take()
    if record:
        clear(record, SIZE)
        record.what = what
        if what >= COUNTED:
            CountedRecord(record).live = 1
    return record


@native
def finish(record: HandleRecord) -> Pointer:
    """Take a record back whose Python object is gone; the error that an event had, else null."""
    error = Pointer(0)
    if record.what == EVENT or record.what == ARRAY:
        error = EventRecord(record).error
    if record.what == ARRAY:
        release(ArrayRecord(record).own, ArrayRecord(record).room)
    give(record)
    return error


@native
def drain(out: Items[HandleRecord], room: int) -> int:
    """Take back all buffers that are gone; write down arrays without buffers, and all else.

    At most `room` of these; how many there were.
    """
    record = PluginState.gone.swap(state, HandleRecord(0), "acquire")
    n = 0
    while record and n < room:
        following = record.next
        if record.what == BUFFER:
            array = BufferRecord(record).array
            # Acquire and release: the thread that sees the count reach 0 must see all that the
            # other holders did to the array before they let go of it.
            last = CountedRecord.live.add(array, -1, "acq_rel") == 1
            give(record)
            if last:
                out[n] = array
                n += 1
        else:
            record.next = HandleRecord(0)
            out[n] = record
            n += 1
        record = following
    # No room for the rest: they go back onto the list, in whatever order, for the next call.
    while record:
        following = record.next
        push(record)
        record = following
    return n


@native(attribute="alwaysinline")
def buffer_at(lists: Items[Items[BufferRecord]], device: int, argument: int) -> BufferRecord:
    """The buffer of an argument on a device."""
    return lists[device][argument]


@native
def columns(
    lists: Items[Items[BufferRecord]], devices: int, arguments: int, out: Items[ArrayRecord]
) -> None:
    """For each argument the array whose buffers, in the order of devices, were passed.

    0 where they are of several arrays or in another order, and 1 where one is deleted.
    """
    for n in range(arguments):
        first = buffer_at(lists, 0, n).array
        array = first
        for d in range(devices):
            buffer = buffer_at(lists, d, n)
            if buffer.deleted != 0:
                array = ArrayRecord(DELETED)
                break
            if buffer.array != first or buffer.place != d:
                array = ArrayRecord(0)
        out[n] = array


@native
def array_from(template: ArrayRecord, live: int) -> ArrayRecord:
    """An array, a copy of the template."""
    array = ArrayRecord(take())
    copy(array, template, SIZE)
    array.live = live
    # Templates of up to MOST_DIMS dims have their sizes inline: a copy points to its own.
    if not array.dims:
        array.dims = array.sizes
    return array


@native
def buffer_of(
    array: ArrayRecord, place: int, device: DeviceRecord, memory: MemoryRecord
) -> BufferRecord:
    """A buffer of an array."""
    buffer = BufferRecord(take())
    buffer.what = BUFFER
    buffer.array = array
    buffer.place = place
    buffer.device = device
    buffer.memory = memory
    buffer.deleted = 0
    return buffer


@native
def single(template: ArrayRecord, device: DeviceRecord, memory: MemoryRecord) -> BufferRecord:
    """An array of one buffer, which is given; null if records lack."""
    # Counted before anything is taken, so that there is nothing to roll back.
    if state.count < 2:
        return BufferRecord(0)
    return buffer_of(array_from(template, 1), 0, device, memory)


@native
def spread(
    lists: Items[Items[BufferRecord]],
    devices: int,
    results: int,
    templates: ArrayRecord,
    on: Items[DeviceRecord],
    inside: Items[MemoryRecord],
    out: Items[ArrayRecord],
) -> int:
    """New arrays, copies of the templates, and a buffer of each on every device.

    0 if records lack.
    """
    if state.count < (devices + 1) * results:
        return 0
    for n in range(results):
        array = array_from(templates.nth(n), devices)
        out[n] = array
        for d in range(devices):
            lists[d][n] = buffer_of(array, d, on[d], inside[n * devices + d])
    return 1


@native
def drop(lists: Items[Items[BufferRecord]], devices: int, argument: int) -> None:
    """Mark the buffers of an argument as deleted."""
    for d in range(devices):
        BufferRecord.deleted.store(buffer_at(lists, d, argument), 1, "seq_cst")
    # Python asks next whether they are lent: on ARM a plain load may overtake even a seq_cst store.
    fence("seq_cst")


@native
def bytes_on(device: DeviceRecord, records: Items[Pointer], blocks: int) -> int:
    """The bytes of all buffers in the memory of a device; each block has records and their count.

    Memory that a donated or deleted buffer had is not its own any longer.
    """
    total = 0
    for n in range(blocks):
        first = BufferRecord(records[2 * n])
        for k in range(address(records[2 * n + 1])):
            buffer = first.nth(k)
            is_there = buffer.what == BUFFER and buffer.device == device and buffer.deleted == 0
            if is_there and buffer.memory == device.memory:
                total += buffer.array.nbytes
    return total


@native
def hide(array: ArrayRecord) -> None:
    """Forget where the elements of an array are. A lender marks them as lent before it looks."""
    ArrayRecord.data.store(array, 0, "seq_cst")
    array.kind = 0
    # As in `drop`: the caller looks next whether a lender has marked the array, and that load must
    # not come before the store.
    fence("seq_cst")


@native
def disown(array: ArrayRecord) -> Pointer:
    """The memory of an array that Python did not know of, and that Python holds from now on.

    Null if it has none. A donated argument's memory is a result's or Python's: in one step.
    """
    own = array.own
    array.own = Pointer(0)
    array.native = 0
    return own
