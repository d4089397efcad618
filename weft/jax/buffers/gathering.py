"""Gathering: separately created buffers are assembled into one array, whose buffers they become."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from weft.jax.buffers.values import ONE_DEVICE, PjrtArray, bind_value, template, value_at, value_of
from weft.jax.native.handles import Handles
from weft.jax.native.records import READY, ArrayRecord, BufferRecord, words
from weft.jax.programs.executables import LoadedExecutable

_Pointer = ctypes.c_size_t
_ARRAY, _PLACE = BufferRecord.array.word, BufferRecord.place.word
_DEVICE, _MEMORY = BufferRecord.device.word, BufferRecord.memory.word
_LIVE, _ORDER = ArrayRecord.live.word, ArrayRecord.order.word


def gathered(handles: Handles, loaded: LoadedExecutable, lists: int, index: int) -> PjrtArray:
    """The value of an argument whose buffers belong to several arrays, or are in another order."""
    devices = (_Pointer * loaded.count).from_address(lists)
    at, order = index * ctypes.sizeof(_Pointer), loaded.orders[index]
    buffers = [_Pointer.from_address(device + at).value for device in devices]
    if (known := _common_array(handles, buffers, order)) is not None:
        return known
    places = range(len(buffers)) if order is None else order
    every = {p: value_of(handles, buffer) for p, buffer in zip(places, buffers, strict=True)}
    parts = [every[place] for place in loaded.distinct(index)]
    first = parts[0][0]
    # The same buffers again, as in every step of a loop over a sharded batch.
    if (found := first.gathered_from(parts, order)) is not None:
        return found
    array = PjrtArray(loaded.stack(index, [value.part(part) for value, part in parts]), order)
    first.remember(parts, array)
    if len(parts) > 1:
        for buffer in buffers:
            # Before any piece moves: native code must not use an address that is about to be freed.
            _hide(handles, words(buffer)[_ARRAY])
        alone = _alone(every, loaded.representatives(index))
        moves = len(alone) == len(every) and _can_move(buffers, alone.values())
        for place, value in alone.items():
            value.join(array, array.enqueued().part(place))
        if moves:
            _move(handles, loaded, index, buffers, array)
    return array


def _hide(handles: Handles, array_record: int) -> None:
    """Make native code look the value up in Python, as it may move."""
    handles.native.hide(array_record)
    value_at(handles, array_record)  # after it: earlier external references keep their memory


def _common_array(
    handles: Handles, buffers: Sequence[int], order: tuple[int, ...] | None
) -> PjrtArray | None:
    """The common array of all buffers in their order, if there is one by now."""
    array_record = words(buffers[0])[_ARRAY]
    value = value_at(handles, array_record)
    if value.order != order:
        return None
    lines = [words(buffer) for buffer in buffers]
    same = all(line[_ARRAY] == array_record and line[_PLACE] == n for n, line in enumerate(lines))
    return value if same else None


def _alone(
    every: Mapping[int, tuple[PjrtArray, int]], representatives: Mapping[int, int]
) -> dict[int, PjrtArray]:
    """Single-piece values by place, for the representative of each distinct piece."""
    arrays: dict[int, PjrtArray] = {}
    for place, (value, _) in every.items():
        held, stands = value.held, every[representatives[place]][0].held
        if held is None or stands is None or held.sub_axes != ONE_DEVICE:
            continue
        if held.locate() == stands.locate():
            arrays[place] = value
    return arrays


def _can_move(buffers: Sequence[int], values: Iterable[PjrtArray]) -> bool:
    """Whether the buffers can be moved unobserved: each is the only one of its array."""
    if any(value.lent is not None or value.is_part for value in values):
        return False
    records = [words(buffer)[_ARRAY] for buffer in buffers]
    return len({*records}) == len(records) and all(words(r)[_LIVE] == 1 for r in records)


def _move(
    handles: Handles, loaded: LoadedExecutable, index: int, buffers: Sequence[int], array: PjrtArray
) -> None:
    """Reassign buffers to a new array, which keeps the old ones alive."""
    line = words(buffers[0])
    record = ctypes.create_string_buffer(template(*loaded.piece(index), READY))
    given = (ctypes.addressof(record), line[_DEVICE], line[_MEMORY])
    while not (spare := handles.native.single(*given)):
        handles.more(2)
    array_record = words(spare)[_ARRAY]
    handles.native.give(spare)
    words(array_record)[_ORDER] = words(line[_ARRAY])[_ORDER]
    # The spare buffer's reference is taken over by the moved ones.
    words(array_record)[_LIVE] = len(buffers)
    bind_value(handles, array, array_record)
    let_go = handles.native.destroy
    before = [words(buffer)[_ARRAY] for buffer in buffers]
    array.when_released = tuple([partial(let_go, old) for old in before])
    for place, buffer in enumerate(buffers):
        line = words(buffer)
        line[_PLACE] = place
        line[_ARRAY] = array_record
